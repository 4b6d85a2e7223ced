"""Files keep the contract, and what only they promise."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pytest

from millstream import Pipeline
from millstream.errors import ConfigError, PlanError, SinkUnavailable
from millstream.failpoint import armed
from millstream.sink import ChangeSet, Sink
from millstream.sink.files import FileSink, committed_files
from tests.contracts.sink import KEY, JsonSinkContract, Rows, SinkContract, change_set, named, send


def replayed(changes: list[dict[str, object]]) -> Rows:
    """The newest row of each key."""
    newest = {change["name"]: change for change in changes}
    return named([change for change in newest.values() if change["_weight"] == 1])


def said(file: Path) -> dict[str, object]:
    """What the folders of a file say of its rows; null and the empty text are said alike, and names here are never null."""
    pairs = [part.split("=") for part in file.parts if "=" in part]
    return {name: "" if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, value in pairs}


class TestParquet(SinkContract):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: FileSink(tmp_path / "out", "parquet", key=KEY)

    @pytest.fixture
    def sent(self, tmp_path: Path) -> Callable[[], Rows]:
        return lambda: replayed(
            [row for file in committed_files(tmp_path / "out") for row in pl.read_parquet(file).to_dicts()]
        )


class TestPartitions(SinkContract):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: FileSink(tmp_path / "out", "parquet", ("name",))

    @pytest.fixture
    def sent(self, tmp_path: Path) -> Callable[[], Rows]:
        return lambda: replayed(
            [
                {**row, **said(file)}
                for file in committed_files(tmp_path / "out")
                for row in pl.read_parquet(file).to_dicts()
            ]
        )


class TestJsonPartitions(JsonSinkContract):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: FileSink(tmp_path / "out", "json", ("name",))

    @pytest.fixture
    def sent(self, tmp_path: Path) -> Callable[[], Rows]:
        return lambda: replayed(
            [
                {**json.loads(line), **said(file)}
                for file in committed_files(tmp_path / "out")
                for line in file.read_bytes().split(b"\n")
                if line
            ]
        )


class TestJson(JsonSinkContract):
    @pytest.fixture
    def again(self, tmp_path: Path) -> Callable[[], Sink]:
        return lambda: FileSink(tmp_path / "out", "json", key=KEY)

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
    sink = FileSink(tmp_path, "parquet")
    send(sink, 1, {"ann": (1, 1.0)})
    (tmp_path / "_manifest" / f"{1:020d}.json").unlink()  # as if the process had died before it
    (tmp_path / f"{1:020d}.parquet").write_bytes(b"half a file")
    assert sink.last() is None
    assert committed_files(tmp_path) == []
    send(sink, 1, {"ann": (1, 1.0)})
    assert [pl.read_parquet(file)["n"].to_list() for file in committed_files(tmp_path)] == [[1]]


def test_parquet_keeps_types_and_nan(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "parquet")
    payload, refused = sink.pack(change_set({"ann": (1, float("nan"))}, gone=("bob",)))
    assert not refused
    sink.send(payload, 1, marked=True)
    rows = pl.read_parquet(committed_files(tmp_path)[0]).rows()
    assert str(rows) == "[('ann', 1, nan, 1), ('bob', None, None, -1)]"


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailable, match="Not a directory"):
        FileSink(tmp_path / "file" / "out", "parquet")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected parquet or json"):
        FileSink(tmp_path, "csv")


def days() -> ChangeSet:
    """Rows of two days, with values that no folder can be called as they are, and some that came or went."""
    rows = pl.DataFrame(
        {
            "day": [dt.date(2026, 1, 1), dt.date(2026, 1, 2), dt.date(2026, 1, 2), None],
            "minute": ["08:15", "a/b=c%", "", None],
            "ok": [True, False, True, None],
            "n": [1, 2, 3, 4],
            "_weight": [1, 1, -1, 2],
        }
    )
    return ChangeSet(rows, pl.DataFrame())


def test_folders_say_the_partition_as_spark_does_and_one_entry_names_all_files(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "parquet", ("day", "minute", "ok"))
    sink.send(sink.pack(days()).payload, 7, marked=True)
    assert sorted(str(file.parent.relative_to(tmp_path)) for file in committed_files(tmp_path)) == [
        "day=2026-01-01/minute=08%3A15/ok=true",
        "day=2026-01-02/minute=__HIVE_DEFAULT_PARTITION__/ok=true",
        "day=2026-01-02/minute=a%2Fb%3Dc%25/ok=false",
        "day=__HIVE_DEFAULT_PARTITION__/minute=__HIVE_DEFAULT_PARTITION__/ok=__HIVE_DEFAULT_PARTITION__",
    ]
    assert len(list((tmp_path / "_manifest").glob("*.json"))) == 1
    found = pl.concat(pl.read_parquet(file, hive_partitioning=False) for file in committed_files(tmp_path))
    assert sorted(found.rows()) == [(1, 1), (2, 1), (3, -1), (4, 2)]
    hive = pl.scan_parquet(tmp_path / "day=*" / "**" / "*.parquet", hive_partitioning=True).collect()
    assert sorted(hive.select("n", "minute").rows(), key=str) == [(1, "08:15"), (2, "a/b=c%"), (3, None), (4, None)]


@pytest.mark.parametrize("after", [1, 2])
def test_a_batch_that_ends_between_its_files_does_not_count_and_is_written_again(tmp_path: Path, after: int) -> None:
    sink = FileSink(tmp_path, "json", ("minute",))  # of which null and the empty text are one
    payload = sink.pack(days()).payload
    with suppress(RuntimeError), armed("sink.files.written"):
        sink.send({name: payload[name] for name in list(payload)[-after:]}, 7, marked=True)
    assert committed_files(tmp_path) == []
    assert list(tmp_path.glob("minute=*/*.json"))
    assert FileSink(tmp_path, "json", ("minute",)).last() is None
    sink.send(payload, 7, marked=True)
    sink.send(payload, 7, marked=True)
    assert len(committed_files(tmp_path)) == len(payload) == 3
    assert sum(len(file.read_text().splitlines()) for file in committed_files(tmp_path)) == 4


def test_a_value_that_no_folder_can_be_called_is_refused(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, "parquet", ("name",))
    payload, refused = sink.pack(change_set({"a" * 250: (1, 1.0), "b" * 251: (2, 2.0), "ü" * 126: (3, 3.0)}))
    assert [(each.row[:7], each.why) for each in refused] == [
        ("name='b", "the name of a folder has at most 255 bytes"),
        ("name='ü", "the name of a folder has at most 255 bytes"),
    ]
    assert not sink.send(payload, 1, marked=True)
    assert len(committed_files(tmp_path)) == 1
    with pytest.raises(ConfigError, match="partition=total is of Float64"):
        FileSink(tmp_path, "parquet", ("total",)).pack(change_set({"ann": (1, 1.0)}))


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("files:x?partition=nothing", "has the columns name, n, m"),
        ("files:x?partition=n", "only the key of its row, name"),
        ("files:x?partition=name,", "partition=: view"),
        ("files:x?by=name", "found by=, expected format= or partition="),
    ],
)
def test_a_partition_is_by_columns_of_the_view_and_of_its_key(to: str, message: str) -> None:
    pipeline = Pipeline("p")
    view = pipeline.view("v", pipeline.stream("s", "name string").group_by("name").agg(n="count(*)", m="max(name)"))
    with pytest.raises(PlanError, match=message):
        pipeline.sink("out", view, to)
    assert pipeline.sink("out", view, "files:x?partition=name&format=json").to.endswith("json")  # type: ignore[union-attr]
