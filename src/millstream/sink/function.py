"""A Python function as an sink: it gets changes, each with an id that is the same whenever the change is sent again.

Nobody can know whether a call that failed had an effect, so it is called again: at least once, and once for whoever
remembers the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import polars as pl

from millstream.errors import SinkUnavailable
from millstream.sink.contract import ChangeSet, Packed, Sink
from millstream.store.contract import ORIGIN, WEIGHT, Refusal
from millstream.store.net_changes import describe


class Change(NamedTuple):
    """A row that came (weight above zero) or went; of a view with a key the new row comes alone, and only the key goes.

    :param id: the same whenever the change is sent again
    :param row: column → value
    :param weight: how often the row came; below zero, how often it went

    >>> change = Change("shop.pages.7.0", {"page": "/", "n": 3}, 1)
    >>> change.row["n"], change.weight
    (3, 1)
    """

    id: str
    row: dict[str, Any]
    weight: int


class RejectChange(Exception):
    """For a function to raise: this change will never be taken, so do not try again.

    :param change: one of the changes that the function was given
    :param why: the reason, for the dead letter or the error

    >>> str(RejectChange(Change("shop.pages.7.0", {"page": "/"}, 1), "too old"))
    'too old'
    """

    def __init__(self, change: Change, why: str) -> None:
        super().__init__(why)
        self.change, self.why = change, why


class FunctionSink(Sink):
    """Calls a function with the changes of a batch, never with none."""

    def __init__(self, function: Callable[[Sequence[Change]], None], producer: str, key: tuple[str, ...] = ()) -> None:
        self._function, self._producer, self._key = function, producer, key

    def last(self) -> int | None:
        """Not known."""
        return None

    def pack(self, change_set: ChangeSet) -> Packed:
        """Rows as dictionaries, with their weights; and, of rows that are only ever added, their place in the log."""
        rows = change_set.rows
        weights = rows[WEIGHT].to_list() if WEIGHT in rows.columns else [1] * rows.height
        places = [""] * rows.height
        if not self._key and WEIGHT not in rows.columns and set(ORIGIN) <= set(rows.columns):
            places = rows.select(pl.concat_str(ORIGIN, separator="/")).to_series().to_list()
        found = zip(rows.drop(WEIGHT, strict=False).to_dicts(), weights, places, strict=True)
        return Packed([*found, *((row, -1, "") for row in change_set.gone.to_dicts())], [])

    def send(
        self,
        payload: list[tuple[dict[str, Any], int, str]],
        sequence: int,
        *,
        marked: bool,  # noqa: ARG002
        after: int | None = None,  # noqa: ARG002
    ) -> list[Refusal]:
        """Call, again without what is refused until nothing is."""
        changes = [
            Change(f"{self._producer}/{place or f'{sequence}/{at}'}", row, weight)
            for at, (row, weight, place) in enumerate(payload)
        ]
        refused: list[Refusal] = []
        while changes:
            try:
                self._function(changes)
                break
            except RejectChange as refusal:
                if refusal.change not in changes:
                    raise SinkUnavailable(f"{self._name}: refused a change that it was not given") from refusal
                changes = [change for change in changes if change.id != refusal.change.id]
                refused.append(Refusal(describe(refusal.change.row), refusal.why))
            except Exception as error:
                raise SinkUnavailable(
                    f"{self._name}: {type(error).__name__}: {error}",
                    hint="it is called again; raise RejectChange(change, why) for a change that can never be taken",
                ) from error
        return refused

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _name(self) -> str:
        return f"{getattr(self._function, '__name__', 'function')}()"
