"""What a row pattern means, in plain Python over all rows of a key: every mapping of rows to variables, the preferred one first.

There are no automata, columns or states here: a pattern is a generator that calls itself. Expressions are not read but given as
functions of the values of their slots. Rows are dictionaries in order; times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.kernel.state.store import FOREVER
from millstream.plan.spec import Measure
from millstream.relation.pattern import (
    Aggregated,
    Alternatives,
    Anchor,
    Classifier,
    Excluded,
    MatchNumber,
    Navigation,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Slot,
    Stage,
    Variable,
)
from tests.kernel import oracle

Row = dict[str, Any]
Means = Callable[[dict[str, Any]], Any]
Mapped = tuple[tuple[str, bool], ...]
"""The variable of each row so far, and whether it is excluded."""


class Endless(Exception):
    """A skip that does not go on, or to a row that is not there."""


@dataclass(frozen=True)
class Meant:
    """A search, and what its conditions (by variable) and its measures (in order) compute from the values of their slots."""

    search: Search
    conditions: dict[str, Means]
    measures: tuple[Means, ...]


@dataclass
class Match:
    """A match, or a near miss, or a row of none."""

    start: int
    mapped: Mapped = ()
    number: int | None = None
    near: bool = False
    none: bool = False


@dataclass
class Attempt:
    """One start: all mappings that begin there, and how far one has to look for them."""

    meant: Meant
    rows: Sequence[Row]
    start: int
    mark: int
    looked: int = -1
    """The furthest row that was looked at; one behind all others for their end."""
    hung: bool = False
    """Whether it mattered that time had run out, or might yet."""
    beginning: Mapped | None = None

    def __post_init__(self) -> None:
        self.within = self.meant.search.within
        self.bound = len(self.rows)
        if self.within is not None:
            over = oracle.moment(self.rows[self.start]["at"]) + self.within
            late = [at for at in range(self.start, len(self.rows)) if oracle.moment(self.rows[at]["at"]) >= over]
            self.bound = late[0] if late else self.bound
            self.over = over
        self.looked = self.start

    def ways(self, pattern: Pattern, at: int, mapped: Mapped, excluded: bool = False) -> Iterator[tuple[int, Mapped]]:
        """Every way to match a pattern from a row on: behind which row it ends, and what was mapped till then."""
        match pattern:
            case Variable(name):
                if at == self.bound:
                    self.hung = True
                    self.beginning = mapped if self.beginning is None else self.beginning
                    return
                self.looked = max(self.looked, at)
                longer = (*mapped, (name, excluded))
                if self.holds(name, longer):
                    yield at + 1, longer
            case Sequential(()):
                yield at, mapped
            case Sequential((first, *rest)):
                for end, longer in self.ways(first, at, mapped, excluded):
                    yield from self.ways(Sequential(tuple(rest)), end, longer, excluded)
            case Alternatives(parts):
                for part in parts:
                    yield from self.ways(part, at, mapped, excluded)
            case Excluded(part):
                yield from self.ways(part, at, mapped, True)
            case Anchor():
                if self.is_at(pattern, at):
                    yield at, mapped
            case Repeated():
                yield from self.repeated(pattern, 0, at, mapped, excluded)

    def repeated(
        self, of: Repeated, count: int, at: int, mapped: Mapped, excluded: bool
    ) -> Iterator[tuple[int, Mapped]]:
        """Every way to go on with a repetition of which there were some iterations."""

        def more() -> Iterator[tuple[int, Mapped]]:
            if of.most is not None and count >= of.most:
                return
            for end, longer in self.ways(of.part, at, mapped, excluded):
                if end == at and count >= of.least:
                    yield end, longer  # an empty iteration ends the loop
                else:
                    yield from self.repeated(of, count + 1, end, longer, excluded)

        def enough() -> Iterator[tuple[int, Mapped]]:
            if count >= of.least:
                yield at, mapped

        for each in (more, enough) if of.greedy else (enough, more):
            yield from each()

    def is_at(self, anchor: Anchor, at: int) -> bool:
        if anchor.at == "start":
            return at == 0
        if anchor.at == "end":
            return at == len(self.rows)
        if at < self.bound:
            return False
        self.hung = True
        return at < len(self.rows) or self.over <= self.mark

    def holds(self, variable: str, mapped: Mapped) -> bool:
        found = [each for each in self.meant.search.conditions if each.name == variable]
        if not found:
            return True
        match = Match(self.start, mapped)
        values = {name: value(slot, self.rows, match, len(mapped)) for name, slot in found[0].slots}
        return self.meant.conditions[variable](values) is True

    def best(self) -> Mapped | None:
        """The preferred mapping."""
        return next((mapped for _, mapped in self.ways(self.meant.search.pattern, self.start, ())), None)

    def is_certain(self, known: int, time: int) -> bool:
        """Whether rows from this one on, which is not known, cannot change what comes of it."""
        if time == FOREVER:
            return True
        known -= ahead(self.meant.search.conditions)
        ends = 1 if _has_end(self.meant.search.pattern) else 0
        if self.hung:
            return self.within is not None and self.over <= time and self.bound + ends <= known
        return self.looked + ends < known


def _has_end(pattern: Pattern) -> bool:
    match pattern:
        case Anchor(at):
            return at == "end"
        case Sequential(parts) | Alternatives(parts):
            return any(map(_has_end, parts))
        case Repeated(part) | Excluded(part):
            return _has_end(part)
    return False


def ahead(formulas: Sequence[Any]) -> int:
    """How many rows on these look."""
    return max([0, *(getattr(slot, "away", 0) for each in formulas for _, slot in each.slots)])


@dataclass
class Course:
    """All matches among the rows of one key: all there are, or those that are final at the mark."""

    meant: Meant
    rows: Sequence[Row]
    mark: int
    final: bool = False
    matches: list[Match] = field(default_factory=list)

    def run(self) -> list[Match]:
        number, told, start, closed = 0, 0, 0, len(self.rows)
        known = len([row for row in self.rows if oracle.moment(row["at"]) < self.mark])
        while start < len(self.rows):
            attempt = Attempt(self.meant, self.rows, start, self.mark)
            best = attempt.best()
            if self.final and not (attempt.is_certain(known, self.mark) and self.is_told(attempt, best, known)):
                closed = start
                break
            if best is not None:
                number += 1
                self.matches.append(Match(start, best, number))
                told = max(told, start + len(best))
                start = self.skip(start, best)
                continue
            near, begun = self.meant.search.near, attempt.beginning
            if near and begun is not None and attempt.over <= self.mark and start >= told:
                self.matches.append(Match(start, begun, near=True))
                told = start + len(begun)
            start += 1
        if self.meant.search.shown == "all_with_unmatched":
            met = {at for each in self.matches for at in range(each.start, each.start + max(len(each.mapped), 1))}
            self.matches += [Match(at, none=True) for at in range(closed) if at not in met]
        return self.matches

    def is_told(self, attempt: Attempt, best: Mapped | None, known: int) -> bool:
        """Whether all rows are known that measures look at."""
        mapped = attempt.beginning if best is None and self.meant.search.near else best
        if mapped is None or self.mark == FOREVER:
            return True
        return attempt.start + max(len(mapped), 1) + ahead(self.meant.search.measures) <= known

    def skip(self, start: int, mapped: Mapped) -> int:
        to = self.meant.search.skip
        if not mapped or to.to == "next_row":
            return start + 1
        if to.to == "past_last":
            return start + len(mapped)
        rows = [start + at for at, (name, _) in enumerate(mapped) if name in to.variables]
        target = None if not rows else rows[0] if to.to == "first" else rows[-1]
        if target is None or target == start:
            raise Endless
        return target


def value(slot: Slot, rows: Sequence[Row], match: Match, so_far: int) -> Any:
    """A slot, when so many rows of a match are mapped."""
    if isinstance(slot, MatchNumber):
        return match.number
    if isinstance(slot, Stage):
        return match.mapped[-1][0] if match.near else None
    assert isinstance(slot, Navigation | Aggregated | Classifier)
    seen = len(match.mapped) if slot.final else so_far
    mine = [at for at in range(seen) if not slot.variables or match.mapped[at][0] in slot.variables]
    if isinstance(slot, Aggregated):
        chosen = [rows[match.start + at] for at in mine]
        return oracle.aggregate(Measure("", slot.function, slot.arguments, slot.fraction), chosen)
    at = slot.steps if slot.which == "first" else -1 - slot.steps
    if len(mine) <= slot.steps:
        return None
    if isinstance(slot, Classifier):
        there = mine[at] + slot.away
        return match.mapped[there][0] if 0 <= there < seen else None
    row = match.start + mine[at] + slot.away
    return rows[row][slot.argument] if 0 <= row < len(rows) else None


def shown(
    meant: Meant, rows: Sequence[Row], mark: int, *, final: bool = False
) -> Iterator[tuple[int | None, Row, tuple[Any, ...]]]:
    """What is to be seen of a key: the place of the row if rows are shown, the row, the measures."""
    search = meant.search
    for match in Course(meant, rows, mark, final).run():
        lines: list[tuple[int, int]]
        if search.shown == "one":
            lines = [(match.start, len(match.mapped))]
        elif match.none:
            lines = [(match.start, 0)]
        elif not match.mapped:
            lines = [(match.start, 0)] if search.shown in ("all_with_empty", "all_with_unmatched") else []
        else:
            lines = [(match.start + at, at + 1) for at, (_, excluded) in enumerate(match.mapped) if not excluded]
        for row, so_far in lines:
            values = tuple(
                means({name: value(slot, rows, match, so_far) for name, slot in each.slots})
                for each, means in zip(search.measures, meant.measures, strict=True)
            )
            yield None if search.shown == "one" else row, rows[row], values
