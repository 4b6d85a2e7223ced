"""Views as files: a folder holds all of one batch, or all of the next, whatever happens in between."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from millstream.errors import ViewStoreUnavailable
from millstream.failpoint import armed
from millstream.runtime.parquet_export import write_files


def write(folder: Path, number: int) -> None:
    write_files(folder, {"v": pa.table({"n": [number]})}, {"number": number})


def found(folder: Path) -> list[int]:
    return pl.read_parquet(folder / "v.parquet")["n"].to_list()


@pytest.mark.parametrize("point", ["files.before_rename", "files.between_renames", "files.after_rename"])
def test_a_kill_leaves_the_old_files_or_the_new_ones_and_the_next_batch_replaces_them(
    tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "out"
    write(folder, 1)
    with armed(point), pytest.raises(RuntimeError, match=point):
        write(folder, 2)
    there = folder if folder.exists() else tmp_path / ".out.old"  # for the time between two renames
    assert found(there) == ([2] if point == "files.after_rename" else [1])
    write(folder, 3)
    assert found(folder) == [3]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_that_cannot_take_their_place_leave_the_old_ones_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    write(folder, 1)
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(ViewStoreUnavailable, match="Input/output error"):
        write(folder, 2)
    assert found(folder) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_and_their_names_are_on_the_disk_before_the_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, synced = tmp_path / "out", []
    write(folder, 1)
    fsync = os.fsync

    def watched(handle: int) -> None:
        fsync(handle)
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        if synced[-1] == tmp_path.name:
            assert found(tmp_path / ".out.old") == [1]

    monkeypatch.setattr(os, "fsync", watched)
    write(folder, 2)
    assert sorted(synced[:2]) == ["millstream.json", "v.parquet"]
    assert synced[2:] == ["new", tmp_path.name]
