"""Arrays of numbers as the index needs them: groups of rows by a number, and numbers for pairs of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_SPARSE = 16
"""A table may have so many times as many places as there are numbers in it."""


@dataclass(frozen=True)
class Groups:
    """Values by the group that they are of, all in one array; groups are numbers from zero on."""

    starts: Ints
    values: Ints

    @classmethod
    def of(cls, groups: Ints, values: Ints, count: int) -> Groups:
        """Put values into their groups."""
        order = np.argsort(groups, kind="stable")
        sizes = np.bincount(groups, minlength=count)
        return cls(np.concatenate([[0], np.cumsum(sizes)]), values[order])

    def sizes(self, groups: Ints) -> Ints:
        """How many values these groups have."""
        return self.starts[groups + 1] - self.starts[groups]

    def spread(self, groups: Ints) -> tuple[Ints, Ints]:
        """Each place in ``groups`` with each value of the group there: the places, and the values."""
        sizes = self.sizes(groups)
        places = np.repeat(np.arange(len(groups)), sizes)
        within = np.arange(len(places)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return places, self.values[self.starts[groups][places] + within]


@dataclass(frozen=True)
class Numbers:
    """Some numbers, each with a number of its own from zero on; others have none."""

    known: Ints
    table: Ints | None

    @classmethod
    def of(cls, wanted: Ints, limit: int) -> Numbers:
        """Number these, which are below ``limit`` and not negative."""
        known = np.unique(wanted)
        if limit > _SPARSE * len(known) + 1024:
            return cls(known, None)
        table = np.full(limit, -1, np.int64)
        table[known] = np.arange(len(known))
        return cls(known, table)

    def __len__(self) -> int:
        return len(self.known)

    def find(self, wanted: Ints) -> Ints:
        """The number of each; -1 of one that has none."""
        if self.table is not None:
            return self.table[wanted]
        if not len(self.known):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(self.known, wanted), len(self.known) - 1)
        return np.where(self.known[at] == wanted, at, -1)
