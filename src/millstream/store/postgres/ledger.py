"""Fence, lease and ledger in PostgreSQL, with what admission counted and rejected: written in the transaction that writes the data.

Invariants: those of :mod:`millstream.store.ledger`. Every transaction that writes for a pipeline begins with a lock on the row of its
lease. So a commit whose outcome is unknown has ended when the next one reads the ledger, and nobody takes over in the middle of
one. Leases go by the server's clock: the clocks of two machines need not agree.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import polars as pl

from millstream.store import lease
from millstream.store.comparable import comparable, time_text
from millstream.store.contract import COUNTED, COUNTS, REJECTS, Batch, Entry, refused_by
from millstream.store.identifier import quote
from millstream.store.ledger import ADMITTED, LETTERS, SUMMED, is_there, offsets_from_json, offsets_to_json
from millstream.store.postgres import beats
from millstream.store.postgres.server import Pg, literal
from millstream.store.postgres.tables import copy_in, copy_out
from millstream.store.postgres.values import FIRST_TIME, encode, selected, sql_type, to_csv

_COLUMNS = "checkpoint, batch, fence, offsets, counts, state, committed_at"
DROPPED = 'millstream_dropped_letters (pipeline text COLLATE "C", topic text COLLATE "C", letters bigint NOT NULL, PRIMARY KEY (pipeline, topic))'
"""How many rows were refused whose dead letters are no longer kept; made when there are some."""
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


def check_fence(db: Pg, pipeline: str, fence: int) -> None:
    """TakenOver unless the stored fence is this one; nobody can change it until the transaction ends."""
    found = db.execute("SELECT fence FROM millstream_lease WHERE pipeline = %s FOR UPDATE", [pipeline]).fetchone()
    if found is None or found[0] != fence:
        raise lease.taken_over(pipeline, found[0] if found else None, fence)


def stored_fence(db: Pg, pipeline: str, owner: str, *, even_live: bool) -> int:
    """The newest fence, 0 if there is none, held until the transaction ends; AlreadyRunning if another's lease is live."""
    row = db.execute(
        "SELECT fence, host, machine, pid, started, owner, (extract(epoch FROM since) * 1000000)::bigint,"
        " (extract(epoch FROM expires) * 1000000)::bigint FROM millstream_lease WHERE pipeline = %s FOR UPDATE",
        [pipeline],
    ).fetchone()
    if row is None:
        return 0
    fence, *holder, since, expires = row
    other = lease.Holder(*holder)
    if not even_live and other.owner not in ("", owner):
        (at,) = db.execute(_NOW).fetchone() or (0,)  # after the wait for the lock
        lease.refuse_if_live(pipeline, other, time_text(since), expires, at)
    return int(fence)


def claim(db: Pg, pipeline: str, me: lease.Holder, ttl: timedelta, *, takeover: bool) -> int:
    """Raise the fence and hold the lease."""
    db.execute(
        "INSERT INTO millstream_lease VALUES (%s, 0, '', '', '', 0, NULL, now(), now()) ON CONFLICT DO NOTHING",
        [pipeline],
    )
    fence = 1 + stored_fence(db, pipeline, me.owner, even_live=takeover)
    db.execute(
        "UPDATE millstream_lease SET fence = %s, owner = %s, host = %s, machine = %s, pid = %s, started = %s,"
        " since = clock_timestamp(), expires = clock_timestamp() + %s WHERE pipeline = %s",
        [fence, me.owner, me.host, me.machine, me.pid, me.started, ttl, pipeline],
    )
    return fence


def extend(db: Pg, pipeline: str, owner: str, ttl: timedelta) -> None:
    """Let the lease live on from now."""
    db.execute(
        "UPDATE millstream_lease SET expires = clock_timestamp() + %s WHERE pipeline = %s AND owner = %s",
        [ttl, pipeline, owner],
    )


def release(db: Pg, pipeline: str, fence: int, owner: str) -> None:
    """End the lease, if it is still this one."""
    db.execute(
        "UPDATE millstream_lease SET owner = '', expires = clock_timestamp() WHERE pipeline = %s AND fence = %s AND owner = %s",
        [pipeline, fence, owner],
    )


def has(db: Pg, pipeline: str, batch: Batch) -> bool:
    """Whether a batch is there; an error if the ones before it are not, or another one is there under its number."""
    found = db.execute(
        "SELECT batch, offsets, state FROM millstream_ledger WHERE pipeline = %s AND checkpoint = %s"
        " ORDER BY batch DESC LIMIT 1",
        [pipeline, batch.checkpoint],
    ).fetchone()
    return is_there(pipeline, batch, *(found or (-1, {}, {})))


class Page:
    """What a batch adds to the ledger, worked out before any connection is taken."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        counts = comparable(batch.counts, COUNTS, "counts")
        self._counts = to_csv(encode(counts, COUNTS, "counts"))
        self._rejects = to_csv(_storable(comparable(batch.rejects, REJECTS, "rejects")))
        self._totals = json.dumps({name: int(counts[name].sum()) for name in COUNTED})
        self._offsets, self._state = json.dumps(offsets_to_json(batch.offsets)), json.dumps(dict(batch.state))

    def stage(self, db: Pg) -> None:
        """Copy it to the server, where nobody sees it."""
        for name, schema, csv in (("counts", COUNTS, self._counts), ("rejects", REJECTS, self._rejects)):
            if csv:
                copy_in(
                    db, f"millstream_{name}", ", ".join(f"{quote(f.name)} {sql_type(f.type, '')}" for f in schema), csv
                )

    def write(self, db: Pg, pipeline: str, keep: int, letters: int) -> None:
        """Enter the batch, and drop what is older than the newest ``keep``, and the newest ``letters`` of dead letters."""
        batch = self.batch
        (number,) = db.execute(
            f"INSERT INTO millstream_ledger (pipeline, number, {_COLUMNS})"
            " SELECT %s, 1 + coalesce(max(number), 0), %s, %s, %s, %s, %s, %s, clock_timestamp()"
            " FROM millstream_ledger WHERE pipeline = %s RETURNING number",
            [
                pipeline, batch.checkpoint, batch.batch, batch.fence, self._offsets, self._totals, self._state, pipeline,
            ],
        ).fetchone() or (0,)  # fmt: skip
        if self._rejects:
            columns = _names(REJECTS)
            db.execute(
                f"INSERT INTO millstream_dead_letters (pipeline, batch, {columns}) SELECT %s, %s, {columns} FROM millstream_rejects",
                [pipeline, batch.batch],
            )
            _trim_letters(db, pipeline, letters)
        if self._counts:
            columns = _names(COUNTS)
            db.execute(
                f"INSERT INTO millstream_admission (pipeline, checkpoint, batch, {columns})"
                f" SELECT %s, %s, %s, {columns} FROM millstream_counts",
                [pipeline, batch.checkpoint, batch.batch],
            )
        beats.write(db, pipeline, batch, keep)
        _trim(db, pipeline, number - keep)


def _trim_letters(db: Pg, pipeline: str, letters: int) -> None:
    table = "millstream_dead_letters"
    (span,) = db.execute(f"SELECT max(number) - min(number) FROM {table}").fetchone() or (0,)
    if span < letters:
        return
    newest = f"SELECT number FROM {table} WHERE pipeline = %s ORDER BY number DESC LIMIT 1 OFFSET %s"
    old, given = f"{table} WHERE pipeline = %s AND number <= ({newest})", [pipeline, pipeline, letters]
    gone = db.execute(f"SELECT topic, count(*) FROM {old} AND reason = 'refused' GROUP BY topic", given).fetchall()
    if gone:  # nothing else counts them
        if "dropped_letters" not in _tables(
            db
        ):  # two may make it at once, and "if not exists" does not wait for the other
            db.execute("SELECT pg_advisory_xact_lock(hashtext('millstream views'), hashtext(current_schema()))")
            db.execute(f"CREATE TABLE IF NOT EXISTS {DROPPED}")
        db.cursor().executemany(
            "INSERT INTO millstream_dropped_letters AS old VALUES (%s, %s, %s)"
            " ON CONFLICT (pipeline, topic) DO UPDATE SET letters = old.letters + excluded.letters",
            [(pipeline, topic, count) for topic, count in gone],
        )
    db.execute(f"DELETE FROM {old}", given)


def entries(db: Pg, pipeline: str, limit: int) -> list[Entry]:
    """The newest entries, newest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM millstream_ledger WHERE pipeline = %s ORDER BY number DESC LIMIT %s", [pipeline, limit]
    ).fetchall()
    return [
        Entry(checkpoint, batch, fence, offsets_from_json(offsets), counts, state, at)
        for checkpoint, batch, fence, offsets, counts, state, at in rows
    ]


def forget(db: Pg, pipeline: str) -> None:
    """Remove everything that is known of a pipeline's batches, but for their heartbeats."""
    for table in _tables(db):
        db.execute(f"DELETE FROM millstream_{table} WHERE pipeline = %s", [pipeline])


def rename(db: Pg, pipeline: str, other: str) -> None:
    """Let everything that is known of a pipeline's batches be of another."""
    for table in _tables(db):
        db.execute(f"UPDATE millstream_{table} SET pipeline = %s WHERE pipeline = %s", [other, pipeline])
    beats.rename(db, pipeline, other)


def _tables(db: Pg) -> tuple[str, ...]:
    ((there,),) = db.execute("SELECT to_regclass('millstream_dropped_letters') IS NOT NULL").fetchall()
    return ("ledger", "dead_letters", "admission", *(["dropped_letters"] if there else ()))


def dead_letters(db: Pg, pipeline: str | None, reason: str | None, limit: int) -> Any:
    """The newest rejects, newest first, as Arrow."""
    where = _where(pipeline=pipeline, reason=reason)
    return copy_out(
        db,
        f"SELECT {selected(LETTERS)} FROM millstream_dead_letters {where} ORDER BY number DESC LIMIT {int(limit)}",
        LETTERS,
    )


def refused(db: Pg, pipeline: str, view: str) -> int:
    """How many rows of a view became dead letters because they cannot be kept here."""
    where, place = "WHERE pipeline = %s AND topic = %s", [pipeline, refused_by(view)]
    counts = [db.execute(f"SELECT count(*) FROM millstream_dead_letters {where}", place).fetchone()]
    if "dropped_letters" in _tables(db):
        counts.append(db.execute(f"SELECT sum(letters) FROM millstream_dropped_letters {where}", place).fetchone())
    return sum(int(count[0] or 0) for count in counts if count)


def admission(db: Pg, pipeline: str | None) -> Any:
    """The counts of each partition, summed over all batches, with its highest watermark, as Arrow."""
    ((there,),) = db.execute(
        "SELECT count(*) > 0 FROM pg_attribute WHERE attrelid = 'millstream_admission'::regclass AND attname = 'erased'"
    ).fetchall()
    # Who only reads does not upgrade: a schema of before has no erased records, and no column for them.
    counted = {name: name if there or name != "erased" else "0" for name in COUNTED}
    sums = ", ".join(f"sum({column})::bigint AS {name}" for name, column in counted.items())
    group = "pipeline, topic, partition"
    summed = (
        f"SELECT {group}, {sums}, max(watermark) AS watermark FROM millstream_admission {_where(pipeline=pipeline)}"
        f" GROUP BY {group}"
    )
    return copy_out(db, f"SELECT {selected(ADMITTED)} FROM ({summed}) AS summed ORDER BY {group}", ADMITTED)


def _trim(db: Pg, pipeline: str, bound: int) -> None:
    """Drop what is entered under ``bound`` or below, summing its admission counts first."""
    old = db.execute(
        "SELECT number, checkpoint, batch, batch = (SELECT max(batch) FROM millstream_ledger AS newest"
        " WHERE newest.pipeline = old.pipeline AND newest.checkpoint = old.checkpoint)"
        " FROM millstream_ledger AS old WHERE pipeline = %s AND number <= %s ORDER BY number",
        [pipeline, bound],
    ).fetchall()
    counted, names = ", ".join(COUNTED), _names(COUNTS)
    add = ", ".join(f"{name} = old.{name} + excluded.{name}" for name in COUNTED)
    for number, checkpoint, batch, last_of_checkpoint in old:
        db.execute(
            "WITH gone AS (DELETE FROM millstream_admission WHERE pipeline = %s AND checkpoint = %s AND batch = %s RETURNING *)"
            f" INSERT INTO millstream_admission AS old (pipeline, checkpoint, batch, {names})"
            f" SELECT pipeline, '', {SUMMED}, topic, partition, {counted}, watermark FROM gone"
            " ON CONFLICT (pipeline, checkpoint, batch, topic, partition)"
            f" DO UPDATE SET {add}, watermark = greatest(excluded.watermark, old.watermark)",
            [pipeline, checkpoint, batch],
        )
        if not last_of_checkpoint:
            db.execute("DELETE FROM millstream_ledger WHERE pipeline = %s AND number = %s", [pipeline, number])


def _storable(rejects: pl.DataFrame) -> pl.DataFrame:
    """Rejects as they can be kept: nothing about a bad record may stop the batch that says that it is bad."""
    times = (pl.when(pl.col(name) >= FIRST_TIME).then(pl.col(name)).alias(name) for name in ("time", "append_time"))
    return encode(
        rejects.with_columns(*times, pl.col("detail").str.replace_all("\0", "\N{SYMBOL FOR NULL}", literal=True)),
        REJECTS,
        "rejects",
    )


def _where(**wanted: str | None) -> str:
    """A condition for COPY, which takes no parameters."""
    found = [f"{name} = {literal(value)}" for name, value in wanted.items() if value is not None]
    return f"WHERE {' AND '.join(found)}" if found else ""


def _names(schema: Any) -> str:
    return ", ".join(map(quote, schema.names))
