"""A table: the latest row of each key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.contract import SpecContract
from millstream.plan.operators.wording import ENDLESS, USE_WINDOWS, Say, listed


@dataclass(frozen=True, slots=True)
class Changelog(SpecContract):
    """A table's upserts and tombstones as changes: the latest row of each key."""

    tag: ClassVar[str] = "Changelog"
    keys: tuple[str, ...]
    values: tuple[str, ...]
    retract: bool = True

    def title(self) -> str:
        return "table"

    def does(self, say: Say) -> str:
        return f"the latest row of each {listed(self.keys)}"

    def keeps(self, say: Say) -> str:
        return f"one row for each {listed(self.keys)}: what a record replaces must be known"

    def drops(self, say: Say) -> str:
        return f"by a tombstone; else {ENDLESS}the table"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return False

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return False

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return False

    def holding(self, name: str, here: str) -> set[str]:
        return {here} & set(self.values)

    def sends_as_many(self) -> bool:
        return True
