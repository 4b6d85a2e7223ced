"""The tables in which views are kept in PostgreSQL: how they are made, changed and read.

Invariants: under the name of a view there are exactly its rows, under the names and in the order of its columns. A view with a key
is a table, with a unique index in which null equals null. A view without one is a SQL view over a table ``millstream_rows_N`` of
different rows with counts. What a batch brings is first copied into temporary tables, which touch nobody; the statements that
take locks then move no data over the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from millstream.errors import PipelineError, ViewError
from millstream.store.checks import COUNT, ROW, check_target, conditions_of, order_of, plain_schema, taken_back
from millstream.store.contract import ORIGIN, WEIGHT, Page, Target, version_of
from millstream.store.identifier import quote
from millstream.store.net_changes import describe, net_of
from millstream.store.postgres.server import Pg, literal
from millstream.store.postgres.values import encode, from_csv, selected, sql_type, to_csv

LONGEST = 63
"""Bytes of a name; PostgreSQL would cut a longer one, and two could become one."""
_SYSTEM = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Kept:
    """A target with how it is stored; ``number`` names what is not named after the view."""

    target: Target
    pipeline: str
    fingerprint: str
    number: int

    @property
    def sql_name(self) -> str:
        """What people query, quoted."""
        return quote(self.target.name)

    @property
    def table(self) -> str:
        """Where its rows are."""
        return self.sql_name if self.target.identity else f"millstream_rows_{self.number}"

    @property
    def columns(self) -> str:
        """Its columns, quoted, for a statement."""
        return _names(self.target.schema.names)


def check(target: Target) -> None:
    """Refuse a view that cannot be kept, before anything is made."""
    check_target(target, sql_type)
    for kind, name in (("name", target.name), *(("column", name) for name in target.schema.names)):
        if not 0 < len(name.encode()) <= LONGEST or name in _SYSTEM:
            raise ViewError(
                f"view {target.name!r}: PostgreSQL has no place for the {kind} {name!r}",
                hint=f"a name has 1 to {LONGEST} bytes and is none of {', '.join(sorted(_SYSTEM))}",
            )


def create(db: Pg, schema: str, target: Target, pipeline: str, fingerprint: str) -> None:
    """Make the table and remember its definition."""
    there = "SELECT 1 FROM pg_class WHERE relnamespace = %s::regnamespace AND lower(relname) = lower(%s)"
    if db.execute(there, [quote(schema), target.name]).fetchone():
        raise ViewError(
            f"there is already a table {target.name!r} which is not a view", hint="give the view another name"
        )
    row = db.execute(
        "INSERT INTO millstream_views (view, pipeline, fingerprint, columns, key, append, arrow_schema)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING number",
        [
            target.name, pipeline, fingerprint,
            json.dumps([{"name": field.name, "type": str(field.type)} for field in target.schema]),
            json.dumps(target.key), target.append, bytes(plain_schema(target.schema).serialize()),
        ],
    ).fetchone()  # fmt: skip
    kept = Kept(target, pipeline, fingerprint, int(row[0]) if row else 0)
    columns = _typed(target.schema)
    if target.identity:
        key = _names(target.identity)
        db.execute(f"CREATE TABLE {kept.table} ({columns}, UNIQUE NULLS NOT DISTINCT ({key}))")
    else:
        db.execute(f"CREATE TABLE {kept.table} ({columns}, {ROW} bytea PRIMARY KEY, {COUNT} bigint NOT NULL)")
        db.execute(
            f"CREATE VIEW {kept.sql_name} AS SELECT {kept.columns} FROM {kept.table}, generate_series(1, {COUNT})"
        )


def load(db: Pg) -> dict[str, Kept]:
    """The views kept here, by name."""
    rows = db.execute(
        "SELECT view, pipeline, fingerprint, key, append, number, arrow_schema FROM millstream_views ORDER BY view"
    )
    return {
        view: Kept(
            Target(view, pa.ipc.read_schema(pa.py_buffer(schema)), tuple(key), append), owner, fingerprint, number
        )
        for view, owner, fingerprint, key, append, number, schema in rows.fetchall()
    }


def drop(db: Pg, kept: Kept) -> None:
    """Remove the table and its definition."""
    if not kept.target.identity:
        db.execute(f"DROP VIEW IF EXISTS {kept.sql_name}")
    db.execute(f"DROP TABLE IF EXISTS {kept.table}")
    db.execute("DELETE FROM millstream_views WHERE view = %s", [kept.target.name])


def rename(db: Pg, kept: Kept, pipeline: str) -> None:
    """Let another version of the pipeline have the view, under its name."""
    target = replace(kept.target, name=version_of(kept.target.name, pipeline))
    check(target)
    follower = db.execute(
        "SELECT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON d.objid = r.oid"
        " WHERE d.refobjid = %s::regclass AND r.ev_class <> d.refobjid LIMIT 1",
        [kept.sql_name],
    ).fetchone()
    if follower is not None:
        raise ViewError(
            f"{follower[0]} is made of view {kept.target.name!r}, and would go on showing its old version",
            hint=f"drop {follower[0]} first, and make it again afterwards",
        )
    kind = "TABLE" if target.identity else "VIEW"
    db.execute(f"ALTER {kind} {kept.sql_name} RENAME TO {quote(target.name)}")
    db.execute(
        "UPDATE millstream_views SET view = %s, pipeline = %s WHERE view = %s",
        [target.name, pipeline, kept.target.name],
    )


@dataclass(frozen=True, slots=True)
class Writes:
    """The net change of one view as CSV, worked out before any connection is taken.

    ``nulls`` are the sets of key columns that are null together in a key to remove.
    """

    kept: Kept
    store: bytes
    remove: bytes = b""
    nulls: tuple[frozenset[str], ...] = ()
    takes_back: bool = False


def plan_writes(kept: Kept, changes: Any) -> Writes:
    """What a batch's changes of one view will write."""
    target = kept.target
    what = f"view {target.name!r}"
    net = net_of(target, changes)
    if not target.identity:
        summed = net.store
        rows = encode(summed.drop(WEIGHT), target.schema, what)
        digests = [
            "\\x" + hashlib.blake2b(_encoder.encode(row), digest_size=16).hexdigest() for row in rows.iter_rows()
        ]
        counted = rows.with_columns(pl.Series(ROW, digests, pl.String), summed[WEIGHT].alias(COUNT)).sort(ROW)
        return Writes(kept, to_csv(counted), takes_back=bool((summed[WEIGHT] < 0).any()))
    key = list(target.identity)
    nulls = {
        frozenset(name for name, null in row.items() if null)
        for row in net.remove.select(pl.col(key).is_null()).unique().iter_rows(named=True)
    }
    if target.append and any(net.store[name].null_count() for name in key):
        raise PipelineError(f"{what}: a row without its origin ({', '.join(ORIGIN)})")
    store, remove = (encode(part, target.schema, what) for part in net)
    return Writes(kept, to_csv(store), to_csv(remove), tuple(nulls))


def stage(db: Pg, writes: Writes) -> None:
    """Copy a batch's changes of a view to the server, where nobody sees them."""
    kept = writes.kept
    more = "" if kept.target.identity else f", {ROW} bytea, {COUNT} bigint"
    copy_in(db, f"millstream_new_{kept.number}", f"{_typed(kept.target.schema)}{more}", writes.store)
    if writes.remove:
        key = pa.schema([kept.target.schema.field(name) for name in kept.target.identity])
        copy_in(db, f"millstream_gone_{kept.number}", _typed(key), writes.remove)


def copy_in(db: Pg, table: str, columns: str, csv: bytes) -> None:
    """Copy CSV into a temporary table, which is empty again after the transaction."""
    db.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {table} ({columns}) ON COMMIT DELETE ROWS")
    if csv:
        with db.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
            copy.write(csv)


def apply(db: Pg, writes: Writes) -> None:
    """Write what was staged."""
    kept = writes.kept
    if not kept.target.identity:
        _count(db, writes)
        return
    key = kept.target.identity
    for nulls in writes.nulls:
        # "is not distinct from" would be one statement for all, but no index helps it.
        same = " AND ".join(
            f"{side}.{quote(name)} IS NULL" if name in nulls else f"old.{quote(name)} = gone.{quote(name)}"
            for name in key
            for side in (("old", "gone") if name in nulls else ("old",))
        )
        db.execute(f"DELETE FROM {kept.table} AS old USING millstream_gone_{kept.number} AS gone WHERE {same}")
    if not writes.store:
        return
    others = [quote(name) for name in kept.target.schema.names if name not in key]
    update = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if others else "NOTHING"
    db.execute(
        f"INSERT INTO {kept.table} ({kept.columns}) SELECT {kept.columns} FROM millstream_new_{kept.number}"
        f" ON CONFLICT ({_names(key)}) DO {update}"
    )


def rows_of(db: Pg, kept: Kept, limit: int | None = None) -> Any:
    """All rows, or the first ones, as Arrow, in the order of the key."""
    target = kept.target
    order = ", ".join(
        f"{quote(name)}{'::text' if pa.types.is_nested(target.schema.field(name).type) else ''} NULLS FIRST"
        for name in target.identity or target.schema.names
    )
    some = "ALL" if limit is None else f"{limit:d}"
    query = f"SELECT {selected(target.schema)} FROM {kept.sql_name} ORDER BY {order} LIMIT {some}"
    return copy_out(db, query, target.schema)


def page_of(db: Pg, kept: Kept, page: Page) -> Any:
    """Some rows as Arrow, in an order: that of text is by its bytes, as in SQLite."""
    schema = kept.target.schema
    wanted = ["TRUE"]
    for comparison, column in conditions_of(kept.target, page):
        type_ = schema.field(column.name).type
        (value,) = encode(column.to_frame(), schema, f"view {kept.target.name!r}").to_series()
        said = "NULL" if value is None else literal(str(value))
        wanted.append(f"{_ordered(kept, column.name)} {comparison} {said}::{sql_type(type_, column.name)}")
    for unsaid, texts in page.without:
        wanted.append(f"({quote(unsaid)}::text IN ({', '.join(map(literal, texts))})) IS NOT TRUE")
    order = ", ".join(
        f"{_ordered(kept, name)} {'DESC NULLS LAST' if down else 'NULLS FIRST'}"
        for name, down in order_of(kept.target, page)
    )
    query = f"SELECT {selected(schema)} FROM {kept.sql_name} WHERE {' AND '.join(wanted)} ORDER BY {order}"
    return copy_out(db, f"{query} LIMIT {page.limit:d} OFFSET {page.offset:d}", schema)


def _ordered(kept: Kept, name: str) -> str:
    type_ = kept.target.schema.field(name).type
    if pa.types.is_nested(type_):
        return f"{quote(name)}::text"
    return f'{quote(name)} COLLATE "C"' if pa.types.is_string(type_) or pa.types.is_large_string(type_) else quote(name)


def copy_out(db: Pg, query: str, schema: Any) -> Any:
    """The answer to a query of :func:`selected` columns as Arrow."""
    with db.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
        return from_csv(b"".join(copy), schema)


def _count(db: Pg, writes: Writes) -> None:
    """Add the weights to the counts; a row that is no more goes."""
    kept, new = writes.kept, f"millstream_new_{writes.kept.number}"
    db.execute(
        f"INSERT INTO {kept.table} AS old ({kept.columns}, {ROW}, {COUNT}) SELECT {kept.columns}, {ROW}, {COUNT} FROM {new}"
        f" ON CONFLICT ({ROW}) DO UPDATE SET {COUNT} = old.{COUNT} + excluded.{COUNT}"
    )
    if not writes.takes_back:
        return
    schema = kept.target.schema.append(pa.field(COUNT, pa.int64()))
    touched = f"{ROW} IN (SELECT {ROW} FROM {new} WHERE {COUNT} < 0)"
    below = copy_out(db, f"SELECT {selected(schema)} FROM {kept.table} WHERE {touched} AND {COUNT} < 0 LIMIT 1", schema)
    for row in below.to_pylist():
        count = row.pop(COUNT)
        raise taken_back(kept.target, describe(row), count)
    db.execute(f"DELETE FROM {kept.table} WHERE {touched} AND {COUNT} = 0")


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(quote, names))


def _typed(schema: Any) -> str:
    return ", ".join(f"{quote(field.name)} {sql_type(field.type, field.name)}" for field in schema)
