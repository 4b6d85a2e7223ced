"""Files as an outlet: a Parquet or JSON file for each batch with changes, and a manifest that says which of them count.

A file is in its place, under a name that its batch's number decides, before the manifest's entry appears; what has no entry
does not count, and is written again under the same name. Entries are made under a lock, and their numbers only grow.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from millstream.errors import ConfigError, SinkUnavailable
from millstream.outlet import text
from millstream.outlet.contract import Outlet, Packed, Parcel
from millstream.sink.contract import WEIGHT, Refusal

FORMATS = ("parquet", "json")
_MANIFEST = "_manifest"


class FileOutlet(Outlet):
    """A folder of files, only added to. Rows that went have the weight −1, and of a view with a key nothing but their key."""

    def __init__(self, folder: Path, kind: str) -> None:
        if kind not in FORMATS:
            raise ConfigError(f"files: found format={kind}, expected {' or '.join(FORMATS)}")
        self._folder, self._kind = folder, kind
        with _ours(folder):
            (folder / _MANIFEST).mkdir(parents=True, exist_ok=True)

    def last(self) -> int | None:
        """The number of the newest entry."""
        with _ours(self._folder):
            return max((int(path.stem) for path in (self._folder / _MANIFEST).glob("*.json")), default=None)

    def pack(self, parcel: Parcel) -> Packed:
        """All changes as one frame."""
        rows = (
            parcel.rows
            if WEIGHT in parcel.rows.columns
            else parcel.rows.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
        )
        gone = parcel.gone.with_columns(pl.lit(-1, pl.Int64).alias(WEIGHT))
        if self._kind == "parquet":
            return Packed(pl.concat([rows, gone], how="diagonal").select(rows.columns), [])
        rows, refused = text.writable(rows)
        documents = pl.concat([text.documents(rows), text.documents(gone)])
        return Packed(documents, refused)

    def send(self, payload: Any, sequence: int, *, marked: bool) -> list[Refusal]:  # noqa: ARG002
        """Write the file, then its entry; a number costs nothing here, so it always counts."""
        if not len(payload):
            return []
        with _ours(self._folder), _locked(self._folder / _MANIFEST):
            known = self.last()
            if known is not None and sequence <= known:
                return []
            name = f"{sequence:020d}.{self._kind}"
            _write(self._folder / name, lambda path: self._fill(path, payload))
            entry = json.dumps({"file": name, "rows": len(payload)}).encode()
            _write(self._folder / _MANIFEST / f"{sequence:020d}.json", lambda path: path.write_bytes(entry))
        return []

    def close(self) -> None:
        """Nothing is held open."""

    def _fill(self, path: Path, payload: Any) -> None:
        if self._kind == "parquet":
            payload.write_parquet(path)
        else:
            path.write_text("".join(f"{document}\n" for document in payload))


def committed_files(folder: str | Path) -> list[Path]:
    """The files of a folder that count, in the order in which they were written."""
    entries = sorted((Path(folder) / _MANIFEST).glob("*.json"))
    return [Path(folder) / json.loads(entry.read_bytes())["file"] for entry in entries]


def _write(path: Path, fill: Any) -> None:
    """Make a file whole: it is on the disk before it has its name."""
    fresh = path.with_name(f".{path.name}.new")
    fill(fresh)
    for each in (fresh, path.parent):
        if each == path.parent:
            fresh.rename(path)
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _ours(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise SinkUnavailable(
            f"files in {folder}: {why}", hint="check the folder, its permissions and its room"
        ) from error
