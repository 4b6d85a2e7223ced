"""Compacting a folder of files: what counts stays what it is, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from millstream.cli import execute
from millstream.errors import ConfigError, SinkError
from millstream.failpoint import armed
from millstream.sink import ChangeSet
from millstream.sink.compact import compact_files
from millstream.sink.files import FileSink, committed_files
from tests.contracts.sink import KEY, Rows, change_set, send
from tests.sink.test_files import days, replayed
from tests.sink.test_files import said as folders

NOW = timedelta(0)


def open_sink(folder: Path, partition: tuple[str, ...] = (), key: tuple[str, ...] = KEY) -> FileSink:
    return FileSink(folder, "parquet", partition, key)


def there(folder: Path) -> Rows:
    return replayed(
        [
            {**row, **folders(file)}
            for file in committed_files(folder)
            for row in pl.read_parquet(file, hive_partitioning=False).to_dicts()
        ]
    )


def filled(folder: Path, batches: int = 6, partition: tuple[str, ...] = ()) -> Rows:
    """Batches of rows that come, change and go."""
    chance, rows = random.Random(batches), Rows()
    with open_sink(folder, partition) as sink:
        for number in range(1, batches + 1):
            gone = tuple(name for name in rows if chance.random() < 0.3)
            new: Rows = {f"user {chance.randrange(12)}": (number, chance.random()) for _ in range(5)}
            new = {name: row for name, row in new.items() if name not in gone}
            send(sink, number, new, gone)
            rows = {name: row for name, row in (rows | new).items() if name not in gone}
    assert there(folder) == rows
    return rows


@pytest.mark.parametrize("partition", [(), KEY])
@pytest.mark.parametrize("batches", [2, 7, 30])
def test_what_counts_is_the_same_in_fewer_files(tmp_path: Path, batches: int, partition: tuple[str, ...]) -> None:
    rows = filled(tmp_path, batches, partition)
    made = compact_files(tmp_path, keep=NOW)
    assert there(tmp_path) == rows
    assert (made.batches, made.left_rows) == (batches, len(rows))
    assert made.left_files == len(committed_files(tmp_path)) == (len(rows) if partition else 1)
    assert sorted(tmp_path.rglob("*.parquet")) == sorted(committed_files(tmp_path))
    assert compact_files(tmp_path, keep=NOW).batches == 0


def test_a_sink_goes_on_behind_a_snapshot(tmp_path: Path) -> None:
    rows = filled(tmp_path)
    with open_sink(tmp_path) as sink:
        send(sink, 7, {"ann": (1, 1.0)})
        compact_files(tmp_path, keep=NOW)
        assert sink.last() == 7
        send(sink, 7, {"ann": (9, 9.0)})
        send(sink, 3, {"ann": (9, 9.0)})
        send(sink, 8, {"bob": (2, 2.0)}, gone=("ann",))
        assert there(tmp_path) == rows | {"bob": (2, 2.0)}
        compact_files(tmp_path, keep=NOW)
        assert there(tmp_path) == rows | {"bob": (2, 2.0)}
        assert sink.seal(1 << 32, after=8)
        compact_files(tmp_path, keep=NOW)
        assert (open_sink(tmp_path).last(), there(tmp_path)) == (1 << 32, rows | {"bob": (2, 2.0)})


def test_files_that_were_replaced_stay_for_a_while(tmp_path: Path) -> None:
    filled(tmp_path)
    before = committed_files(tmp_path)
    assert compact_files(tmp_path).removed == 0
    assert all(file.exists() for file in before)
    assert not set(before) & set(committed_files(tmp_path))
    assert compact_files(tmp_path).removed == 0
    assert compact_files(tmp_path, keep=NOW).removed == len(before)
    assert not any(file.exists() for file in before)


POINTS = ("written", "replaced", "entry_removed", "file_removed")


@pytest.mark.parametrize("point", [f"files.compact.{each}" for each in POINTS])
@pytest.mark.parametrize("partition", [(), KEY])
def test_a_crash_at_any_step_leaves_what_counts_and_the_next_call_ends_it(
    tmp_path: Path, point: str, partition: tuple[str, ...]
) -> None:
    rows = filled(tmp_path, 6, partition)
    with armed(point), pytest.raises(RuntimeError):
        compact_files(tmp_path, keep=NOW)
    assert there(tmp_path) == rows
    with open_sink(tmp_path, partition) as sink:
        assert sink.last() == 6
        send(sink, 7, {"user 0": (7, 7.0)})
    rows["user 0"] = (7, 7.0)
    assert there(tmp_path) == rows
    compact_files(tmp_path, keep=NOW)
    assert there(tmp_path) == rows
    assert sorted(tmp_path.rglob("*.parquet")) == sorted(committed_files(tmp_path))
    assert len(list((tmp_path / "_manifest").glob("*.json"))) == 1


def test_a_process_that_is_killed_while_it_compacts_leaves_what_counts(tmp_path: Path) -> None:
    rows = filled(tmp_path)
    code = f"from tests.sink.test_compact import *\ncompact_files(Path({str(tmp_path)!r}), keep=NOW)"
    killed = {**os.environ, "MILLSTREAM_FAILPOINT": "files.compact.entry_removed:kill@3"}
    assert subprocess.run([sys.executable, "-c", code], env=killed, timeout=120).returncode == -signal.SIGKILL
    assert there(tmp_path) == rows
    assert compact_files(tmp_path, keep=NOW).batches == 0
    assert there(tmp_path) == rows


def test_whoever_reads_while_it_is_compacted_and_written_sees_whole_batches(tmp_path: Path) -> None:
    stop, seen, failed = threading.Event(), list[int](), list[BaseException]()

    def read() -> None:
        try:
            while not stop.is_set():
                rows = there(tmp_path)
                assert len({n for n, _ in rows.values()}) <= 1  # a batch changes all of them
                seen.append(next((n for n, _ in rows.values()), 0))
        except BaseException as error:
            failed.append(error)

    with open_sink(tmp_path) as sink:
        send(sink, 1, {f"user {n}": (1, 0.0) for n in range(5)})
        reader = threading.Thread(target=read)
        reader.start()
        for number in range(2, 60):
            send(sink, number, {f"user {n}": (number, 0.0) for n in range(5)})
            if number % 3 == 0:
                compact_files(tmp_path)
        stop.set()
        reader.join()
    assert not failed
    assert seen == sorted(seen)
    assert there(tmp_path) == {f"user {n}": (59, 0.0) for n in range(5)}


def test_of_a_view_without_a_key_rows_are_left_as_often_as_they_are_there(tmp_path: Path) -> None:
    rows = pl.DataFrame({"n": [1, 2, 3], "_weight": [1, 2, 1]})
    back = pl.DataFrame({"n": [2, 3], "_weight": [-1, -1]})
    with open_sink(tmp_path / "counted", key=()) as sink:
        for number, each in enumerate((rows, back), 1):
            sink.send(sink.pack(ChangeSet(each, pl.DataFrame())).payload, number, marked=True)
    compact_files(tmp_path / "counted")
    (file,) = committed_files(tmp_path / "counted")
    assert pl.read_parquet(file).rows() == [(1, 1), (2, 1)]
    with open_sink(tmp_path / "added", key=()) as sink:
        for number in (1, 2):
            sink.send(
                sink.pack(ChangeSet(pl.DataFrame({"n": [number, 7]}), pl.DataFrame())).payload, number, marked=True
            )
    compact_files(tmp_path / "added")
    (file,) = committed_files(tmp_path / "added")
    assert pl.read_parquet(file).rows() == [(1, 1), (7, 1), (2, 1), (7, 1)]


def test_a_folder_of_null_and_the_empty_text_keeps_its_files(tmp_path: Path) -> None:
    partition = ("day", "minute", "ok")
    with open_sink(tmp_path, partition, ("day", "minute", "ok", "n")) as sink:
        rows = days().rows.drop("_weight")
        for number in (1, 2):
            sink.send(sink.pack(ChangeSet(rows, rows.clear().drop("n"))).payload, number, marked=True)
    made = compact_files(tmp_path)
    assert (made.left_files, made.left_rows) == (6, 6)  # two folders of two files, and two of one


def test_a_folder_that_does_not_say_the_key_is_asked_for_it(tmp_path: Path) -> None:
    rows = filled(tmp_path)
    for entry in (tmp_path / "_manifest").glob("*.json"):  # as an earlier version wrote them
        found = json.loads(entry.read_bytes())
        entry.write_text(json.dumps({"file": found["files"][0], "rows": found["rows"]}))
    with pytest.raises(ConfigError, match="do not say what the key of the view is"):
        compact_files(tmp_path)
    compact_files(tmp_path, key=["name"])
    assert there(tmp_path) == rows
    with open_sink(tmp_path) as sink:
        send(sink, 7, {"ann": (1, 1.0)})
    with pytest.raises(ConfigError, match="found the key name, expected n"):
        compact_files(tmp_path, key=["n"])


def test_what_cannot_be_compacted_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no manifest"):
        compact_files(tmp_path)
    with FileSink(tmp_path / "json", "json", (), KEY) as sink:
        for number in (1, 2):
            send(sink, number, {"ann": (number, 1.0)})
    with pytest.raises(ConfigError, match="is no Parquet file"):
        compact_files(tmp_path / "json")
    with open_sink(tmp_path / "types") as sink:
        send(sink, 1, {"ann": (1, 1.0)})
        other = change_set({"ann": (1, 1.0)}).rows.with_columns(pl.col("n").cast(pl.String))
        sink.send(sink.pack(ChangeSet(other, other.clear().select("name"))).payload, 2, marked=True)
    before = committed_files(tmp_path / "types")
    with pytest.raises(SinkError, match="files in"):
        compact_files(tmp_path / "types")
    assert committed_files(tmp_path / "types") == before


def test_the_command_says_what_it_has_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = filled(tmp_path)
    assert execute(["files", "compact", str(tmp_path), "--keep", "0s", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert [said[name] for name in ("batches", "left_files", "left_rows", "removed")] == [6, 1, len(rows), 6]
    assert execute(["files", "compact", str(tmp_path / "none")]) == 2
    assert "no manifest" in capsys.readouterr().err
