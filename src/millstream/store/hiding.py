"""Rows of somebody who is to be forgotten, hidden from those who read views until they are gone.

Which rows these are is a list in the store itself, so that everybody who reads there by us hides the same: rows in which a column has
somebody's name. What a pipeline computes goes by all rows; only reading is filtered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.store.contract import Entry, Hidden, Page, Rows, StoreReader, ViewInfo


class Names(NamedTuple):
    """What a column of a view must not say."""

    column: str
    values: tuple[str, ...]


def by_view(hidden: Iterable[Hidden]) -> dict[str, list[Names]]:
    """The list, by view.

    >>> by_view([Hidden("a", "orders", "user_id", "7"), Hidden("b", "orders", "user_id", "8")])
    {'orders': [Names(column='user_id', values=('7', '8'))]}
    """
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in hidden:
        found[each.view][each.column].append(each.value)
    return {
        view: [Names(column, tuple(dict.fromkeys(values))) for column, values in names.items()]
        for view, names in found.items()
    }


class Hiding(StoreReader):
    """A store's reading side without the rows that are hidden."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def views(self) -> list[ViewInfo]:
        """Every view, with all of its rows counted."""
        return self._store.views()

    def table(self, view: str, limit: int | None = None) -> Any:
        """The rows that are not hidden, or the first of them."""
        names = self._names(view)
        if not names:
            return self._store.table(view, limit)
        return _without(self._store.table(view), names).slice(0, limit)

    def page(self, view: str, page: Page) -> Any:
        """Some rows, in an order."""
        names = self._names(view)
        if not names:
            return self._store.page(view, page)
        columns = {name for each in self.views() if each.name == view for name, _ in each.columns}
        return self._store.page(view, page._replace(without=tuple(each for each in names if each.column in columns)))

    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row of a key, or None, also where it is hidden."""
        row = self._store.get(view, key)
        if row is None or any(_text(row.get(each.column)) in each.values for each in self._names(view)):
            return None
        return row

    def query(self, sql: str, hidden: Sequence[Hidden] = ()) -> Rows:
        """A statement over what is not hidden."""
        return self._store.query(sql, [*hidden, *self._store.hidden()])

    def dead_letters(self, pipeline: str | None = None, *, reason: str | None = None, limit: int = 1000) -> Any:
        """The newest records that were not admitted; without the details of those that have a hidden name in them."""
        letters = self._store.dead_letters(pipeline, reason=reason, limit=limit)
        names = {each.value for each in self._store.hidden()}
        if not names:
            return letters
        details = [
            None if detail is not None and any(name in detail for name in names) else detail
            for detail in letters["detail"].to_pylist()
        ]
        at = letters.schema.get_field_index("detail")
        return letters.set_column(at, letters.schema.field(at), pa.array(details, letters.schema.field(at).type))

    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of the ledger."""
        return self._store.last(pipeline)

    def admission(self, pipeline: str | None = None) -> Any:
        """What became of all records."""
        return self._store.admission(pipeline)

    def hidden(self) -> list[Hidden]:
        """Which rows are hidden."""
        return self._store.hidden()

    def _names(self, view: str) -> list[Names]:
        return by_view(self._store.hidden()).get(view.partition("~")[0], [])


def _without(rows: Any, names: Sequence[Names]) -> Any:
    for each in names:
        if each.column in rows.column_names:
            texts = rows[each.column].cast(pa.string())
            shown = pc.invert(pc.is_in(texts, value_set=pa.array(each.values, pa.string())))
            rows = rows.filter(pc.fill_null(shown, True))
    return rows


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
