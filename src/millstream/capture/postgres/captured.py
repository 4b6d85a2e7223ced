"""The captured tables as they were last seen, and what becomes of one that is not what it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from millstream.capture.contract import Column, Table
from millstream.capture.postgres.pgoutput import Relation
from millstream.capture.postgres.rows import Mapped
from millstream.capture.postgres.server import Ask
from millstream.capture.postgres.tables import Described
from millstream.capture.postgres.types import Types
from millstream.errors import TableChanged

REWRITES = "rewrites"
"""What may be allowed: changes of a table that change its rows without a word in the stream."""
_DEFAULT = "SELECT atthasmissing OR atthasdef OR attnotnull FROM pg_attribute WHERE attrelid = %s AND attname = %s AND NOT attisdropped"


class Captured:
    """The captured tables by the number that the catalog gave them; ``ask`` gives a connection for questions."""

    def __init__(self, types: Types, allow: Collection[str], ask: Callable[[], Ask]) -> None:
        self._types, self._allow, self._ask = types, allow, ask
        self._tables: dict[int, Table] = {}
        self._seen: set[int] = set()

    def described(self, tables: Sequence[Described]) -> None:
        """These are captured; tables that were seen in the stream stay as they were seen there."""
        for each in tables:
            if each.number not in self._seen:
                self._tables[each.number] = each.table

    def mapped(self, relation: Relation) -> Mapped | None:
        """What a message describes; None for a table that is not captured, TableChanged for one that cannot go on."""
        known = self._tables.get(relation.number)
        if known is None:
            return None
        ask = self._ask()
        types = [self._types.of(ask, each.type, each.modifier) for each in relation.columns]
        columns = tuple(
            Column(each.name, of.native, of.spark) for each, of in zip(relation.columns, types, strict=True)
        )
        table = Table(relation.schema, relation.name, columns, known.key)
        self._check(ask, known, relation, table)
        self._tables[relation.number] = table
        self._seen.add(relation.number)
        return Mapped(table, tuple((each.name, of.convert) for each, of in zip(columns, types, strict=True)))

    def _check(self, ask: Ask, known: Table, relation: Relation, table: Table) -> None:
        if (table.schema, table.name) != (known.schema, known.name):
            raise _stop(known, f"it is called {table.full_name} now")
        names = {each.name for each in relation.columns}
        flagged = {each.name for each in relation.columns if each.key}
        if relation.identity == "n" or not (
            set(known.key) <= names if relation.identity == "f" else flagged == set(known.key)
        ):
            raise _stop(
                known, f"its rows are told apart by {sorted(flagged) or 'nothing'}, expected {sorted(known.key)}"
            )
        if REWRITES in self._allow or relation.number not in self._seen:
            return
        before = {each.name: each for each in known.columns}
        for column in table.columns:
            was = before.get(column.name)
            if was is None and ask(_DEFAULT, relation.number, column.name) == [(True,)]:
                raise _stop(known, f"the column {column.name} was added with a value that the rows before do not tell")
            if was is not None and was.type != column.type:
                raise _stop(known, f"the column {column.name} is {column.native} now, it was {was.native}")


def _stop(table: Table, why: str) -> TableChanged:
    return TableChanged(
        f"table {table.full_name}: {why}",
        hint="take a new snapshot of it; to go on from here without one, where its rows are what they were, allow 'rewrites'"
        " and compare with `millstream capture diff`",
    )
