"""Spill: on one machine the bytes of a large chunk stay in a file, and only the path of the file goes through Spark.

Between two stages Spark copies a value from process to process, into its shuffle and back. A file is written once, and the process
that reads it maps it. A task that runs again writes files of its own. The process that runs the chain makes the folder, and empties
it when a batch has been delivered.
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
"""A chunk of so many bytes or more is spilled; a smaller one goes through Spark faster than through a file."""
_PREFIX = "aside-"


def lay_aside(chunks: Iterable[Chunk], folder: str) -> Iterator[Chunk]:
    """The chunks to send. In place of a large one goes a chunk with the inverted kind and the path of a file; without a folder none is spilled."""
    for chunk in chunks:
        if folder and len(chunk.data) >= LARGE:
            path = Path(folder, uuid.uuid4().hex)
            path.write_bytes(chunk.data)
            yield chunk._replace(kind=~chunk.kind, data=str(path).encode())
        else:
            yield chunk


def taken_up(chunk: Chunk) -> Chunk:
    """A chunk as it was before it was spilled."""
    if chunk.kind >= 0:
        return chunk
    with pa.memory_map(bytes(chunk.data).decode()) as file:
        return chunk._replace(kind=~chunk.kind, data=memoryview(file.read_buffer()))


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    """A folder for one run, removed at its end. Folders that killed runs left in the same place are removed first."""
    for old in parent.glob(f"{_PREFIX}*"):
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as made:
        yield Path(made)


def clear(folder: Path) -> None:
    """Remove all files of the folder."""
    for path in folder.iterdir():
        path.unlink()
