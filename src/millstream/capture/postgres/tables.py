"""Tables as the catalog has them now, what tells their rows apart, and which of them cannot be captured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from millstream.capture.contract import Column, Table
from millstream.capture.postgres.server import Ask, quoted
from millstream.capture.postgres.types import Type, Types
from millstream.errors import CaptureError, ConfigError

Name: TypeAlias = "tuple[str, str]"

_TABLE = (
    "SELECT c.oid::int8, c.relkind::text, c.relpersistence::text, c.relreplident::text, c.reltuples::float8,"
    " has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)
_COLUMNS = (
    "SELECT attname::text, atttypid::int8, atttypmod FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
)
_KEY = (
    "SELECT a.attname::text FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)"
    " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
    " WHERE i.indrelid = %s AND k.place <= i.indnkeyatts AND i.indimmediate AND i.indisvalid"
    " AND CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END ORDER BY k.place"
)
_LEAVES = (
    "SELECT n.nspname::text, c.relname::text, c.relreplident::text, c.reltuples::float8,"
    " EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)"
    " FROM pg_partition_tree(%s::int8::oid::regclass) p JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE p.isleaf ORDER BY 1, 2"
)
_KINDS = {
    "v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index", "c": "a type", "t": "a TOAST table",
    "I": "an index",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Described:
    """A captured table: its number in the catalog, the types of its columns, and whether it is partitioned."""

    table: Table
    number: int
    types: tuple[Type, ...]
    partitioned: bool
    identity: str
    rows: int | None


def names_of(tables: Iterable[str], schema: str) -> tuple[Name, ...]:
    """The tables that are named, with a schema or in this one."""
    found = []
    for said in tables:
        before, _, name = said.rpartition(".")
        if not name:
            raise ConfigError(f"capture: found the table {said!r}, expected TABLE or SCHEMA.TABLE")
        found.append((before or schema, name))
    if not found:
        raise ConfigError("capture: no table is named", hint="--table NAME")
    if len(set(found)) < len(found):
        raise ConfigError(f"capture: a table is named twice among {', '.join(tables)}")
    return tuple(found)


def read_tables(ask: Ask, names: Sequence[Name], types: Types) -> tuple[Described, ...]:
    """The tables of these names; CaptureError for one that cannot be captured."""
    return tuple(_table(ask, name, types) for name in names)


def _table(ask: Ask, name: Name, types: Types) -> Described:
    full, said = ".".join(name), quoted(*name)
    found = ask(_TABLE, *name)
    if not found:
        raise CaptureError(
            f"table {full}: there is none", hint="check the name; one that is not in public is SCHEMA.TABLE"
        )
    number, kind, persistence, identity, rows, readable, hidden = found[0]
    user = quoted(ask.db.info.user)
    if kind not in ("r", "p") or persistence != "p":
        what = _KINDS.get(kind) or ("an unlogged table" if persistence == "u" else "a temporary table")
        raise CaptureError(
            f"table {full} is {what}: its rows are not in the write-ahead log",
            hint=f"ALTER TABLE {said} SET LOGGED;" if persistence == "u" else "capture the tables that it is made of",
        )
    if not readable:
        raise CaptureError(f"table {full}: the user may not read it", hint=f"GRANT SELECT ON {said} TO {user};")
    if hidden:
        raise CaptureError(
            f"table {full}: a policy hides rows from the user, so a snapshot would lack them",
            hint=f"ALTER ROLE {user} BYPASSRLS;",
        )
    columns, of = [], []
    for column, kind_number, modifier in ask(_COLUMNS, number):
        found_type = types.of(ask, int(kind_number), int(modifier))
        columns.append(Column(column, found_type.native, found_type.spark))
        of.append(found_type)
    key = tuple(row[0] for row in ask(_KEY, number, identity))
    _check_identity(full, said, identity, key)
    count = rows if rows >= 0 else None
    if kind == "p":
        leaves = ask(_LEAVES, number)
        _check_leaves(full, identity, leaves)
        known = [leaf[3] for leaf in leaves if leaf[3] >= 0]
        count = sum(known) if known else None
    table = Table(name[0], name[1], tuple(columns), key)
    return Described(table, int(number), tuple(of), kind == "p", identity, None if count is None else int(count))


def _check_identity(full: str, said: str, identity: str, key: tuple[str, ...]) -> None:
    """Refuse a table whose rows nothing tells apart: to publish it would make the application's own UPDATE fail."""
    if identity == "n" or (identity == "i" and not key):
        raise CaptureError(
            f"table {full} has no replica identity: once it is published, every UPDATE and DELETE of it fails",
            hint=f"ALTER TABLE {said} REPLICA IDENTITY DEFAULT; with a primary key, or REPLICA IDENTITY USING INDEX of a unique one",
        )
    if not key:
        raise CaptureError(
            f"table {full} has no primary key that is checked at once, so nothing tells its rows apart",
            hint=f"ALTER TABLE {said} ADD PRIMARY KEY (…); or ALTER TABLE {said} REPLICA IDENTITY USING INDEX … (unique, columns NOT NULL);",
        )


def _check_leaves(full: str, identity: str, leaves: list[tuple[object, ...]]) -> None:
    """Each partition has an identity of its own, and rows come with that of their partition."""
    wanted = "FULL" if identity == "f" else "DEFAULT"
    for schema, name, found, _, has_key in leaves:
        if identity == "i" or found != identity or (identity == "d" and not has_key):
            raise CaptureError(
                f"table {full}: its partition {schema}.{name} has another replica identity than the table, or none",
                hint=f"ALTER TABLE {quoted(str(schema), str(name))} REPLICA IDENTITY {wanted}; and the same for the table",
            )
