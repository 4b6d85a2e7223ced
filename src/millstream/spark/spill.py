"""Large chunks laid aside: on one machine their bytes stay in a file, and what goes through Spark only says which.

Between two stages Spark copies a value from process to process and into its shuffle and back; a file is written once and mapped
by whoever reads it. A task that runs again writes files of its own. Whoever runs the chain makes the folder, and empties it when
a batch is delivered.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from millstream.kernel.exchange.chunk import Chunk

LARGE = 32 << 10
"""Bytes from which a chunk is laid aside; fewer go through Spark faster than through a file."""
_PREFIX = "aside-"


def lay_aside(chunks: Iterable[Chunk], folder: str) -> Iterator[Chunk]:
    """The chunks to send: of a large one its kind is inverted, and its bytes are the path of a file. Without a folder, as they are."""
    for chunk in chunks:
        if folder and len(chunk.data) >= LARGE:
            path = Path(folder, uuid.uuid4().hex)
            path.write_bytes(chunk.data)
            yield chunk._replace(kind=~chunk.kind, data=str(path).encode())
        else:
            yield chunk


def taken_up(chunk: Chunk) -> Chunk:
    """A chunk as it was before it was laid aside."""
    if chunk.kind >= 0:
        return chunk
    with pa.memory_map(bytes(chunk.data).decode()) as file:
        return chunk._replace(kind=~chunk.kind, data=memoryview(file.read_buffer()))


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """A folder for one run, gone at its end; what runs that were killed left in the same place is removed."""
    for old in parent.glob(f"{_PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


def clear(folder: Path) -> None:
    """Remove what is laid aside."""
    for path in folder.iterdir():
        path.unlink()
