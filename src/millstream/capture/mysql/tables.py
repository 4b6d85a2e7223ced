"""Tables as the catalog has them now, what tells their rows apart, and which of them cannot be captured."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from millstream.capture.contract import Column, Table
from millstream.capture.mysql.captured import CASCADES
from millstream.capture.mysql.charsets import Charsets
from millstream.capture.mysql.server import Ask
from millstream.capture.mysql.statements import Name, members_of
from millstream.capture.mysql.types import GEOMETRIES, Type, check_kind
from millstream.errors import CaptureError, ConfigError

_TABLE = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_OCTET_LENGTH, CHARACTER_MAXIMUM_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE,"
    " DATETIME_PRECISION, CHARACTER_SET_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    " ORDER BY ORDINAL_POSITION"
)
_KEY = (
    "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY'"
    " ORDER BY SEQ_IN_INDEX"
)
_CASCADES = (
    "SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME, UPDATE_RULE, DELETE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS"
    " WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s"
)
_QUIET = ("RESTRICT", "NO ACTION")


def names_of(tables: Iterable[str], database: str) -> tuple[Name, ...]:
    """The tables that are named, with a database or in this one."""
    found = []
    for said in tables:
        schema, _, name = said.rpartition(".")
        if not name:
            raise ConfigError(f"capture: found the table {said!r}, expected TABLE or DATABASE.TABLE")
        found.append((schema or database, name))
    if not found:
        raise ConfigError("capture: no table is named", hint="--table NAME")
    if len(set(found)) < len(found):
        raise ConfigError(f"capture: a table is named twice among {', '.join(tables)}")
    return tuple(found)


def read_tables(ask: Ask, names: Sequence[Name], charsets: Charsets) -> tuple[tuple[Table, tuple[Type, ...]], ...]:
    """The tables of these names, with the types of their columns; CaptureError for one that cannot be captured."""
    return tuple(_table(ask, name, charsets) for name in names)


def count_of(ask: Ask, table: Table) -> int | None:
    """About how many rows there are."""
    rows = ask(_TABLE, (table.schema, table.name))
    return int(rows[0][3]) if rows and rows[0][3] is not None else None


def check_cascades(ask: Ask, names: Sequence[Name], allow: Collection[str]) -> None:
    """Refuse tables whose rows a foreign key changes: that is not in the binary log."""
    if CASCADES in allow:
        return
    for schema, name in names:
        for constraint, parent, update, delete in ask(_CASCADES, (schema, name)):
            if update in _QUIET and delete in _QUIET:
                continue
            rule = f"ON DELETE {delete}" if delete not in _QUIET else f"ON UPDATE {update}"
            raise CaptureError(
                f"table {schema}.{name}: its foreign key {constraint} to {parent} is {rule}, and what that does to the rows here is not"
                " in the binary log",
                hint="make it RESTRICT, and let the application change the rows; or allow 'cascades', know that what is derived will"
                " drift, and compare with `millstream capture diff`",
            )


def _table(ask: Ask, name: Name, charsets: Charsets) -> tuple[Table, tuple[Type, ...]]:
    full = ".".join(name)
    found = ask(_TABLE, name)
    if not found:
        raise CaptureError(
            f"table {full}: there is none that this user sees", hint="check the name, and GRANT SELECT on it"
        )
    schema, table, kind, _ = found[0]
    if kind != "BASE TABLE":
        why = (
            "the rows of its past are among the others in the binary log"
            if "VERSIONED" in kind
            else "its rows are not in the binary log"
        )
        raise CaptureError(f"table {full} is a {kind.lower()}: {why}", hint="capture the tables that it is made of")
    columns, types = [], []
    for row in ask(_COLUMNS, name):
        column = str(row[0])
        of = _type(row, charsets)
        check_kind(of.kind, full, column)
        columns.append(Column(column, str(of), of.spark))
        types.append(of)
    key = tuple(str(row[0]) for row in ask(_KEY, name))
    if not key:
        raise CaptureError(
            f"table {full} has no primary key, so nothing tells its rows apart",
            hint=f"ALTER TABLE {full} ADD PRIMARY KEY (…); or ALTER TABLE {full} ADD COLUMN id bigint AUTO_INCREMENT PRIMARY KEY;",
        )
    return Table(str(schema), str(table), tuple(columns), key), tuple(types)


def _type(row: tuple[object, ...], charsets: Charsets) -> Type:
    _, kind, said, octets, length, digits, scale, fraction, charset = (
        None if each is None else str(each) for each in row
    )
    kind, said = (kind or "").lower(), said or ""
    unsigned = "unsigned" in said.lower().rpartition(")")[2] or " unsigned" in said.lower()
    if kind in GEOMETRIES:
        return Type("geometry")
    if kind in ("enum", "set"):
        return Type(kind, members=members_of(said))
    if kind == "json":
        return Type("json of MySQL")
    if "/*" in said:
        return Type(said)
    if kind in ("char", "varchar") and charset:
        of = charsets.by_name[charset]
        return Type(kind, size=int(octets or 0) // of.bytes, scale=int(octets or 0), charset=of.name)
    if kind in ("binary", "varbinary"):
        return Type(kind, size=int(length or 0), scale=int(length or 0))
    if kind.endswith("text"):
        return Type(kind, charset=charset or "")
    if kind == "decimal":
        return Type(kind, unsigned, int(digits or 0), int(scale or 0))
    if kind == "bit":
        return Type(kind, size=int(digits or 0))
    if kind in ("time", "datetime", "timestamp"):
        return Type(kind, size=int(fraction or 0))
    return Type(kind, unsigned and kind in ("tinyint", "smallint", "mediumint", "int", "bigint", "float", "double"))
