"""Alternatives of one shape: they say the same kinds of things of the same columns, and differ in nothing but constants.

They are rows of a table, and what an event meets is found as a join finds it: by the columns that must be equal, one after the
other; then by one word of each row, the rarest; or by a range. What else a row demands is compared with those few that are found.
So the cost goes with the shapes and with what is found, not with the rows. A range is looked for in a tree of ranges: each is cut into
a few that begin and end at multiples of their lengths, which are powers of two, and of such an event lies in one of each length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.kernel.percolation.arrays import Groups, Ints, Numbers
from millstream.kernel.percolation.conditions import Alternative, Demand
from millstream.kernel.percolation.values import NULL, Literals, Vocabulary, Words

MOST_PAIRS = 1 << 21
"""So many pairs of an event and a row are compared at a time."""

_FEW = 16
"""Rows of equal values, on average, of which all are compared rather than looked for by a range."""


class Says(NamedTuple):
    """What kinds of things a demand says of a column."""

    column: str
    equal: bool
    ranged: bool
    others: bool
    words: bool
    lacking: bool

    @classmethod
    def of(cls, column: str, demand: Demand) -> Says:
        """Of a demand. One that says no more than that there is a value is a range without ends."""
        equal, words = demand.null or demand.values is not None, bool(demand.words)
        bounded = demand.low is not None or demand.high is not None
        ranged = not equal and (bounded or not words)
        return cls(column, equal, ranged, bool(demand.others), words, bool(demand.lacking))


Shape: TypeAlias = tuple[Says, ...]


def shape_of(alternative: Alternative) -> Shape:
    """The shape of an alternative."""
    return tuple(Says.of(name, alternative[name]) for name in sorted(alternative))


@dataclass(frozen=True)
class Events:
    """What the index looks at of some events: their codes and their words, by column."""

    count: int
    codes: Mapping[str, Ints]
    words: Mapping[str, Words]


@dataclass(frozen=True)
class _Tree:
    """The ranges of some rows, cut into such as begin and end at multiples of their lengths."""

    column: str
    ends: Ints
    size: int

    @classmethod
    def of(cls, column: str, low: Ints, high: Ints) -> _Tree:
        ends = np.unique(np.concatenate([low, high + 1]))
        return cls(column, ends, 1 << int(len(ends) + 1).bit_length())

    def place(self, codes: Ints) -> Ints:
        """Between which ends a code lies."""
        return np.searchsorted(self.ends, codes, side="right")

    def cut(self, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """The parts of ranges: whose they are, and which."""
        rows, left, right = np.arange(len(low)), self.place(low) + self.size, self.place(high) + 1 + self.size
        owners, parts = [], []
        while len(rows):
            for side, odd in ((left, left & 1), (right - 1, right & 1)):
                chosen = odd.astype(bool)
                owners.append(rows[chosen])
                parts.append(side[chosen])
            left, right = (left + 1) >> 1, right >> 1
            more = left < right
            rows, left, right = rows[more], left[more], right[more]
        return np.concatenate(owners), np.concatenate(parts)

    def over(self, codes: Ints) -> Iterator[Ints]:
        """For each length the part that each code lies in."""
        parts = self.place(codes) + self.size
        while parts.size and parts[0] > 0:
            yield parts
            parts = parts >> 1


@dataclass
class Rows:
    """All alternatives of one shape; ``queries`` says whose each is."""

    shape: Shape
    queries: Ints
    equal: list[tuple[str, int, Numbers]] = field(default_factory=list)
    """The columns that must be equal, in turn: how many codes each has, and the numbers of what equals so far."""
    word: tuple[str, int, Numbers] | None = None
    tree: tuple[_Tree, Numbers] | None = None
    found: Groups = field(init=False)
    """The rows of each number that is left at the end."""
    ranges: dict[str, tuple[Ints, Ints]] = field(default_factory=dict)
    others: dict[str, Groups] = field(default_factory=dict)
    words: dict[str, Groups] = field(default_factory=dict)
    lacking: dict[str, tuple[Groups, Groups]] = field(default_factory=dict)

    def matches(self, events: Events) -> Iterator[tuple[Ints, Ints]]:
        """The events that meet rows, and whose these are; one that meets several rows of a query comes several times."""
        for places, numbers in self._reached(events):
            ends = np.cumsum(self.found.sizes(numbers))
            cuts = np.searchsorted(ends, np.arange(MOST_PAIRS, int(ends[-1]) if len(ends) else 0, MOST_PAIRS))
            for low, high in zip([0, *cuts], [*cuts, len(places)], strict=True):
                chosen, rows = self.found.spread(numbers[low:high])
                here = places[low:high][chosen]
                kept = self._kept(events, here, rows)
                yield here[kept], self.queries[rows[kept]]

    def _reached(self, events: Events) -> Iterator[tuple[Ints, Ints]]:
        """The events that the index leads to rows, and to which number of these."""
        places, numbers = np.arange(events.count), np.zeros(events.count, np.int64)
        for column, size, known in self.equal:
            places, numbers = _narrowed(places, known.find(numbers * size + events.codes[column][places]))
        if self.word is not None:
            column, size, known = self.word
            chosen, words = events.words[column].of.spread(places)
            places, numbers = _narrowed(places[chosen], known.find(numbers[chosen] * size + words))
        if self.tree is None:
            yield places, numbers
            return
        tree, known = self.tree
        codes = events.codes[tree.column][places]
        there = codes != NULL
        places, numbers = places[there], numbers[there]
        for parts in tree.over(codes[there]):
            yield _narrowed(places, known.find(numbers * 2 * tree.size + parts))

    def _kept(self, events: Events, places: Ints, rows: Ints) -> Ints:
        """Those of pairs of an event and a row for which everything holds that the index has not looked at."""
        kept = np.arange(len(places))
        for column, (low, high) in self.ranges.items():
            codes, mine = events.codes[column][places[kept]], rows[kept]
            kept = kept[(codes >= low[mine]) & (codes <= high[mine])]
        for column, others in self.others.items():
            at, codes = others.spread(rows[kept])
            kept = _without(kept, at[codes == events.codes[column][places[kept][at]]])
            kept = kept[events.codes[column][places[kept]] != NULL]
        for column, words in self.words.items():
            at, wanted = words.spread(rows[kept])
            kept = _without(kept, at[~events.words[column].has(places[kept][at], wanted)])
        for column, (sets, words) in self.lacking.items():
            at, chosen = sets.spread(rows[kept])
            inner, wanted = words.spread(chosen)
            missed = ~events.words[column].has(places[kept][at[inner]], wanted)
            whole = np.ones(len(at), bool)
            whole[inner[missed]] = False
            kept = _without(kept, at[whole])
            kept = kept[events.codes[column][places[kept]] != NULL]
        return kept


def rows_of(
    shape: Shape,
    made: Sequence[tuple[int, Alternative]],
    literals: Mapping[str, Literals],
    vocabularies: Mapping[str, Vocabulary],
) -> Rows:
    """Put alternatives of one shape, each with the number of its query, into a table."""
    rows = Rows(shape, np.array([query for query, _ in made], np.int64))
    demands = {says.column: [alternative[says.column] for _, alternative in made] for says in shape}
    owners, numbers = _by_equality(rows, demands, literals)
    for says in shape:
        _compared(rows, says, demands[says.column], literals, vocabularies)
    asked = next((says.column for says in shape if says.words), None)
    if asked is not None:
        owners, numbers = _by_word(rows, asked, demands[asked], vocabularies[asked], owners, numbers)
    elif rows.ranges and (not rows.equal or len(numbers) > _FEW * len(rows.equal[-1][2])):
        owners, numbers = _by_range(rows, literals, owners, numbers)
    rows.found = Groups.of(numbers, owners, int(numbers.max()) + 1)
    return rows


def _by_equality(
    rows: Rows, demands: Mapping[str, list[Demand]], literals: Mapping[str, Literals]
) -> tuple[Ints, Ints]:
    """Number the rows by what must be equal: one comes once for each combination of its values."""
    columns = [says.column for says in rows.shape if says.equal]
    owners, codes = [], []
    for row in range(len(rows.queries)):
        each = [
            [NULL] if demand.null else [literals[column].code(key) for key in demand.values or ()]
            for column in columns
            for demand in (demands[column][row],)
        ]
        for combination in product(*each):
            owners.append(row)
            codes.append(combination)
    numbers = np.zeros(len(owners), np.int64)
    for column, mine in zip(columns, zip(*codes, strict=True), strict=True):
        size = literals[column].size
        pairs = numbers * size + np.array(mine, np.int64)
        known = Numbers.of(pairs, (int(numbers.max()) + 1) * size)
        rows.equal.append((column, size, known))
        numbers = known.find(pairs)
    return np.array(owners, np.int64), numbers


def _by_word(
    rows: Rows, column: str, demands: list[Demand], vocabulary: Vocabulary, owners: Ints, numbers: Ints
) -> tuple[Ints, Ints]:
    """Number the rows further by the rarest of their words."""
    often = Counter(word for each in demands for word in each.words)
    rarest = [vocabulary.numbers[min(each.words, key=lambda word: (often[word], -len(word), word))] for each in demands]
    size = max(len(vocabulary.numbers), 1)
    pairs = numbers * size + np.array(rarest, np.int64)[owners]
    known = Numbers.of(pairs, (int(numbers.max()) + 1) * size)
    rows.word = column, size, known
    return owners, known.find(pairs)


def _by_range(rows: Rows, literals: Mapping[str, Literals], owners: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """Number the rows further by the parts of their range in that column whose ranges are the narrowest."""
    column = min(
        rows.ranges, key=lambda name: float((rows.ranges[name][1] - rows.ranges[name][0]).mean()) / literals[name].size
    )
    low, high = (each[owners] for each in rows.ranges.pop(column))
    tree = _Tree.of(column, low, high)
    chosen, parts = tree.cut(low, high)
    pairs = numbers[chosen] * 2 * tree.size + parts
    known = Numbers.of(pairs, (int(numbers.max()) + 1) * 2 * tree.size)
    rows.tree = tree, known
    return owners[chosen], known.find(pairs)


def _compared(
    rows: Rows,
    says: Says,
    demands: list[Demand],
    literals: Mapping[str, Literals],
    vocabularies: Mapping[str, Vocabulary],
) -> None:
    """Lay out what is compared of a column where the index has led to."""
    column, count = says.column, len(demands)
    if says.ranged:
        ends = [(literals[column].low(each.low), literals[column].high(each.high)) for each in demands]
        low, high = np.array(ends, np.int64).T
        rows.ranges[column] = low, high
    if says.others:
        rows.others[column] = _listed([[literals[column].code(key) for key in each.others] for each in demands], count)
    if not (says.words or says.lacking):
        return
    numbers = vocabularies[column].numbers
    if says.words:
        rows.words[column] = _listed([[numbers[word] for word in each.words] for each in demands], count)
    if says.lacking:
        sets = [(row, words) for row, each in enumerate(demands) for words in each.lacking]
        owners = np.array([row for row, _ in sets], np.int64)
        inner = _listed([[numbers[word] for word in words] for _, words in sets], len(sets))
        rows.lacking[column] = Groups.of(owners, np.arange(len(sets)), count), inner


def _listed(values: Sequence[Sequence[int]], count: int) -> Groups:
    owners = np.repeat(np.arange(count), [len(each) for each in values])
    return Groups.of(owners, np.array([value for each in values for value in each], np.int64), count)


def _narrowed(places: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    """Those that have a number."""
    there = numbers >= 0
    return places[there], numbers[there]


def _without(kept: Ints, gone: Ints) -> Ints:
    """Without those at some places."""
    stays: npt.NDArray[np.bool_] = np.ones(len(kept), bool)
    stays[gone] = False
    return kept[stays]
