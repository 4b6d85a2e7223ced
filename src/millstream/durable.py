"""A file that is replaced as a whole: on the disk before it has its name, and its name on the disk before anyone is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Write a file, or let a function write it, and give it its name; after a power cut it is the old one or the new one."""
    fresh = unfinished_file(path)
    fresh.unlink(missing_ok=True)  # a link of somebody else's is not followed
    if isinstance(content, bytes):
        fresh.write_bytes(content)
    else:
        content(fresh)
    sync(fresh)
    fresh.rename(path)
    sync(path.parent)


def unfinished_file(path: Path) -> Path:
    """The file that has the new content until it is whole; a process that ends before leaves it."""
    return path.with_name(f".{path.name}.new")


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
