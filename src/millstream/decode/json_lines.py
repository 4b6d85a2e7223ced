"""Many values in one piece of memory, with a newline between any two: a parser takes them all in one call.

Where the cuts are is known by the lengths, never by looking for newlines, so a value may hold any bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt


class Joined(Sequence[bytes]):
    """Values as a sequence; ``data`` holds them all."""

    def __init__(self, data: bytes, lengths: npt.NDArray[np.int64]) -> None:
        self.data, self.lengths = data, lengths
        self._ends = np.cumsum(lengths + 1) - 1

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        end = int(self._ends[index])
        return self.data[end - int(self.lengths[index]) : end]

    @property
    def are_objects(self) -> bool:
        """Whether each value begins and ends with a brace.

        In JSON a closing brace, a newline and an opening one are never inside a document. So no document goes on in the next
        value, and if a parser of lines finds as many documents as there are values, each of them is one value.
        """
        if not len(self) or not self.lengths.min():
            return False
        found = np.frombuffer(self.data, np.uint8)
        ends = self._ends
        return bool((found[ends - self.lengths] == ord("{")).all() and (found[ends - 1] == ord("}")).all())
