"""All matches of a pattern among the rows of many keys: start after start, each key from its resume place on.

The outcome of a start is *certain* at some time if no row at or after it can change it: the search looked at nothing that may still
come. The first start whose outcome is not certain is where a key resumes; whatever lies behind it may turn out otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from millstream.errors import PipelineError
from millstream.kernel.pattern.automaton import ACCEPT, AT_END, AT_START, EXPIRED, Automaton
from millstream.kernel.pattern.backtracking import Backtracking
from millstream.kernel.pattern.conditions import Conditions
from millstream.kernel.pattern.deterministic import STEPS, Deterministic, Failed, Table, TooLong
from millstream.kernel.pattern.formulas import condition_parts, reach
from millstream.kernel.pattern.layout import Flags, Layout, Positions
from millstream.kernel.state.store import FOREVER, NEVER
from millstream.relation.pattern import Search

_FEW, _AHEAD = 8, 3
"""So many rows are looked at before a search is begun, if there are no more places than that for each."""


@dataclass(frozen=True)
class Where:
    """Where each key resumes: the row, how many matches lie before it, up to which row something was told, whether rows are gone."""

    resume: Positions
    number: Positions
    told: Positions
    begun: Flags


@dataclass
class Found:
    """Matches in order: rows from ``start`` up to ``end``, the places that they are mapped to one after the other in ``places``."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    number: list[int] = field(default_factory=list)
    near: list[bool] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, start: int, end: int, number: int, near: bool, places: list[int]) -> None:
        """One more."""
        self.start.append(start)
        self.end.append(end)
        self.number.append(number)
        self.near.append(near)
        self.places += places


@dataclass(frozen=True)
class Seen:
    """What a scan gives: what it found, where keys resume, and up to which row of each key what it found is all there is."""

    found: Found
    where: Where
    until: Positions
    candidates: Positions


@dataclass(frozen=True)
class Limits:
    """What is certain at some time: of each key the row that may be looked at no more, of each candidate whether its time has run out."""

    time: int
    rows: list[int]
    known: list[int]
    over: list[bool]


class Scanner:
    """The scans of one search."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.automaton = Automaton.of(search.pattern)
        self.table = Table(self.automaton)
        self.before, self.after = reach(slot for each in search.conditions for _, slot in each.slots)
        before, self.shows_after = reach(slot for each in search.measures for _, slot in each.slots)
        self.before = max(self.before, before)
        known = set(self.automaton.variables())
        self.targets = [place.variable in search.skip.variables for place in self.automaton.places]
        self._depth = self._looks_ahead()
        if search.skip.variables and not known & set(search.skip.variables):
            raise PipelineError(f"pattern {search.name}: AFTER MATCH SKIP TO a variable that is not in the pattern")

    def scan(self, layout: Layout, where: Where, mark: int, settled: int | None, *, final: bool) -> Seen:
        """Find what there is at a mark: all of it, or what is ``final``. ``settled`` is the time before which no row comes any more."""
        parts = condition_parts(self.search, self.automaton, layout.rows.schema)
        conditions = Conditions(parts, self.automaton, layout)
        candidates = self._candidates(conditions, layout, where)
        bounds = self._bounds(layout, candidates)
        shown = self._limits(layout, candidates, bounds, mark) if final else None
        kept = None if settled is None else self._limits(layout, candidates, bounds, settled)
        back = conditions.looks_back
        search = Backtracking(self.automaton, conditions) if back else Deterministic(self.table, conditions)
        run = _Run(self, layout, where, mark, search, candidates, bounds, shown, kept)
        try:
            run.all()
        except Failed as failed:
            raise PipelineError(
                f"pattern {self.search.name}, {layout.key(failed.row)}: the condition of {failed.variable} has no value in row "
                f"{failed.row - int(layout.first[layout.group[failed.row]]) + 1} of the key: a division by zero, or a number too large",
                hint="guard it: nullif(x, 0), or a cast to a wider type",
            ) from None
        except TooLong as long:
            raise PipelineError(
                f"pattern {self.search.name}, {layout.key(long.row)}: more than {STEPS:,} steps for one key in one batch",
                hint="write it so that there are fewer ways to match the same rows, compare with fewer rows of the match, or use WITHIN",
            ) from None
        resume = where.resume if settled is None else self._resume(layout, where, run, settled)
        until = self._resume(layout, where, run, mark, shown=True) if final else layout.end
        number, told = run.number_kept, run.told_kept
        return Seen(run.found, Where(resume, number, np.maximum(told, resume), where.begun), until, candidates)

    def _candidates(self, conditions: Conditions, layout: Layout, where: Where) -> Positions:
        """The rows that a match may begin with, as far as their conditions and those of the next few rows tell."""
        height = layout.rows.height
        every = np.ones(height, np.bool_)
        same = layout.group[1:] == layout.group[:-1]
        known: dict[tuple[int, int], Flags] = {}

        def alive(place: int, rows: int) -> Flags:
            """Where a row and those behind it may be the first so many rows from a place on."""
            if (place, rows) not in known:
                flags = conditions.true.get(conditions.number[self.automaton.places[place].variable], every)
                if rows > 1:
                    behind = np.zeros(height, np.bool_)
                    behind[:-1] = np.logical_or.reduce([alive(each, rows - 1)[1:] for each in self._followers(place)])
                    behind[:-1] &= same
                    flags = flags & behind
                known[place, rows] = flags
            return known[place, rows]

        heads = self._heads()
        chosen = every
        if ACCEPT not in heads:
            chosen = np.logical_or.reduce([np.zeros(height, np.bool_), *(alive(each, self._depth) for each in heads)])
        rows = np.flatnonzero(chosen)
        found: Positions = rows[rows >= where.resume[layout.group[rows]]]
        return found

    def _heads(self) -> set[int]:
        return {*self.automaton.first(), *(self.automaton.first(AT_START) if self.automaton.reads_start else ())}

    def _followers(self, place: int) -> set[int]:
        """The places behind one, wherever the match is then."""
        return {each for where in range(AT_START) for each in self.automaton.follow(place, where)}

    def _looks_ahead(self) -> int:
        """How many rows tell that no match begins with a row: no more than each match has, so that it is known before any match is."""
        # Where more is told than matches, each start is looked at as long as it may change.
        told = self.search.near or self.search.shown == "all_with_unmatched"
        level, depth = self._heads(), 1
        if told or self.after or self.automaton.reads_end:
            return depth
        while depth < _AHEAD and len(level) <= _FEW and ACCEPT not in level:
            level = {behind for place in level for behind in self._followers(place)}
            if not level or ACCEPT in level or len(level) > _FEW:
                break
            depth += 1
        return depth

    def _bounds(self, layout: Layout, rows: Positions) -> Positions:
        """For each of these rows the first one that is too late for a match that begins with it."""
        end = layout.end[layout.group[rows]]
        within, times = self.search.within, layout.times
        if within is None:
            return end
        assert times is not None  # noqa: S101
        low, high, wanted = rows + 1, end.copy(), times[rows] + within
        while len(open_ := np.flatnonzero(low < high)):
            middle = (low[open_] + high[open_]) // 2
            below = times[middle] < wanted[open_]
            low[open_[below]] = middle[below] + 1
            high[open_[~below]] = middle[~below]
        return low

    def _limits(self, layout: Layout, candidates: Positions, bounds: Positions, time: int) -> Limits:
        """What is certain at a time."""
        group = layout.group[candidates]
        if time >= FOREVER:
            always = [1 << 62] * len(candidates)
            return Limits(time, always, always, [True] * len(candidates))
        known = self.known(layout, time)
        rows = known - self.after
        over = np.zeros(len(candidates), np.bool_)
        if self.search.within is not None and layout.times is not None:
            over = layout.times[candidates] + self.search.within <= time
            # Whether the partition ends there is never known before the end of all time.
            over &= bounds + self.automaton.reads_end <= rows[group]
        return Limits(time, rows[group].tolist(), known[group].tolist(), over.tolist())

    def known(self, layout: Layout, time: int) -> Positions:
        """The first row of each key at or after a time."""
        if time >= FOREVER:
            return layout.end
        if layout.times is None or time <= NEVER:
            return layout.first
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(layout.times < time)])
        found: Positions = layout.first + before[layout.end] - before[layout.first]
        return found

    def _resume(self, layout: Layout, where: Where, run: _Run, time: int, *, shown: bool = False) -> Positions:
        """The first start of each key whose outcome is not certain at a time."""
        known = self.known(layout, time)
        if time >= FOREVER:
            reached = layout.end
        else:
            reached = known - self.after - self.automaton.reads_end - (self._depth - 1)
            if self._depth > 1 and self.search.within is not None and layout.times is not None:
                gone = layout.times + self.search.within <= time
                before = np.concatenate([np.zeros(1, np.int64), np.cumsum(gone)])
                reached = np.maximum(reached, layout.first + before[layout.end] - before[layout.first])
        done, opened = (run.shown_done, run.shown_open) if shown else (run.kept_done, run.kept_open)
        found: Positions = np.maximum(done, np.minimum(np.maximum(reached, where.resume), opened))
        return found


class _Run:
    """One scan: candidates one after the other."""

    def __init__(
        self,
        scanner: Scanner,
        layout: Layout,
        where: Where,
        mark: int,
        search: Deterministic | Backtracking,
        candidates: Positions,
        bounds: Positions,
        shown: Limits | None,
        kept: Limits | None,
    ) -> None:
        self.scanner, self.layout, self.where, self.mark = scanner, layout, where, mark
        self.search, self.shown, self.kept = search, shown, kept
        self.candidates, self.bounds = candidates, bounds
        self.found = Found()
        self.number_kept, self.told_kept = where.number.copy(), where.told.copy()
        self.kept_done, self.shown_done = where.resume.copy(), where.resume.copy()
        self.kept_open, self.shown_open = layout.end.copy(), layout.end.copy()

    def all(self) -> None:
        """Go through all candidates."""
        reads = self.scanner.automaton.reads_end or self.scanner.automaton.reads_expiry
        skip, near = self.scanner.search.skip.to, self.scanner.search.near
        after, reads_end = self.scanner.shows_after, int(self.scanner.automaton.reads_end)
        run, found, search = self.search.run, self.found, self.search
        shown, kept, expires = self.shown, self.kept, self.scanner.automaton.reads_expiry
        ends = self.layout.end
        previous, position, number, told, keeps = -1, 0, 0, 0, kept is not None
        for at, (start, group, bound, first) in enumerate(self._each()):
            if group != previous:
                previous, position, keeps = group, 0, kept is not None
                number, told = int(self.where.number[group]), int(self.where.told[group])
            if start < position:
                continue
            last = self._last(start, bound, int(ends[group])) if reads else 0
            end = run(start, bound, first, last)
            alive, reached = search.alive, search.reached + reads_end
            hanging = alive or (expires and search.reached == bound - 1)
            shows = end >= 0 or (near and alive)
            behind = max(end, start + 1 if end >= 0 else bound) + after if shows else start + 1
            if shown is not None and not _certain(shown, at, hanging, reached, behind):
                self.shown_open[group] = start
                self.kept_open[group] = min(start, int(self.kept_open[group]))
                position = 1 << 62
                continue
            keeping = keeps and kept is not None and _certain(kept, at, hanging, reached, behind)
            if keeps and not keeping:
                self.kept_open[group], keeps = start, False
            if end < 0:
                position = start + 1
                if near and alive and start >= told and self._is_over(start):
                    found.add(start, bound, number, True, search.beginning())
                    told = bound
            else:
                number += 1
                places = search.mapping(end) if end > start else []
                found.add(start, end, number, False, places)
                told = max(told, end)
                position = end if skip == "past_last" and end > start else start + 1
                if end > start and skip in ("first", "last"):
                    position = self._target(start, places)
            self.shown_done[group] = position
            if keeping:
                self.kept_done[group], self.number_kept[group], self.told_kept[group] = position, number, told

    def _each(self) -> Iterator[tuple[int, int, int, int]]:
        """For each candidate: the row, its key, its bound, and whether it is the first row of its key."""
        rows, layout = self.candidates, self.layout
        groups = layout.group[rows]
        firsts = [0] * len(rows)
        if self.scanner.automaton.reads_start:
            firsts = np.where((layout.first[groups] == rows) & ~self.where.begun[groups], AT_START, 0).tolist()
        return zip(rows.tolist(), groups.tolist(), self.bounds.tolist(), firsts, strict=True)

    def _last(self, start: int, bound: int, end: int) -> int:
        """Where the match is behind the last row that it may have."""
        where = AT_END if bound == end else 0
        within = self.scanner.search.within
        if within is not None and (bound < end or self._is_over(start)):
            where |= EXPIRED
        return where

    def _is_over(self, start: int) -> bool:
        """Whether time has gone on so far that no match can begin here any more."""
        within, times = self.scanner.search.within, self.layout.times
        return within is not None and times is not None and int(times[start]) + within <= self.mark

    def _target(self, start: int, places: list[int]) -> int:
        """Where the search goes on behind a match that it skips into."""
        targets = self.scanner.targets
        order = range(len(places)) if self.scanner.search.skip.to == "first" else range(len(places) - 1, -1, -1)
        for at in order:
            if targets[places[at]]:
                if at:
                    return start + at
                self._refuse(
                    start,
                    "that is the first row of the match itself, {}: the search would never end",
                    "skip to a variable that no match begins with, or TO NEXT ROW",
                )
        return self._refuse(
            start,
            "the match that begins in {} has no such row",
            "skip to a variable that every match has, or PAST LAST ROW",
        )

    def _refuse(self, start: int, what: str, hint: str) -> NoReturn:
        search, layout = self.scanner.search, self.layout
        row = f"row {start - int(layout.first[layout.group[start]]) + 1} of those at hand"
        to = f"{search.skip.to.upper()} {' or '.join(search.skip.variables)}"
        raise PipelineError(
            f"pattern {search.name}, {layout.key(start)}: AFTER MATCH SKIP TO {to}: {what.format(row)}", hint=hint
        )


def _certain(limits: Limits, at: int, alive: bool, reached: int, behind: int) -> bool:
    """Whether the outcome of a candidate can change no more."""
    if limits.time >= FOREVER:
        return True
    return (limits.over[at] if alive else reached < limits.rows[at]) and behind <= limits.known[at]
