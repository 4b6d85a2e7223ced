"""One line about the records that were not admitted, so that an answer without them is no surprise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.kernel.exchange.collect import Arrived

VERDICTS = ("late", "duplicate", "future", "malformed")
LETTERS = 1000
"""So many of the newest are kept for ``SHOW REJECTED``."""


@dataclass(slots=True)
class Rejected:
    """What admission kept out of an answer: how many records of each verdict, and the newest of them, each with its reason."""

    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    letters: list[dict[str, Any]] = field(default_factory=list)

    def reset(self, records: int = 0, counts: Mapping[str, int] | None = None) -> None:
        """Begin again."""
        self.records, self.counts, self.letters = records, Counter(counts or {}), []

    def add(self, arrived: Arrived) -> None:
        """Count a step."""
        for count in arrived.counts:
            self.records += count.records
            self.counts.update({verdict: getattr(count, verdict) for verdict in VERDICTS})
        for frame in arrived.rejects:
            self.letters = [*self.letters, *frame.tail(LETTERS).to_dicts()][-LETTERS:]

    def note(self) -> str:
        """In a line; nothing if there were none."""
        return rejected_note(self.records, self.counts, "SHOW REJECTED says which")


def rejected_note(records: int, counts: Mapping[str, int], more: str) -> str:
    """How many records were not admitted and why, then ``more``; nothing if all were.

    >>> rejected_note(20, {"late": 17, "malformed": 1}, "look")
    '18 of 20 records were not admitted (17 late, 1 malformed); look'
    """
    found = {verdict: counts[verdict] for verdict in VERDICTS if counts.get(verdict)}
    if not found:
        return ""
    why = ", ".join(f"{count:,} {verdict}" for verdict, count in found.items())
    return f"{sum(found.values()):,} of {records:,} records were not admitted ({why}); {more}"
