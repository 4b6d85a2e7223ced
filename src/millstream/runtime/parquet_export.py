"""Views as Parquet files in a folder: one file each, and ``millstream.json``, which says what they are of.

Invariant: the folder holds all files of one batch. They are written beside it, and on the disk before they take its place together. What
it held stays beside it as ``.FOLDER.old`` until then: a process that is killed between the two renames leaves that, and the next one
puts it back. A folder with something else in it is left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.durable import sync
from millstream.errors import ConfigError, ViewStoreUnavailable
from millstream.failpoint import failpoint

FACTS = "millstream.json"


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else than the views of a batch."""
    if folder.exists() and not (folder / FACTS).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} holds something else than the views of a batch", hint="name another, or an empty one"
        )


def write_files(folder: Path, tables: Mapping[str, pa.Table], facts: Mapping[str, Any]) -> None:
    """Write each table to ``NAME.parquet`` and replace what the folder holds."""
    folder = folder.absolute()
    check_folder(folder)
    old = folder.with_name(f".{folder.name}.old")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if old.exists():  # of a process that was killed
            shutil.rmtree(old) if folder.exists() else os.rename(old, folder)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as aside:
            fresh = Path(aside) / "new"
            fresh.mkdir()
            for name, table in tables.items():
                pq.write_table(table, fresh / f"{name}.parquet")
            (fresh / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2))
            for path in (*fresh.iterdir(), fresh):
                sync(path)
            failpoint("files.before_rename")
            _take_place(fresh, folder, old)
            sync(folder.parent)
            failpoint("files.after_rename")
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ViewStoreUnavailable(
            f"{folder} cannot be written: {error.strerror}", hint="name another folder"
        ) from error


def _take_place(fresh: Path, folder: Path, old: Path) -> None:
    # A file takes another's place in one step; a folder that is not empty does not.
    if folder.exists():
        os.rename(folder, old)
    failpoint("files.between_renames")
    try:
        os.rename(fresh, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
        raise
