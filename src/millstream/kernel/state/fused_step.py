"""The store that the kernels of a step share in one bucket, where their state lies side by side.

A step has one meta blob and one row of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.kernel.state.store import Store

_ROOM = 48
"""Bits for the numbers of one kernel's segments, of which the tables of a kernel use those above 40."""


class Shared:
    """A store for the kernels of a step. Each has a part; their meta blobs are read at once, and written at once by ``flush``."""

    def __init__(self, store: Store) -> None:
        self.store = store
        data = store.meta()
        self.metas: dict[int, bytes] = {} if data is None else msgspec.msgpack.decode(data, type=dict[int, bytes])
        self.changed = False

    def part(self, number: int) -> Part:
        """The part of the kernel of that number in the chain."""
        return Part(self, number)

    def flush(self) -> None:
        """Write the meta blobs, if there is a new one."""
        if self.changed:
            self.store.set_meta(msgspec.msgpack.encode(self.metas))


class Part:
    """One kernel's part of a store; a store itself."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared, self._number, self._first = shared, number, number << _ROOM

    def meta(self) -> bytes | None:
        """The meta blob of this kernel."""
        return self._shared.metas.get(self._number)

    def set_meta(self, data: bytes) -> None:
        """Replace it, once the step is done."""
        self._shared.metas[self._number] = data
        self._shared.changed = True

    def get(self, numbers: Sequence[int]) -> list[bytes]:
        """Some segments."""
        return self._shared.store.get([self._first + number for number in numbers])

    def put(self, segments: Mapping[int, bytes]) -> None:
        """Write segments."""
        self._shared.store.put({self._first + number: data for number, data in segments.items()})

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget segments."""
        self._shared.store.remove([self._first + number for number in numbers])
