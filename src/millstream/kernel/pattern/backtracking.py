"""The search of patterns whose conditions look at what was matched before: one way after the other, the preferred one first.

Two ways that have come to one place need not have one future here, so nothing is remembered, and a pattern may take time without end.
A number of steps for each key and batch is all that it is given.
"""

from __future__ import annotations

from millstream.kernel.pattern.automaton import Automaton
from millstream.kernel.pattern.conditions import Conditions
from millstream.kernel.pattern.deterministic import STEPS, Failed, TooLong, holds


class Backtracking:
    """A search over some rows, with the same answers as :class:`~millstream.kernel.pattern.deterministic.Deterministic`."""

    def __init__(self, automaton: Automaton, conditions: Conditions) -> None:
        self.automaton, self.conditions = automaton, conditions
        self.masks, self.here = conditions.masks, conditions.here
        number = conditions.number
        self.bit = [number[place.variable] for place in automaton.places]
        self.reached, self.alive = 0, False
        self._left, self._group = STEPS, -1
        self._labels: list[int] = []
        self._beginning: list[int] = []

    def run(self, start: int, bound: int, where_first: int = 0, where_last: int = 0) -> int:
        """Search from a row on, before the bound; give the end of the match, or -1."""
        self._begin(start)
        automaton, labels, masks, bit = self.automaton, self.here.labels, self.masks, self.bit
        half, at, reached, left = len(self.conditions.variables), start, start, self._left
        lists, nexts = [automaton.first(where_first)], [0]
        found = -1
        while lists:
            places, number = lists[-1], nexts[-1]
            if number == len(places):
                lists.pop()
                nexts.pop()
                if lists:
                    self._back(labels.pop())
                    at -= 1
                continue
            nexts[-1] = number + 1
            place = places[number]
            if place < 0:
                found = at
                break
            if at == bound:
                if not self.alive:
                    self.alive, self._beginning = True, list(labels)
                continue
            left -= 1
            if left < 0:
                raise TooLong(start)
            reached = max(reached, at)
            bits, variable = masks[at], bit[place]
            if not bits >> variable & 1:
                continue
            if bits >> half + variable & 1:
                raise Failed(self.conditions.variables[variable], at)
            if self._take(place, variable, at, start):
                at += 1
                lists.append(automaton.follow(place, where_last if at == bound else 0))
                nexts.append(0)
        self._labels = list(labels)
        while labels:
            self._back(labels.pop())
        self.reached, self._left = reached, left
        return found

    def mapping(self, end: int) -> list[int]:
        """The places of the rows of the match that was found, in order."""
        return self._labels[: end - self.here.start]

    def beginning(self) -> list[int]:
        """The places of the rows up to the bound, on the preferred way among those that could have gone on."""
        return self._beginning

    def _begin(self, start: int) -> None:
        here, layout = self.here, self.conditions.layout
        group = int(layout.group[start])
        if group != self._group:
            self._group, self._left = group, STEPS
            here.low, here.high = int(layout.first[group]), int(layout.end[group])
        here.start, self.alive = start, False

    def _take(self, place: int, variable: int, row: int, start: int) -> bool:
        """Map a row to the variable of a place, if its condition holds then."""
        conditions = self.conditions
        name = conditions.variables[variable]
        if conditions.of_start[variable] and not holds(conditions.of_start[variable], row, start, name):
            return False
        self.here.labels.append(place)
        for running in conditions.pushes[variable]:
            running.push(row)
        if not conditions.of_match[variable] or holds(conditions.of_match[variable], row, start, name):
            return True
        self._back(self.here.labels.pop())
        return False

    def _back(self, place: int) -> None:
        for running in self.conditions.pushes[self.bit[place]]:
            running.pop()
