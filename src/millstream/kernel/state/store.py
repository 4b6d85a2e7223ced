"""What a kernel keeps between batches: one small *meta* blob and many small *segments*, each under a number.

A host gives each bucket of each kernel a :class:`Store`; it reads meta first, and a bucket with nothing to do touches nothing
else. Meta holds the format's version, the marks, and the directory of the segments (see :mod:`millstream.kernel.state.segments`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from millstream.errors import CheckpointMismatch

FORMAT = 3
"""Since 2 segments are compressed; those of 1 are read as they are and written anew. Since 3 rows by key lie in the order of ids."""
NEVER = -(1 << 62)
"""A mark before any time."""

FOREVER = 1 << 62
"""A mark after every time: the stream is closed."""


class Store(Protocol):
    """Where one bucket's state is: each call is a round trip, so callers make few."""

    def meta(self) -> bytes | None:
        """The meta blob; None for a new bucket."""
        ...

    def set_meta(self, data: bytes) -> None:
        """Replace the meta blob."""
        ...

    def get(self, numbers: Sequence[int]) -> list[bytes]:
        """Some segments."""
        ...

    def put(self, segments: Mapping[int, bytes]) -> None:
        """Write segments."""
        ...

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget segments."""
        ...


class Memory:
    """A store in memory, for batch runs and tests."""

    def __init__(self) -> None:
        self._meta: bytes | None = None
        self.segments: dict[int, bytes] = {}

    def meta(self) -> bytes | None:
        """The meta blob."""
        return self._meta

    def set_meta(self, data: bytes) -> None:
        """Replace it."""
        self._meta = data

    def get(self, numbers: Sequence[int]) -> list[bytes]:
        """Some segments."""
        return [self.segments[number] for number in numbers]

    def put(self, segments: Mapping[int, bytes]) -> None:
        """Write segments."""
        self.segments |= segments

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget segments."""
        for number in numbers:
            del self.segments[number]


class Directory(msgspec.Struct, array_like=True):
    """Which segments a table has: for each the place it starts at (uint64), its number, rows and bytes (uint32 each).

    ``next`` is the last number given, ``newest`` no less than the last place there is.
    """

    schema: bytes = b""
    starts: bytes = b""
    numbers: bytes = b""
    rows: bytes = b""
    sizes: bytes = b""
    next: int = 0
    newest: int = 0


class Meta(msgspec.Struct):
    """The meta blob. ``marks`` are what each origin has said last; ``mark`` is the least of them that was acted on.

    ``schema`` is that of the rows that come, ``facts`` what admission remembers. ``sides`` are the marks of each input that were
    acted on, where a kernel has several. ``ordered`` says that rows by key lie in the order of ids, as those of older formats do not.
    """

    version: int = FORMAT
    mark: int = NEVER
    schema: bytes = b""
    marks: dict[str, int] = {}
    tables: dict[str, Directory] = {}
    facts: dict[str, int] = {}
    sides: list[int] = []
    ordered: bool = False

    @classmethod
    def read(cls, store: Store) -> Meta:
        """Read it, or begin; a later version's is refused."""
        data = store.meta()
        if data is None:
            return cls(ordered=True)
        version = msgspec.msgpack.decode(data, type=_Version).version
        if not 1 <= version <= FORMAT:
            raise CheckpointMismatch(
                f"the state has format {version}, this version reads {FORMAT}", hint="pip install --upgrade millstream"
            )
        return msgspec.structs.replace(msgspec.msgpack.decode(data, type=cls), version=FORMAT)

    def write(self, store: Store) -> None:
        """Write it."""
        store.set_meta(msgspec.msgpack.encode(self))


class _Version(msgspec.Struct):
    version: int
