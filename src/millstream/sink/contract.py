"""What an sink is: where the changes of a view go besides the store that keeps it, a batch at a time and in order.

A batch has a number that only grows, over restarts and rebuilds. Where an sink can keep that number together with the
data, sending a batch again adds nothing, and a process that was left behind, whose numbers are lower, adds nothing either.
Every sink must pass ``tests/contracts/sink.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import polars as pl

from millstream.closing import Closing
from millstream.errors import SinkForgot
from millstream.store.contract import Refusal


class ChangeSet(NamedTuple):
    """The net change of a view in a batch.

    Of a view with a key, the new row of each key that changed, and the keys that are gone. Of any other, rows with a column
    ``_weight``, how often they came or, below zero, went; without it if rows only ever come.
    """

    rows: pl.DataFrame
    gone: pl.DataFrame

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return self.rows.is_empty() and self.gone.is_empty()


class Packed(NamedTuple):
    """A change_set as the sink sends it, without the rows that it does not take."""

    payload: Any
    refusals: list[Refusal]


class Sink(Closing):
    """One place for the changes of one view."""

    @abstractmethod
    def last(self) -> int | None:
        """The highest number that is there, once whatever an earlier process left open is settled; None for a new one."""

    @abstractmethod
    def pack(self, change_set: ChangeSet) -> Packed:
        """Turn rows into what is sent. Reads nothing and sends nothing; the same rows give the same."""

    @abstractmethod
    def send(self, payload: Any, sequence: int, *, marked: bool, after: int | None = None) -> list[Refusal]:
        """Send a batch; ``marked``: all of it or nothing, with its number, and nothing if that or a higher one is there.

        ``after`` is the number that was acknowledged last: SinkForgot, and nothing sent, if a lower one is there. Raises an error that says unavailable where a retry may work: it may or may not be there then. Gives the rows that
        were refused only now.
        """

    def anew(self) -> bool:
        """Make ready for a whole view, after something was forgotten; whether nothing that is no more can stay then."""
        return self.last() is None

    def seal(self, sequence: int, *, after: int | None) -> bool:  # noqa: ARG002
        """Take a number with nothing under it, so that lower ones are refused from here on; whether it is there.

        Only if nothing came since ``after``, the number that was there: neither a batch nor a part of one.
        """
        return False

    def held(self) -> Iterator[tuple[str, str]] | None:
        """The rows that are there now, each key once: the key and the row as JSON. None where they cannot be told: of a cache, or without a key."""
        return None

    def place(self) -> str:
        """An id of this place, so that another one of its name is recognised, where only a number may be lost; else nothing."""
        return ""

    def restore(self, place: str, sequence: int) -> bool:  # noqa: ARG002
        """Take a number again that was lost; whether nothing else was: this is that place still, and no number is there."""
        return False


def check_remembered(where: str, known: int | None, after: int | None) -> None:
    """SinkForgot if a lower number is there than was acknowledged."""
    if after is not None and (known is None or known < after):
        raise SinkForgot(
            f"{where} has forgotten what it acknowledged: expected batch number {after}, found {known or 'none'}",
            hint="it was flushed, deleted, or restored from an older copy",
        )
