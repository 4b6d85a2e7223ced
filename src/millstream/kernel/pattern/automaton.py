"""A pattern as an automaton: places where a row is consumed, and for each the places that may come next, the preferred one first.

Preference is that of SQL:2016: an alternative before those behind it, one more iteration before the end where a quantifier is
greedy, behind it where it is reluctant. An iteration beyond the least number that consumes no row ends its loop. Places of equal
future are told once, so what follows a row is a list without repeats, up to the end of the pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from millstream.errors import PipelineError
from millstream.relation.pattern import (
    Alternatives,
    Anchor,
    Excluded,
    Pattern,
    Repeated,
    Sequential,
    Variable,
)

MOST = 200_000
"""Steps that a pattern may have when its counts are written out; the permutations of 8 variables have 110,000."""

ACCEPT = -1
"""Among the places that may come next: the pattern is at its end."""

AT_END, EXPIRED, AT_START = 1, 2, 4
"""Where a match may be besides between two rows: behind the last row, out of time, before the first row."""

_MET = {"end": AT_END, "expiry": EXPIRED, "start": AT_START}


class Place(NamedTuple):
    """Where a row is consumed: the variable that it is mapped to, and whether it is not shown."""

    variable: str
    excluded: bool


class _Step(NamedTuple):
    """One step: ``row``, ``split`` to two steps in order, ``anchor``, ``enter`` and ``leave`` of an iteration, ``accept``."""

    kind: str
    one: int = 0
    other: int = 0


@dataclass(frozen=True)
class Automaton:
    """The places of a pattern, and what may come next."""

    places: tuple[Place, ...]
    reads_end: bool
    """Whether it matters where the partition ends."""
    reads_expiry: bool
    reads_start: bool
    _steps: list[_Step]
    _behind: list[int]
    _known: dict[tuple[int, int], tuple[int, ...]]

    @classmethod
    def of(cls, pattern: Pattern) -> Automaton:
        """Compile a pattern."""
        program = _Program()
        program.emit(pattern, excluded=False)
        program.add(_Step("accept"))
        anchors = {step.one for step in program.steps if step.kind == "anchor"}
        return cls(
            tuple(program.places),
            AT_END in anchors,
            EXPIRED in anchors,
            AT_START in anchors,
            program.steps,
            program.behind,
            {},
        )

    def first(self, where: int = 0) -> tuple[int, ...]:
        """The places that may consume the first row, the preferred one first."""
        return self._next(0, where)

    def follow(self, place: int, where: int = 0) -> tuple[int, ...]:
        """The places that may come behind one, the preferred one first; :data:`ACCEPT` is the last if it is among them."""
        return self._next(self._behind[place], where)

    def variables(self) -> tuple[str, ...]:
        """The variables in it, as they first come."""
        return tuple(dict.fromkeys(place.variable for place in self.places))

    def _next(self, at: int, where: int) -> tuple[int, ...]:
        if not (self.reads_end or self.reads_expiry or self.reads_start):
            where = 0
        if (at, where) not in self._known:
            self._known[at, where] = tuple(self._reached(at, where))
        return self._known[at, where]

    def _reached(self, at: int, where: int) -> list[int]:
        """Go on without a row from one step, the preferred way first.

        On the way it is known which iterations have begun here: one that ends where it began is empty.
        """
        found: dict[int, None] = {}
        seen: set[tuple[int, frozenset[int]]] = set()
        ways: list[tuple[int, frozenset[int]]] = [(at, frozenset())]
        while ways:
            way = ways.pop()
            if way in seen:
                continue
            seen.add(way)
            at, begun = way
            step = self._steps[at]
            match step.kind:
                case "row":
                    found[step.one] = None
                case "accept":
                    return [*found, ACCEPT]
                case "split":
                    ways += [(step.other, begun), (step.one, begun)]
                case "anchor":
                    if where & step.one:
                        ways.append((at + 1, begun))
                case "enter":
                    ways.append((at + 1, begun | {step.one}))
                case _:  # an iteration ends: an empty one is the last
                    entered = self._steps[step.one].one
                    ways.append((step.other if entered in begun else at + 1, begun - {entered}))
        return list(found)


class _Program:
    """Steps as they are written."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self.places: list[Place] = []
        self.behind: list[int] = []

    def add(self, step: _Step) -> int:
        if len(self.steps) >= MOST:
            raise PipelineError(
                f"the pattern is too large: more than {MOST:,} steps when its counts are written out",
                hint="use smaller counts, or fewer variables in PERMUTE",
            )
        self.steps.append(step)
        return len(self.steps) - 1

    def emit(self, pattern: Pattern, *, excluded: bool) -> None:
        match pattern:
            case Variable(name):
                self.add(_Step("row", len(self.places)))
                self.places.append(Place(name, excluded))
                self.behind.append(len(self.steps))
            case Sequential(parts):
                for part in parts:
                    self.emit(part, excluded=excluded)
            case Alternatives(parts):
                self._alternatives(factored(parts), excluded)
            case Excluded(part):
                self.emit(part, excluded=True)
            case Anchor(at):
                self.add(_Step("anchor", _MET[at]))
            case Repeated():
                self._repeated(pattern, excluded)

    def _alternatives(self, parts: Sequence[Pattern], excluded: bool) -> None:
        jumps = []
        for part in parts[:-1]:
            split = self.add(_Step("split"))
            self.emit(part, excluded=excluded)
            jumps.append(self.add(_Step("split")))
            self.steps[split] = _Step("split", split + 1, len(self.steps))
        for part in parts[-1:]:
            self.emit(part, excluded=excluded)
        for jump in jumps:
            self.steps[jump] = _Step("split", len(self.steps), len(self.steps))

    def _repeated(self, repeated: Repeated, excluded: bool) -> None:
        if _is_void(repeated.part):
            return
        for _ in range(repeated.least):
            self.emit(repeated.part, excluded=excluded)
        splits, leaves, first = [], [], len(self.steps)
        optional = 1 if repeated.most is None else repeated.most - repeated.least
        for _ in range(optional):
            splits.append(self.add(_Step("split")))
            enter = self.add(_Step("enter", len(self.steps)))
            self.emit(repeated.part, excluded=excluded)
            leaves.append(self.add(_Step("leave", enter)))
        if repeated.most is None:
            self.add(_Step("split", first, first))
        end = len(self.steps)
        for split in splits:
            inside, outside = (split + 1, end) if repeated.greedy else (end, split + 1)
            self.steps[split] = _Step("split", inside, outside)
        for leave in leaves:
            self.steps[leave] = self.steps[leave]._replace(other=end)


def factored(parts: Sequence[Pattern]) -> list[Pattern]:
    """Alternatives that stand side by side and begin with the same variable as one that begins with it: the order stays the same."""
    if len(parts) < 2:
        return list(parts)
    made: list[Pattern] = []
    for head, group in groupby(parts, key=_head):
        same = list(group)
        if head is None or len(same) == 1:
            made += same
            continue
        rests = [Sequential(each.parts[1:]) if isinstance(each, Sequential) else Sequential() for each in same]
        made.append(Sequential((head, Alternatives(tuple(rests)))))
    return made


def _head(part: Pattern) -> Variable | None:
    if isinstance(part, Sequential) and part.parts:
        part = part.parts[0]
    return part if isinstance(part, Variable) else None


def _is_void(pattern: Pattern) -> bool:
    """Whether there is nothing in it, however often it is repeated."""
    match pattern:
        case Sequential(parts) | Alternatives(parts):
            return all(map(_is_void, parts))
        case Repeated(part) | Excluded(part):
            return _is_void(part)
    return False
