"""The search of patterns whose conditions look at the row, its neighbours and the first row of the match: one pass, no way back.

All ways through the pattern are followed at once, the preferred one first. Ways that have come to the same place have the same
future, so only the preferred one is kept, and the list of places says all. The lists met so far make a table that grows as it is
used: a row costs a look into it, whatever the pattern. Which variable each row was mapped to is found afterwards, on the way back.
"""

from __future__ import annotations

import numpy as np

from millstream.kernel.pattern.automaton import ACCEPT, AT_START, Automaton
from millstream.kernel.pattern.closures import Compute, Unsure
from millstream.kernel.pattern.conditions import Conditions
from millstream.kernel.pattern.layout import Positions

_DEAD, _UNKNOWN = 0, -1
_LONG = 16
"""Rows behind which a start goes far."""
_SHORT = 12
"""Rows of a match whose mapping is remembered by what is known of them."""


_STILL = 64
"""Rows that leave the state as it is, behind which many are looked at at once."""
_RUN, _RUN_MOST = 512, 32_768
"""So many at first, and at most."""
_DENSE = 1 << 16
"""Bits that are small numbers are counted, not sorted."""
_RUN_STEPS, _RUN_ROWS = 40, 60
"""A run of rows costs as much as so many rows one by one, and one more for so many of its rows."""
STEPS = 5_000_000
"""Rows that may be asked about for one key in one batch, where what was asked before is of no use."""


class TooLong(Exception):
    """More than :data:`STEPS`; told with the row where the start was."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Failed(Exception):
    """Spark would fail here: the variable, and the row."""

    def __init__(self, variable: str, row: int) -> None:
        super().__init__(variable, row)
        self.variable, self.row = variable, row


class _Row(dict[int, int]):
    """From the bits of a row to the state behind it, twice, and one more where the pattern ends there."""

    def __missing__(self, _bits: int) -> int:
        return _UNKNOWN


class Table:
    """States of a search and the ways between them; they depend on the pattern alone, so that batches share them."""

    MOST = 20_000
    """States that are remembered."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.variables = automaton.variables()
        number = {name: index for index, name in enumerate(self.variables)}
        self.bit = [number[place.variable] for place in automaton.places]
        self.clear()

    def clear(self) -> None:
        """Forget all states."""
        self.threads: list[tuple[int, ...]] = [()]
        self.rows: list[_Row] = [_Row()]
        self.last: list[dict[tuple[int, int], int]] = [{}]
        self.parents: dict[tuple[int, int, int], tuple[tuple[int, ...], int]] = {}
        self.short: dict[tuple[int, ...], list[int]] = {}
        """Of short matches, by the bits of their rows, what the rows are mapped to."""
        self._numbers: dict[tuple[int, ...], int] = {(): _DEAD}
        self.initial = [self._coded(self.automaton.first(where)) for where in (0, AT_START)]

    def _coded(self, places: tuple[int, ...]) -> int:
        ends = bool(places) and places[-1] == ACCEPT
        return 2 * self._state(places[:-1] if ends else places) + ends

    def _state(self, places: tuple[int, ...]) -> int:
        if places not in self._numbers:
            self._numbers[places] = len(self.threads)
            self.threads.append(places)
            self.rows.append(_Row())
            self.last.append({})
        return self._numbers[places]

    def behind(self, state: int, bits: int, where: int = 0) -> int:
        """The state behind a row of these bits, twice, and one more where the pattern ends there; Unsure names the variable."""
        made: dict[int, int] = {}
        accepted = -1
        for index, place in enumerate(self.threads[state]):
            variable = self.bit[place]
            if not bits >> variable & 1:
                continue
            if bits >> len(self.variables) + variable & 1:
                raise Failed(self.variables[variable], -1)
            for follower in self.automaton.follow(place, where):
                if follower == ACCEPT:
                    accepted = index
                    break
                made.setdefault(follower, index)
            if accepted >= 0:
                break
        coded = 2 * self._state(tuple(made)) + (accepted >= 0)
        self.parents[state, bits, where] = (tuple(made.values()), accepted)
        if where:
            self.last[state][bits, where] = coded
        else:
            self.rows[state][bits] = coded
        return coded


class Deterministic:
    """A search over some rows; what :meth:`run` found besides is told by ``reached`` and ``alive``."""

    def __init__(self, table: Table, conditions: Conditions) -> None:
        if len(table.threads) + len(table.short) > Table.MOST:
            table.clear()
        self.table, self.conditions, self.masks = table, conditions, conditions.masks
        self.reached = 0
        """The last row that was looked at."""
        self.alive = False
        """Whether the bound was reached with a way to go on that is preferred to what was found."""
        self._ran = (0, 0, 0, 0)
        self._trail: tuple[list[int], int] = ([], 0)
        self._left, self._group = STEPS, -1

    def run(self, start: int, bound: int, where_first: int = 0, where_last: int = 0) -> int:
        """Search from a row on, before the bound; give the end of the match, or -1."""
        table, masks = self.table, self.masks
        self._ran = (start, bound, where_first, where_last)
        if self.conditions.looks_at_start:
            return self._run_with_start(start, bound, where_first, where_last)
        coded = table.initial[where_first != 0]
        best = start if coded & 1 else -1
        state = coded >> 1
        self.alive, self.reached = False, start
        if not state:
            return best
        rows = table.rows
        row, at = rows[state], start
        last = bound - 1 if where_last else bound
        near = min(last, start + _LONG)
        while at < near:
            coded = row[masks[at]]
            if coded < 0:
                coded = self._behind(state, at, masks[at])
            at += 1
            if coded & 1:
                best = at
            state = coded >> 1
            if not state:
                self.reached = at - 1
                return best
            row = rows[state]
        if at < last:
            at, state, best = self._go_on(at, last, state, best)
            if not state:
                self.reached = at - 1
                return best
        if at < bound:
            coded = self._behind(state, at, masks[at], where_last)
            if coded & 1:
                best = bound
            state = coded >> 1
        self.reached, self.alive = bound - 1, state != _DEAD
        return best

    def _go_on(self, at: int, last: int, state: int, best: int) -> tuple[int, int, int]:
        """Go on with a start that goes far: to where it ends, in which state, and where the last match ends.

        The states that the last such start went through are remembered as far as no match ended behind them. One that comes to the same
        state in the same row goes the same way from there, so rows are not looked at again and again.
        """
        table, masks = self.table, self.masks
        trail, base = [state], at
        known, begin = self._trail
        while at < last:
            met = at - begin
            if trail is not known and 0 <= met < len(known) and known[met] == state and begin + len(known) - 1 <= last:
                trail, base = known, begin
                at, state = begin + len(known) - 1, known[-1]
                if not state:
                    break
                continue
            coded = table.rows[state][masks[at]]
            if coded < 0:
                coded = self._behind(state, at, masks[at])
            at += 1
            state = coded >> 1
            if coded & 1:
                best, trail, base = at, [], at
            trail.append(state)
            if not state:
                break
        self._trail = trail, base
        return at, state, best

    def _behind(self, state: int, at: int, bits: int, where: int = 0) -> int:
        table = self.table
        known = table.last[state].get((bits, where), _UNKNOWN) if where else table.rows[state][bits]
        if known >= 0:
            return known
        try:
            return table.behind(state, bits, where)
        except Failed as failed:
            raise Failed(failed.variable, at) from None

    def _run_with_start(self, start: int, bound: int, where_first: int, where_last: int) -> int:
        coded = self.table.initial[where_first != 0]
        best = start if coded & 1 else -1
        state, at = coded >> 1, start
        self._begin(start)
        last, still, since = bound - 1 if where_last else bound, 0, -1
        while state and at < bound:
            if still == _STILL and last - at > _STILL:
                skipped, best = self._stay(state, at, last, start, best)
                self._left += skipped - at
                at, still = skipped, 0
                if at == bound:
                    break
            coded = self._behind(state, at, self._bits(state, at, start), where_last if at == bound - 1 else 0)
            at += 1
            if coded & 1:
                best = at
            since, state = state, coded >> 1
            still = still + 1 if state == since else 0
        self.reached, self.alive = max(start, at - 1), state != _DEAD
        self._left -= at - start
        if self._left < 0:
            raise TooLong(start)
        return best

    def _stay(self, state: int, at: int, last: int, start: int, best: int) -> tuple[int, int]:
        """Go over rows that leave the state as it is, many at once: to the first that may not, and where the last match ends."""
        runs, size = self.conditions.runs, _RUN
        variables = {self.table.bit[place] for place in self.table.threads[state]}
        while at < last and runs is not None and not variables & runs.slow:
            bits, doubtful = runs.bits(variables, at, min(at + size, last), start)
            self._left -= _RUN_STEPS + len(bits) // _RUN_ROWS
            coded = self._all_coded(state, bits)
            leaves = np.flatnonzero((coded >> 1 != state) | doubtful)
            stays = int(leaves[0]) if len(leaves) else len(bits)
            ends = np.flatnonzero(coded[:stays] & 1)
            best = at + int(ends[-1]) + 1 if len(ends) else best
            at += stays
            if len(leaves):
                break
            size = min(4 * size, _RUN_MOST)
        return at, best

    def _all_coded(self, state: int, bits: Positions) -> Positions:
        """What :meth:`_behind` is for rows of these bits."""
        most = int(bits.max())
        if most >= _DENSE:
            kinds, kind = np.unique(bits, return_inverse=True)
            found: Positions = np.array([self._coded(state, each) for each in kinds.tolist()])[kind]
            return found
        coded = np.zeros(most + 1, np.int64)
        for each in np.flatnonzero(np.bincount(bits)).tolist():
            coded[each] = self._coded(state, each)
        return coded[bits]

    def _coded(self, state: int, bits: int) -> int:
        """As :meth:`_behind`; none where Spark would fail, so that the row is asked for itself."""
        try:
            return self._behind(state, 0, bits)
        except Failed:
            return _UNKNOWN

    def _begin(self, start: int) -> None:
        here, layout = self.conditions.here, self.conditions.layout
        group = int(layout.group[start])
        if group != self._group:
            self._group, self._left = group, STEPS
            here.low, here.high = int(layout.first[group]), int(layout.end[group])

    def _bits(self, state: int, at: int, start: int) -> int:
        """The bits of a row for the variables that may come, once it is known where the match began."""
        bits, of_start, table = self.masks[at], self.conditions.of_start, self.table
        for variable in {table.bit[place] for place in table.threads[state]}:
            if of_start[variable] and bits >> variable & 1:
                if bits >> len(table.variables) + variable & 1:
                    raise Failed(table.variables[variable], at)
                if not holds(of_start[variable], at, start, table.variables[variable]):
                    bits &= ~(1 << variable)
        return bits

    def mapping(self, end: int) -> list[int]:
        """The places of the rows of the match that ends there, in order."""
        start, bound, where_first, where_last = self._ran
        if end - start > _SHORT or self.conditions.looks_at_start or (where_last and end == bound):
            return self._traced(end, matched=True)
        shape = (where_first, *self.masks[start:end])
        known = self.table.short.get(shape)
        if known is None:
            known = self.table.short[shape] = self._traced(end, matched=True)
        return known

    def beginning(self) -> list[int]:
        """The places of the rows up to the bound, on the preferred way among those that could have gone on."""
        return self._traced(self._ran[1], matched=False)

    def _traced(self, end: int, *, matched: bool) -> list[int]:
        table, masks = self.table, self.masks
        start, bound, where_first, where_last = self._ran
        state = table.initial[where_first != 0] >> 1
        ways: list[tuple[int, tuple[tuple[int, ...], int]]] = []
        dynamic = self.conditions.looks_at_start
        for at in range(start, end):
            where = where_last if at == bound - 1 else 0
            bits = self._bits(state, at, start) if dynamic else masks[at]
            coded = self._behind(state, at, bits, where)
            ways.append((state, table.parents[state, bits, where]))
            state = coded >> 1
        index, labels = 0, []
        for number, (state, (parents, accepted)) in enumerate(reversed(ways)):
            index = accepted if matched and not number else parents[index]
            labels.append(table.threads[state][index])
        labels.reverse()
        return labels


def holds(parts: list[Compute], row: int, start: int, variable: str) -> bool:
    """Whether all parts of a condition are true; null is not, and Failed where Spark would fail."""
    try:
        return all(part(row, start) is True for part in parts)
    except Unsure:
        raise Failed(variable, row) from None
