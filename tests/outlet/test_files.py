"""Files keep the contract, and what only they promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from millstream.errors import ConfigError, SinkUnavailable
from millstream.outlet import Outlet
from millstream.outlet.files import FileOutlet, committed_files
from tests.contracts.outlet import JsonOutletContract, OutletContract, Rows, named, parcel, send


def replayed(changes: list[dict[str, object]]) -> Rows:
    """The newest row of each key."""
    newest = {change["name"]: change for change in changes}
    return named([change for change in newest.values() if change["_weight"] == 1])


class TestParquet(OutletContract):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Outlet]:
        return lambda: FileOutlet(tmp_path / "out", "parquet")

    @pytest.fixture
    def sent(self, tmp_path: Path) -> Callable[[], Rows]:
        return lambda: replayed(
            [row for file in committed_files(tmp_path / "out") for row in pl.read_parquet(file).to_dicts()]
        )


class TestJson(JsonOutletContract):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Outlet]:
        return lambda: FileOutlet(tmp_path / "out", "json")

    @pytest.fixture
    def sent(self, tmp_path: Path) -> Callable[[], Rows]:
        return lambda: replayed(
            [
                json.loads(line)
                for file in committed_files(tmp_path / "out")
                for line in file.read_bytes().split(b"\n")
                if line
            ]
        )


def test_a_file_without_an_entry_does_not_count_and_is_written_again(tmp_path: Path) -> None:
    outlet = FileOutlet(tmp_path, "parquet")
    send(outlet, 1, {"ann": (1, 1.0)})
    (tmp_path / "_manifest" / f"{1:020d}.json").unlink()  # as if the process had died before it
    (tmp_path / f"{1:020d}.parquet").write_bytes(b"half a file")
    assert outlet.last() is None
    assert committed_files(tmp_path) == []
    send(outlet, 1, {"ann": (1, 1.0)})
    assert [pl.read_parquet(file)["n"].to_list() for file in committed_files(tmp_path)] == [[1]]


def test_parquet_keeps_types_and_nan(tmp_path: Path) -> None:
    outlet = FileOutlet(tmp_path, "parquet")
    payload, refused = outlet.pack(parcel({"ann": (1, float("nan"))}, gone=("bob",)))
    assert not refused
    outlet.send(payload, 1, marked=True)
    rows = pl.read_parquet(committed_files(tmp_path)[0]).rows()
    assert str(rows) == "[('ann', 1, nan, 1), ('bob', None, None, -1)]"


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailable, match="Not a directory"):
        FileOutlet(tmp_path / "file" / "out", "parquet")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected parquet or json"):
        FileOutlet(tmp_path, "csv")
