"""What the values of a column are to the index: their place among all literals that the column is compared with, and their words.

A value has a *code*: zero if it is null, an even number if it equals a literal, an odd one if it lies between two. So every comparison
with a literal is a comparison of small whole numbers, whatever the type of the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.percolation.arrays import Groups, Ints
from millstream.kernel.percolation.columns import Column, Key, words_of
from millstream.kernel.percolation.conditions import Demand, End

NULL = 0
_WORD, _EVENT = "_word", "_event"


class Literals:
    """All literals that a column is compared with, in order."""

    def __init__(self, column: Column, keys: Iterable[Key]) -> None:
        self.column = column
        ordered = sorted(set(keys))
        self._keys = pl.Series(ordered, dtype=pl.String if column.family == "text" else pl.Int64)
        self._at = {key: 2 * place + 2 for place, key in enumerate(ordered)}

    @property
    def size(self) -> int:
        """One more than the largest code."""
        return 2 * len(self._at) + 2

    def code(self, key: Key) -> int:
        """The code of a literal."""
        return self._at[key]

    def low(self, end: End) -> int:
        """The least code of a range."""
        return 1 if end is None else self._at[end[0]] + (not end[1])

    def high(self, end: End) -> int:
        """The largest code of a range."""
        return self.size - 1 if end is None else self._at[end[0]] - (not end[1])

    def codes(self, values: pl.Series) -> Ints:
        """The codes of events' values."""
        keys = self.column.keys(values)
        filled = keys.fill_null("" if self.column.family == "text" else 0)
        if not len(self._keys):
            return np.where(keys.is_null().to_numpy(), NULL, 1).astype(np.int64)
        if self.column.family == "text":
            after = self._keys.search_sorted(filled, side="right").to_numpy().astype(np.int64)
        else:
            after = np.searchsorted(self._keys.to_numpy(), filled.to_numpy(), side="right")
        before = self._keys.gather(np.maximum(after - 1, 0))
        equal = ((before == filled) & pl.Series(after > 0)).to_numpy()
        codes = 2 * after + np.where(equal, 0, 1)
        return np.where(keys.is_null().to_numpy(), NULL, codes)


@dataclass(frozen=True)
class Words:
    """The words of some texts that stored queries ask for: those of each event, and whether an event has one."""

    of: Groups
    pairs: Ints
    count: int

    def has(self, events: Ints, words: Ints) -> npt.NDArray[np.bool_]:
        """Whether each event has the word."""
        wanted = events * self.count + words
        if not len(self.pairs):
            return np.zeros(len(wanted), bool)
        nearest = self.pairs[np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)]
        found: npt.NDArray[np.bool_] = nearest == wanted
        return found


@dataclass(frozen=True)
class Vocabulary:
    """The words that stored queries ask for in a column, each by its number."""

    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, demands: Sequence[Demand]) -> Vocabulary:
        """All words of these demands."""
        found = dict.fromkeys(
            word for each in demands for words in (each.words, *each.lacking) for word in sorted(words)
        )
        return cls({word: number for number, word in enumerate(found)})

    def words(self, texts: pl.Series) -> Words:
        """The words of events' texts."""
        known = pl.DataFrame(
            {_WORD: list(self.numbers), "_id": list(self.numbers.values())},
            schema_overrides={_WORD: pl.String, "_id": pl.Int64},
        )
        words = pl.DataFrame({_WORD: words_of(texts)}).with_row_index(_EVENT).explode(_WORD, empty_as_null=True)
        found = words.join(known, on=_WORD).select(pl.col(_EVENT).cast(pl.Int64), "_id").unique()
        events, ids = (found[name].to_numpy() for name in (_EVENT, "_id"))
        count = max(len(self.numbers), 1)
        return Words(Groups.of(events, ids, len(texts)), np.sort(events * count + ids), count)
