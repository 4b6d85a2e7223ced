"""The tables in which views are kept: how they are made, changed and read.

Invariants: a table holds exactly the rows of its view, under the names and in the order of its columns, so that people can
query it; every statement here runs inside a transaction of the caller. SQLite refuses NULL in the key of a table WITHOUT
ROWID, which is the faster kind by half; so a table is made of that kind and becomes one with a rowid and a unique index
when the first key with a null comes, in the transaction that brings it. Rows without a key lie by a digest of themselves, which
is all over the table; so, where they have a time, by that first: a batch then writes a few pages instead of all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from millstream.database import Db
from millstream.errors import PipelineError, ViewError
from millstream.store.checks import COUNT, ROW, conditions_of, order_of, plain_schema, taken_back
from millstream.store.contract import ORIGIN, WEIGHT, Page, Target, version_of
from millstream.store.identifier import quote
from millstream.store.net_changes import describe, net_of
from millstream.store.sqlite.values import decode, encode, sql_type

_encoder = msgspec.msgpack.Encoder()
_NEVER = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Kept:
    """A target with how it is stored."""

    target: Target
    pipeline: str
    fingerprint: str
    null_keys: bool = False
    first: str | None = None
    """The column of time that comes before the digest, in a table without a key. Tables that were made earlier have none."""

    @property
    def sql_name(self) -> str:
        """Its table, quoted."""
        return quote(self.target.name)

    @property
    def columns(self) -> str:
        """Its columns, quoted, for a statement."""
        return ", ".join(map(quote, self.target.schema.names))


def create(db: Db, kept: Kept) -> None:
    """Make the table and remember its definition."""
    target = kept.target
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = ? COLLATE NOCASE", (target.name,)).get:
        raise ViewError(
            f"there is already a table {target.name!r} which is not a view", hint="give the view another name"
        )
    _create_table(db, kept)
    columns = [
        {"name": field.name, "type": str(field.type)} | ({"first": True} if field.name == kept.first else {})
        for field in target.schema
    ]
    db.execute(
        "INSERT INTO millstream_views (view, pipeline, fingerprint, columns, key, append, arrow_schema)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            target.name, kept.pipeline, kept.fingerprint, json.dumps(columns, ensure_ascii=False),
            json.dumps(target.key, ensure_ascii=False), int(target.append), bytes(plain_schema(target.schema).serialize()),
        ),
    )  # fmt: skip


def load(db: Db, *, pipeline: str | None = None) -> dict[str, Kept]:
    """The views kept here, all or those of one pipeline, by name."""
    rows = db.execute(
        "SELECT view, pipeline, fingerprint, columns, key, append, null_keys, arrow_schema FROM millstream_views"
        " WHERE pipeline = ?1 OR ?1 IS NULL ORDER BY view",
        (pipeline,),
    )
    return {
        view: Kept(
            Target(view, pa.ipc.read_schema(pa.py_buffer(schema)), tuple(json.loads(key)), bool(append)),
            owner, fingerprint, bool(null_keys),
            next((column["name"] for column in json.loads(columns) if column.get("first")), None),
        )
        for view, owner, fingerprint, columns, key, append, null_keys, schema in rows.fetchall()
    }  # fmt: skip


def drop(db: Db, kept: Kept) -> None:
    """Remove the table and its definition."""
    db.execute(f"DROP TABLE IF EXISTS {kept.sql_name}")
    db.execute("DELETE FROM millstream_views WHERE view = ?", (kept.target.name,))


def rename(db: Db, kept: Kept, pipeline: str) -> None:
    """Let another version of the pipeline have the table, under its name."""
    name = version_of(kept.target.name, pipeline)
    renamed = replace(kept, target=replace(kept.target, name=name), pipeline=pipeline)
    for index in (_index("count", kept), _index("key", kept)):
        db.execute(f"DROP INDEX IF EXISTS {index}")
    db.execute(f"ALTER TABLE {kept.sql_name} RENAME TO {renamed.sql_name}")
    _create_index(db, renamed)
    db.execute("UPDATE millstream_views SET view = ?, pipeline = ? WHERE view = ?", (name, pipeline, kept.target.name))


@dataclass(frozen=True, slots=True)
class Writes:
    """The net change of one view as SQLite's values, worked out before any lock is taken."""

    kept: Kept
    store: list[tuple[Any, ...]]
    remove: list[tuple[Any, ...]]
    null_keys: bool = False


def first_time(target: Target) -> str | None:
    """The column by which the rows of a new table without a key lie."""
    times = (field.name for field in target.schema if pa.types.is_timestamp(field.type))
    return None if target.identity else next(times, None)


def plan_writes(kept: Kept, changes: Any) -> Writes:
    """What a batch's changes of one view will write."""
    target = kept.target
    net = net_of(target, changes)
    if not target.identity:
        summed = net.store
        rows = _tuples(summed.drop(WEIGHT), target.schema)
        digests = [hashlib.blake2b(_encoder.encode(row), digest_size=16).digest() for row in rows]
        if kept.first is not None:
            times = summed[kept.first].to_physical().fill_null(_NEVER).to_list()
            digests = [(at - _NEVER).to_bytes(8, "big") + digest for at, digest in zip(times, digests, strict=True)]
        counted = zip(rows, digests, summed[WEIGHT].to_list(), strict=True)
        return Writes(kept, sorted(((*row, digest, n) for row, digest, n in counted), key=lambda row: row[-2]), [])
    key = list(target.identity)
    null_keys = any(part[name].null_count() for part in net for name in key)
    return Writes(kept, _tuples(net.store, target.schema), _tuples(net.remove, target.schema), null_keys)


def apply(db: Db, writes: Writes) -> None:
    """Write the net change."""
    kept = writes.kept
    if not kept.target.identity:
        _count(db, writes)
        return
    if writes.null_keys and not _takes_null_keys(db, kept):  # an earlier batch may have changed the table
        _allow_null_keys(db, kept)
    key = kept.target.identity
    found = " AND ".join(f"{quote(name)} IS ?" for name in key)
    if writes.remove:
        db.executemany(f"DELETE FROM {kept.sql_name} WHERE {found}", writes.remove)
    rows: Iterable[tuple[Any, ...]] = writes.store
    if writes.null_keys:  # a unique index takes nulls for different, so for these a conflict does not show
        places = [kept.target.schema.names.index(name) for name in key]
        keys = [tuple(row[place] for place in places) for row in writes.store]
        db.executemany(f"DELETE FROM {kept.sql_name} WHERE {found}", [each for each in keys if None in each])
    others = [quote(name) for name in kept.target.schema.names if name not in key]
    update = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    marks = ", ".join("?" * len(kept.target.schema.names))
    db.executemany(
        f"INSERT INTO {kept.sql_name} ({kept.columns}) VALUES ({marks})"
        f" ON CONFLICT ({', '.join(map(quote, key))}) DO {update}",
        rows,
    )


def rows_of(db: Db, kept: Kept, limit: int | None = None) -> Any:
    """All rows, or the first ones, in the declared schema, in the order of the key."""
    target = kept.target
    order = ", ".join(map(quote, target.identity or target.schema.names))
    count = "" if target.identity else f", {COUNT}"
    some = -1 if limit is None else limit
    rows = db.execute(f"SELECT {kept.columns}{count} FROM {kept.sql_name} ORDER BY {order} LIMIT ?", (some,)).fetchall()
    if count:
        rows = list(islice((row[:-1] for row in rows for _ in range(row[-1])), limit))
    return to_arrow(rows, target.schema)


def page_of(db: Db, kept: Kept, page: Page) -> Any:
    """Some rows, in an order. Decimals are text here, so for their order they are taken for doubles."""
    target = kept.target
    wanted, values = ["TRUE"], list[Any]()
    for comparison, column in conditions_of(target, page):
        type_ = target.schema.field(column.name).type
        exact = comparison in ("=", "<>") or not pa.types.is_decimal(type_)
        name = quote(column.name)
        wanted.append(f"{name} {comparison} ?" if exact else f"CAST({name} AS REAL) {comparison} CAST(? AS REAL)")
        values += encode(column, type_)
    for unsaid, texts in page.without:
        wanted.append(f"(CAST({quote(unsaid)} AS TEXT) IN ({', '.join('?' * len(texts))})) IS NOT TRUE")
        values += texts
    order = ", ".join(_ordered(target, name) + (" DESC" if down else "") for name, down in order_of(target, page))
    query = f"FROM {kept.sql_name} WHERE {' AND '.join(wanted)} ORDER BY {order} LIMIT ? OFFSET ?"
    if target.identity:
        rows = db.execute(f"SELECT {kept.columns} {query}", (*values, page.limit, page.offset)).fetchall()
        return to_arrow(rows, target.schema)
    past = page.offset + page.limit  # a row that is stored once may be there several times
    counted = db.execute(f"SELECT {kept.columns}, {COUNT} {query}", (*values, past, 0)).fetchall()
    each = (row[:-1] for row in counted for _ in range(row[-1]))
    return to_arrow(list(islice(each, page.offset, past)), target.schema)


def _ordered(target: Target, name: str) -> str:
    decimal = pa.types.is_decimal(target.schema.field(name).type)
    return f"CAST({quote(name)} AS REAL)" if decimal else quote(name)


def to_arrow(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """Stored rows as an Arrow table."""
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    return pa.table([decode(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def _create_table(db: Db, kept: Kept) -> None:
    target, name = kept.target, kept.sql_name
    columns = [f"{quote(field.name)} {sql_type(field.type, field.name)}" for field in target.schema]
    if not target.identity:
        db.execute(
            f"CREATE TABLE {name} ({', '.join(columns)}, {ROW} BLOB PRIMARY KEY, {COUNT} INTEGER NOT NULL)"
            " STRICT, WITHOUT ROWID"
        )
    elif kept.null_keys:
        db.execute(f"CREATE TABLE {name} ({', '.join(columns)}) STRICT")
    else:
        key = ", ".join(map(quote, target.identity))
        # A key that is one integer is the row's own number, which is quicker still.
        number = len(target.identity) == 1 and pa.types.is_integer(target.schema.field(target.identity[0]).type)
        kind = "STRICT" if number else "STRICT, WITHOUT ROWID"
        db.execute(f"CREATE TABLE {name} ({', '.join(columns)}, PRIMARY KEY ({key})) {kind}")
    _create_index(db, kept)


def _create_index(db: Db, kept: Kept) -> None:
    if not kept.target.identity:
        # Holds nothing between batches: by it a row that fell to zero or below is found without a scan.
        db.execute(f"CREATE INDEX {_index('count', kept)} ON {kept.sql_name} ({COUNT}) WHERE {COUNT} <= 0")
    elif kept.null_keys:
        key = ", ".join(map(quote, kept.target.identity))
        db.execute(f"CREATE UNIQUE INDEX {_index('key', kept)} ON {kept.sql_name} ({key})")


def _index(kind: str, kept: Kept) -> str:
    return quote(f"millstream_{kind}_{kept.target.name}")


def _takes_null_keys(db: Db, kept: Kept) -> bool:
    return bool(db.execute("SELECT null_keys FROM millstream_views WHERE view = ?", (kept.target.name,)).get)


def _allow_null_keys(db: Db, kept: Kept) -> None:
    target = kept.target
    if target.append:
        raise PipelineError(f"view {target.name!r}: a row without its origin ({', '.join(ORIGIN)})")
    old = quote(f"millstream_old_{target.name}")
    kept = replace(kept, null_keys=True)
    db.execute(f"ALTER TABLE {kept.sql_name} RENAME TO {old}")
    _create_table(db, kept)
    db.execute(f"INSERT INTO {kept.sql_name} ({kept.columns}) SELECT {kept.columns} FROM {old}")
    db.execute(f"DROP TABLE {old}")
    db.execute("UPDATE millstream_views SET null_keys = 1 WHERE view = ?", (target.name,))


def _count(db: Db, writes: Writes) -> None:
    """Add the weights to the counts; a row that is no more goes."""
    kept = writes.kept
    marks = ", ".join("?" * (len(kept.target.schema.names) + 2))
    db.executemany(
        f"INSERT INTO {kept.sql_name} ({kept.columns}, {ROW}, {COUNT}) VALUES ({marks})"
        f" ON CONFLICT ({ROW}) DO UPDATE SET {COUNT} = {COUNT} + excluded.{COUNT}",
        writes.store,
    )
    below = db.execute(f"SELECT {kept.columns}, {COUNT} FROM {kept.sql_name} WHERE {COUNT} < 0 LIMIT 1").fetchall()
    if below:
        *row, count = below[0]
        raise taken_back(kept.target, describe(dict(zip(kept.target.schema.names, row, strict=True))), count)
    db.execute(f"DELETE FROM {kept.sql_name} WHERE {COUNT} = 0")


def _tuples(frame: pl.DataFrame, schema: Any) -> list[tuple[Any, ...]]:
    """The rows of a frame as SQLite's values."""
    return list(zip(*(encode(series, schema.field(series.name).type) for series in frame), strict=True))
