"""Which tables are captured, as they were last seen, and which statements about them must stop a capture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from millstream.capture.contract import Table
from millstream.capture.mysql.position import Place
from millstream.capture.mysql.statements import Name, Statement
from millstream.errors import CaptureError, TableChanged

CASCADES, REWRITES = "cascades", "rewrites"
"""What may be allowed: tables whose rows a foreign key changes, and statements that change rows; neither is in the binary log."""


class Captured:
    """The captured tables by name; ``fold`` says that upper and lower case are one. ``altered`` is called when one was."""

    def __init__(
        self, names: Iterable[Name], fold: bool, allow: Collection[str], altered: Callable[[], None] = lambda: None
    ) -> None:
        self._fold, self._allow, self._altered = fold, allow, altered
        self._names = {self._key(*name): name for name in names}
        self._tables: dict[Name, Table] = {}

    def _key(self, schema: str, name: str) -> Name:
        return (schema.casefold(), name.casefold()) if self._fold else (schema, name)

    def has(self, schema: str, name: str) -> bool:
        """Whether this table is captured."""
        return self._key(schema, name) in self._names

    def seen(self, table: Table) -> None:
        """This is what the table is like from here on."""
        self._tables[self._key(table.schema, table.name)] = table

    def named(self, statement: Statement) -> Iterator[Table]:
        """Those tables of ours that a statement names."""
        if statement.database:
            wanted = [key for key in self._names if key[0] == self._key(statement.database, "")[0]]
        else:
            wanted = [key for name in statement.tables if (key := self._key(*name)) in self._names]
        for key in dict.fromkeys(wanted):
            yield self._tables.get(key) or Table(*self._names[key], (), ())

    def check(self, statement: Statement, text: str, place: Place) -> None:
        """Stop at what changes rows of ours without saying which."""
        where, said = f"{place.file}:{place.byte}", text.strip()[:200]
        found = [table.full_name for table in self.named(statement)]
        if statement.kind == "call" or (statement.kind == "rows" and found):
            raise CaptureError(
                f"the binary log has a statement in place of the rows that it changed, at {where}: {said}",
                hint="SET GLOBAL binlog_format = ROW; no session may set another; and a new snapshot",
            )
        if not found:
            return
        if statement.kind in ("rename", "rewrite") and REWRITES not in self._allow:
            what = (
                "a table was renamed"
                if statement.kind == "rename"
                else "rows were changed by a statement about their table"
            )
            raise TableChanged(
                f"table {found[0]}: {what}, and the binary log does not say which rows there are now, at {where}: {said}",
                hint="take a new snapshot; to go on from here without one, allow 'rewrites' and compare with `millstream capture diff`",
            )
        if statement.kind == "alter":
            self._altered()
