"""The ledger in SQLite, with what admission counted and rejected: written in the transaction that writes the data.

Invariants: those of :mod:`millstream.store.ledger`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from millstream.database import Db
from millstream.store.comparable import comparable, time_micros, time_text
from millstream.store.contract import COUNTED, COUNTS, LETTERS_KEPT, REJECTS, Batch, Entry, refused_by
from millstream.store.ledger import ADMITTED, LETTERS, SUMMED, is_there, offsets_from_json, offsets_to_json
from millstream.store.sqlite import beats
from millstream.store.sqlite.tables import to_arrow
from millstream.store.sqlite.values import encode

DROPPED = (
    "millstream_dropped_letters (pipeline TEXT NOT NULL, topic TEXT NOT NULL, letters INTEGER NOT NULL, PRIMARY KEY (pipeline, topic))"
    " STRICT, WITHOUT ROWID"
)
"""How many rows were refused whose dead letters are no longer kept; made when there are some."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = "checkpoint, batch, fence, offsets, counts, state, committed_at"


def to_datetime(text: str) -> datetime:
    """A stored time."""
    return _EPOCH + timedelta(microseconds=time_micros(text))


def has(db: Db, pipeline: str, batch: Batch) -> bool:
    """Whether a batch is there; an error if the ones before it are not, or another one is there under its number."""
    found = db.execute(
        "SELECT batch, offsets, state FROM millstream_ledger WHERE pipeline = ? AND checkpoint = ? ORDER BY batch DESC LIMIT 1",
        (pipeline, batch.checkpoint),
    ).fetchone()
    newest, offsets, state = found or (-1, "{}", "{}")
    return is_there(pipeline, batch, newest, json.loads(offsets), json.loads(state))


class Page:
    """What a batch adds to the ledger, as SQLite's values, worked out before any lock is taken."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.rejects = _rows(batch.rejects, REJECTS, "rejects")
        self.counts = _rows(batch.counts, COUNTS, "counts")
        self.totals = {name: sum(row[COUNTS.names.index(name)] for row in self.counts) for name in COUNTED}
        self.offsets = json.dumps(offsets_to_json(batch.offsets))
        self.state = json.dumps(dict(batch.state))

    def write(self, db: Db, pipeline: str, at: int, keep: int, letters: int = LETTERS_KEPT) -> None:
        """Enter the batch, and drop what is older than the newest ``keep``, and the newest ``letters`` of dead letters."""
        batch = self.batch
        number = 1 + (db.execute("SELECT max(number) FROM millstream_ledger WHERE pipeline = ?", (pipeline,)).get or 0)
        db.execute(
            f"INSERT INTO millstream_ledger (pipeline, number, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                pipeline, number, batch.checkpoint, batch.batch, batch.fence,
                self.offsets, json.dumps(self.totals), self.state, time_text(at),
            ),
        )  # fmt: skip
        db.executemany(
            f"INSERT INTO millstream_dead_letters (pipeline, batch, {', '.join(REJECTS.names)})"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(pipeline, batch.batch, *row) for row in self.rejects],
        )
        if self.rejects:
            _trim_letters(db, pipeline, letters)
        db.executemany(
            f"INSERT INTO millstream_admission (pipeline, checkpoint, batch, {', '.join(COUNTS.names)})"
            f" VALUES (?, ?, ?, {', '.join('?' * len(COUNTS.names))})",
            [(pipeline, batch.checkpoint, batch.batch, *row) for row in self.counts],
        )
        beats.write(db, pipeline, batch, keep)
        _trim(db, pipeline, number - keep)


def _trim_letters(db: Db, pipeline: str, letters: int) -> None:
    table = "millstream_dead_letters"
    span = db.execute(f"SELECT (SELECT max(rowid) FROM {table}) - (SELECT min(rowid) FROM {table})").get
    if span < letters:
        return
    newest = f"SELECT rowid FROM {table} WHERE pipeline = ?1 ORDER BY rowid DESC LIMIT 1 OFFSET ?2"
    old = f"{table} WHERE pipeline = ?1 AND rowid <= ({newest})"
    gone = db.execute(f"SELECT topic, count(*) FROM {old} AND reason = 'refused' GROUP BY topic", (pipeline, letters))
    if counted := gone.fetchall():  # nothing else counts them
        db.execute(f"CREATE TABLE IF NOT EXISTS {DROPPED}")
        db.executemany(
            "INSERT INTO millstream_dropped_letters VALUES (?, ?, ?)"
            " ON CONFLICT (pipeline, topic) DO UPDATE SET letters = letters + excluded.letters",
            [(pipeline, topic, count) for topic, count in counted],
        )
    db.execute(f"DELETE FROM {old}", (pipeline, letters))


def entries(db: Db, pipeline: str, limit: int) -> list[Entry]:
    """The newest entries, newest first."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM millstream_ledger WHERE pipeline = ? ORDER BY number DESC LIMIT ?", (pipeline, limit)
    ).fetchall()
    return [
        Entry(
            checkpoint,
            batch,
            fence,
            offsets_from_json(json.loads(offsets)),
            json.loads(counts),
            json.loads(state),
            to_datetime(at),
        )
        for checkpoint, batch, fence, offsets, counts, state, at in rows
    ]


def forget(db: Db, pipeline: str) -> None:
    """Remove everything that is known of a pipeline's batches, but for their heartbeats."""
    for table in _tables(db):
        db.execute(f"DELETE FROM millstream_{table} WHERE pipeline = ?", (pipeline,))


def rename(db: Db, pipeline: str, other: str) -> None:
    """Let everything that is known of a pipeline's batches be of another."""
    for table in _tables(db):
        db.execute(f"UPDATE millstream_{table} SET pipeline = ? WHERE pipeline = ?", (other, pipeline))
    beats.rename(db, pipeline, other)


def _tables(db: Db) -> tuple[str, ...]:
    there = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'millstream_dropped_letters'").get
    return ("ledger", "dead_letters", "admission", *(["dropped_letters"] if there else ()))


def dead_letters(db: Db, pipeline: str | None, reason: str | None, limit: int) -> Any:
    """The newest rejects, newest first, as Arrow."""
    rows = db.execute(
        f"SELECT {', '.join(LETTERS.names)} FROM millstream_dead_letters"
        " WHERE (pipeline = ?1 OR ?1 IS NULL) AND (reason = ?2 OR ?2 IS NULL) ORDER BY rowid DESC LIMIT ?3",
        (pipeline, reason, limit),
    ).fetchall()
    return to_arrow(rows, LETTERS)


def refused(db: Db, pipeline: str, view: str) -> int:
    """How many rows of a view became dead letters because they cannot be kept here."""
    place = (pipeline, refused_by(view))
    kept = db.execute("SELECT count(*) FROM millstream_dead_letters WHERE pipeline = ? AND topic = ?", place).get
    dropped = 0
    if "dropped_letters" in _tables(db):
        dropped = db.execute(
            "SELECT sum(letters) FROM millstream_dropped_letters WHERE pipeline = ? AND topic = ?", place
        ).get
    return int(kept) + int(dropped or 0)


def admission(db: Db, pipeline: str | None) -> Any:
    """The counts of each partition, summed over all batches, with its highest watermark, as Arrow."""
    columns = {name for _, name, *_ in db.execute("PRAGMA table_info(millstream_admission)")}
    # Who only reads does not upgrade: a file of before has no erased records, and no column for them.
    sums = ", ".join(f"sum({name})" if name in columns else "0" for name in COUNTED)
    rows = db.execute(
        f"SELECT pipeline, topic, partition, {sums}, json_group_array(DISTINCT watermark) FROM millstream_admission"
        " WHERE pipeline = ?1 OR ?1 IS NULL GROUP BY pipeline, topic, partition ORDER BY pipeline, topic, partition",
        (pipeline,),
    ).fetchall()
    return to_arrow(
        [(*row, max(filter(None, json.loads(marks)), key=time_micros, default=None)) for *row, marks in rows], ADMITTED
    )


def _trim(db: Db, pipeline: str, bound: int) -> None:
    """Drop what is entered under ``bound`` or below, summing its admission counts first, the oldest first."""
    old = db.execute(
        "SELECT number, checkpoint, batch, batch = (SELECT max(batch) FROM millstream_ledger AS newest"
        " WHERE newest.pipeline = old.pipeline AND newest.checkpoint = old.checkpoint)"
        " FROM millstream_ledger AS old WHERE pipeline = ? AND number <= ? ORDER BY number",
        (pipeline, bound),
    ).fetchall()
    counted, names = ", ".join(COUNTED), ", ".join(COUNTS.names)
    add = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTED)
    for number, checkpoint, batch, last_of_checkpoint in old:
        place = (pipeline, checkpoint, batch)
        db.execute(
            f"INSERT INTO millstream_admission (pipeline, checkpoint, batch, {names})"
            f" SELECT pipeline, '', {SUMMED}, topic, partition, {counted}, watermark FROM millstream_admission"
            " WHERE pipeline = ? AND checkpoint = ? AND batch = ?"
            " ON CONFLICT (pipeline, checkpoint, batch, topic, partition)"
            f" DO UPDATE SET {add}, watermark = coalesce(excluded.watermark, watermark)",
            place,
        )
        db.execute("DELETE FROM millstream_admission WHERE pipeline = ? AND checkpoint = ? AND batch = ?", place)
        if not last_of_checkpoint:
            db.execute("DELETE FROM millstream_ledger WHERE pipeline = ? AND number = ?", (pipeline, number))


def _rows(table: Any, schema: Any, what: str) -> list[tuple[Any, ...]]:
    if not table.num_rows:
        return []
    frame = comparable(table, schema, what)
    return list(zip(*(encode(series, schema.field(series.name).type) for series in frame), strict=True))
