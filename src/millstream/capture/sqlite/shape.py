"""The shape of a table: what capturing it depends on, as the catalog has it now, and which tables cannot be captured.

Columns are those that are stored; a virtual column is computed by whoever reads, and a trigger that computed it could fail where the
application's write would not. Unique keys are here because ``REPLACE`` deletes rows by them without firing a trigger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from millstream.capture.contract import Column, Table
from millstream.capture.sqlite.file import Db
from millstream.capture.sqlite.values import SPARK, Kind, kind_of
from millstream.errors import CaptureError, ConfigError

OURS = "_millstream:"
"""How the names of everything begin that is ours in a file."""
REPLACES = "replaces"
"""What may be allowed: unique keys that are expressions, by which a REPLACE would delete rows unseen."""
MOST_COLUMNS = 990
_VIRTUAL = 2
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\w+|.", re.DOTALL)
_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")


def quoted(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Unique:
    """A unique key: columns with the collations that they are compared by; ``where`` is the condition of a partial one."""

    columns: tuple[str, ...]
    collations: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class Shape:
    """A table. ``columns`` are names and declared types; ``defaults`` what REPLACE puts for a null; ``alias`` says that
    the key is the rowid, and ``rowid`` is a name that reaches it where there is one.

    ``careful`` says that a write may change its own row once more before our trigger sees it: by triggers of the application, or by
    foreign keys.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    nullable: bool
    uniques: tuple[Unique, ...]
    defaults: tuple[tuple[str, str], ...]
    generated: bool
    alias: bool
    rowid: str
    careful: bool

    @cached_property
    def table(self) -> Table:
        """As the contract has it."""
        columns = tuple(Column(name, said or "any", SPARK[kind_of(said)]) for name, said in self.columns)
        return Table("", self.name, columns, self.key)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What its columns store."""
        return tuple(kind_of(said) for _, said in self.columns)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Where the columns of the key are."""
        names = [name for name, _ in self.columns]
        return tuple(names.index(each) for each in self.key)

    def said(self) -> str:
        """As text, to be kept in the file."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def read(cls, said: str) -> Shape:
        """What :meth:`said` wrote."""
        found: dict[str, Any] = json.loads(said)
        found["uniques"] = tuple(
            Unique(tuple(u["columns"]), tuple(u["collations"]), u["where"]) for u in found["uniques"]
        )
        found |= {name: tuple(map(tuple, found[name])) for name in ("columns", "defaults")}
        return cls(**found | {"key": tuple(found["key"])})


def names_of(tables: Sequence[str]) -> tuple[str, ...]:
    """The tables that are named."""
    found = [said.removeprefix("main.") for said in tables]
    if not found or not all(found):
        raise ConfigError("capture: no table is named", hint="--table NAME")
    if len({name.lower() for name in found}) < len(found):
        raise ConfigError(f"capture: a table is named twice among {', '.join(tables)}")
    return tuple(found)


def exists(db: Db, name: str) -> bool:
    """Whether there is a table, view or trigger of this name."""
    return bool(db.execute("SELECT count(*) FROM main.sqlite_master WHERE lower(name) = lower(?)", (name,)).get)


def read_shape(db: Db, name: str, allow: Collection[str]) -> Shape:
    """The shape of a table; CaptureError for one that cannot be captured."""
    found = db.execute(
        "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' AND lower(name) = lower(?)", (name,)
    ).get
    if found is None:
        raise CaptureError(f"table {name}: there is none in the file", hint="check the name: `sqlite3 FILE .tables`")
    name, kind, without = found
    if kind != "table" or name.lower().startswith(("sqlite_", OURS)):
        what = (
            f"is a {kind} table"
            if kind in ("virtual", "shadow")
            else f"is a {kind}"
            if kind == "view"
            else "is not yours"
        )
        raise CaptureError(
            f"table {name} {what}: it has no triggers that see its rows change",
            hint="capture the tables that it is made of",
        )
    rows = db.execute(
        'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', (name,)
    ).fetchall()
    key = tuple(column for _, column in sorted((row[4], row[0]) for row in rows if row[4]))
    if not key:
        raise CaptureError(
            f"table {name} has no primary key, so nothing tells its rows apart: a rowid changes with VACUUM",
            hint="make it anew with an INTEGER PRIMARY KEY, and copy the rows",
        )
    columns = tuple((row[0], (row[1] or "").lower()) for row in rows if row[5] != _VIRTUAL)
    if len(columns) > MOST_COLUMNS:
        raise CaptureError(f"table {name} has {len(columns)} columns, expected at most {MOST_COLUMNS}", hint="capture other tables, or split this one")  # fmt: skip
    indexes = db.execute('SELECT name, origin, partial FROM pragma_index_list(?) WHERE "unique"', (name,)).fetchall()
    uniques = list(_uniques(db, name, indexes, allow))
    alias = not without and not any(origin == "pk" for _, origin, _ in indexes)  # INTEGER PRIMARY KEY is the rowid
    if alias:
        uniques.insert(0, Unique(key, ("BINARY",)))
    taken = {row[0].lower() for row in rows}
    rowid = "" if without else next((each for each in ("rowid", "_rowid_", "oid") if each not in taken), "")
    return Shape(
        name=name,
        columns=columns,
        key=key,
        nullable=not (without or alias) and any(row[4] and not row[2] for row in rows),
        uniques=tuple(uniques),
        defaults=tuple((row[0], _literal(row[3])) for row in rows if row[2] and row[3] is not None),
        generated=any(row[5] for row in rows),
        alias=alias,
        rowid=rowid,
        careful=_careful(db, name),
    )


def _uniques(db: Db, table: str, indexes: Sequence[Any], allow: Collection[str]) -> Iterator[Unique]:
    for index, _, partial in indexes:
        parts = db.execute(
            "SELECT cid, name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", (index,)
        ).fetchall()
        if any(cid == -2 for cid, _, _ in parts):
            if REPLACES in allow:
                continue
            raise CaptureError(
                f"table {table}: its unique key {index} is an expression, and a REPLACE that deletes a row by it is not told",
                hint="make a generated column of the expression and the key of that; or, if the application never replaces rows by"
                " it, allow 'replaces'",
            )
        where = ""
        if partial:
            sql = db.execute("SELECT sql FROM main.sqlite_master WHERE type = 'index' AND name = ?", (index,)).get
            where = _condition(sql)
        yield Unique(tuple(name for _, name, _ in parts), tuple(coll for _, _, coll in parts), where)


def _literal(default: str) -> str:
    """A default as every setting of SQLite reads it: in double quotes, which it was allowed to be, it would be a column."""
    if default.startswith('"') and default.endswith('"'):
        return "'" + default[1:-1].replace('""', '"').replace("'", "''") + "'"
    return default


def _condition(sql: str) -> str:
    """What stands behind WHERE in the statement that made a partial index.

    >>> _condition('CREATE UNIQUE INDEX "where" ON t (a /* where */) WHERE b > (1)')
    'b > (1)'
    """
    depth = 0
    for token in _TOKEN.finditer(sql):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth == 0 and token[0].lower() == "where":
            return sql[token.end() :].strip()
    raise CaptureError(f"the condition of an index cannot be read: {sql}", hint="please report it")


def _careful(db: Db, name: str) -> bool:
    """Whether the table has triggers of the application, or foreign keys that change rows lead from it to such a table or back."""
    found = db.execute(
        "SELECT lower(tbl_name) FROM main.sqlite_master WHERE type = 'trigger' AND substr(name, 1, ?) <> ?",
        (len(OURS), OURS),
    ).fetchall()
    links = db.execute(
        'SELECT lower(m.name), lower(f."table"), f.on_update, f.on_delete FROM main.sqlite_master m, pragma_foreign_key_list(m.name) f'
        " WHERE m.type = 'table'"
    ).fetchall()
    stops = {name.lower(), *(table for (table,) in found)}
    if (name.lower(),) in found:
        return True
    children: dict[str, set[str]] = {}
    for child, parent, update, delete in links:
        if update in _ACTIONS or delete in _ACTIONS:
            children.setdefault(parent, set()).add(child)
    seen: set[str] = set()
    waiting = [name.lower()]
    while waiting and not seen & stops:
        for each in children.get(waiting.pop(), set()) - seen:
            seen.add(each)
            waiting.append(each)
    return bool(seen & stops)
