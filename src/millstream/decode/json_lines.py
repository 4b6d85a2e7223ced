"""Many values in one piece of memory, with a newline between any two: a parser takes them all in one call.

Where the cuts are is known by the lengths, never by looking for newlines, so a value may hold any bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from millstream.framed import HEAD


class Joined(Sequence[bytes | None]):
    """Values as a sequence; ``data`` holds them all. One that has the length −1 is None, and takes no place there."""

    def __init__(self, data: bytes, lengths: npt.NDArray[np.int64]) -> None:
        self.data, self.lengths = data, lengths
        self._ends = np.cumsum(lengths + 1) - 1

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes | None]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes | None] | None:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if self.lengths[index] < 0:
            return None
        end = int(self._ends[index])
        return self.data[end - int(self.lengths[index]) : end]

    def beginning(self, text: bytes) -> npt.NDArray[np.intp]:
        """Where values begin with a text."""
        found = np.frombuffer(self.data, np.uint8)
        places = np.flatnonzero(self.lengths >= len(text))
        for index in reversed(range(len(text))):  # names differ where they end, more than where they begin
            places = places[found[self._ends[places] - self.lengths[places] + index] == text[index]]
        return places

    @property
    def are_objects(self) -> bool:
        """Whether each value begins and ends with a brace.

        In JSON a closing brace, a newline and an opening one are never inside a document. So no document goes on in the next
        value, and if a parser of lines finds as many documents as there are values, each of them is one value.
        """
        there = self.lengths >= 0
        lengths, ends = self.lengths[there], self._ends[there]
        if not len(lengths) or not lengths.min():
            return False
        found = np.frombuffer(self.data, np.uint8)
        return bool((found[ends - lengths] == ord("{")).all() and (found[ends - 1] == ord("}")).all())


def unframed(values: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """Values without the head of Confluent's framing; nothing, which is no JSON, where there is no head.

    >>> unframed([b"\\0\\0\\0\\0\\7{}", b"{}", None])
    [b'{}', b'', None]
    """
    found = [value if value is None else value[HEAD:] if value[:1] == b"\0" else b"" for value in values]
    if not isinstance(values, Joined):
        return found
    lengths = np.array([-1 if value is None else len(value) for value in found], np.int64)
    return Joined(b"\n".join(value for value in found if value is not None), lengths)
