"""The manifest of a folder of files: an entry for each batch, which names the files that count.

An entry is replaced as a whole. One that is a *snapshot* has all that came up to its number: entries with lower numbers do not count
beside it, whether they are there still or not. So at every moment the entries say one thing, and a reader that finds one gone while it
reads begins again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from millstream.durable import replace_file

FOLDER = "_manifest"


class Entry(NamedTuple):
    """What a batch has written, or a compaction of all up to it."""

    number: int
    files: tuple[str, ...]
    rows: int
    key: tuple[str, ...] | None = None
    """The key of the view; None if the entry does not say, as those of earlier versions do not."""
    snapshot: bool = False

    def write(self, folder: Path) -> None:
        """Put it in its place."""
        said: dict[str, Any] = {"files": self.files, "rows": self.rows}
        said |= {} if self.key is None else {"key": self.key}
        said |= {"snapshot": True} if self.snapshot else {}
        replace_file(place(folder, self.number), json.dumps(said).encode())


def place(folder: Path, number: int) -> Path:
    """Where the entry of a number is."""
    return folder / FOLDER / f"{number:020d}.json"


def numbers(folder: Path) -> list[int]:
    """The numbers of all entries, in order."""
    return sorted(int(path.stem) for path in (folder / FOLDER).glob("*.json"))


def entries(folder: Path) -> list[Entry]:
    """The entries that count, in order."""
    while True:
        found = []
        try:
            for number in reversed(numbers(folder)):
                found.append(_read(folder, number))
                if found[-1].snapshot:
                    break
        except FileNotFoundError:  # a compaction has put a snapshot into a later one
            continue
        return found[::-1]


def _read(folder: Path, number: int) -> Entry:
    said = json.loads(place(folder, number).read_bytes())
    files = said.get("files", [said.get("file")])
    key = tuple(said["key"]) if "key" in said else None
    return Entry(number, tuple(files), said.get("rows", 0), key, said.get("snapshot", False))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others from changing the manifest."""
    handle = os.open(folder / FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
