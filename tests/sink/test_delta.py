"""A Delta table keeps the contract, and what only it promises."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from millstream import Pipeline
from millstream.errors import PlanError, SinkError, SinkForgot, SinkUnavailable
from millstream.failpoint import armed
from millstream.sink import ChangeSet, Sink
from millstream.sink.delta import DeltaSink
from tests.contracts.sink import KEY, SCHEMA, Rows, SinkContract, change_set, named, send

APP = "millstream.shop.out"


def open_sink(folder: Path, key: tuple[str, ...] = KEY, partition: tuple[str, ...] = ()) -> Sink:
    return DeltaSink(folder, "totals", APP, key, partition)


def rows_in(folder: Path) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(folder)):
        return []
    return pl.DataFrame(DeltaTable(folder).to_pyarrow_table()).to_dicts()


def once(folder: Path) -> Rows:
    """What is there, each key once."""
    found = rows_in(folder)
    assert len({row["name"] for row in found}) == len(found)
    return named(found)


class TestDelta(SinkContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "lake" / "totals"

    @pytest.fixture
    def again(self, folder: Path) -> Callable[[], Sink]:
        return lambda: open_sink(folder)

    @pytest.fixture
    def sent(self, folder: Path) -> Callable[[], Rows]:
        return lambda: once(folder)

    def test_a_batch_that_changes_nothing_has_its_number_too(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        send(sink, 1, {"ann": (1, 1.0)})
        send(sink, 2, {}, gone=("nobody",))
        assert (sink.last(), sent()) == (2, {"ann": (1, 1.0)})
        send(sink, 3, {"bob": (1, 1.0)}, gone=("ann",))
        assert sent() == {"bob": (1, 1.0)}

    def test_maintenance_of_the_table_takes_neither_rows_nor_the_number(
        self, sink: Sink, folder: Path, sent: Callable[[], Rows]
    ) -> None:
        for number in range(1, 5):
            send(sink, number, {f"user {number}": (number, 0.5)})
        DeltaTable(folder).optimize.compact()
        DeltaTable(folder).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        DeltaTable(folder).create_checkpoint()
        for file in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
            file.unlink()  # as the log's retention does, behind a checkpoint
        assert sink.last() == 4
        send(sink, 5, {"user 5": (5, 0.5)}, gone=("user 1",))
        assert sent() == {f"user {number}": (number, 0.5) for number in (2, 3, 4, 5)}

    def test_a_table_that_was_taken_back_to_an_older_version_is_noticed_and_filled_anew(
        self, sink: Sink, folder: Path, sent: Callable[[], Rows]
    ) -> None:
        send(sink, 1, {"ann": (1, 1.0)})
        send(sink, 2, {"bob": (2, 2.0)})
        (folder / "_delta_log" / f"{1:020d}.json").unlink()  # as a copy of an older backup has it
        payload, _ = sink.pack(change_set({"eve": (3, 3.0)}))
        with pytest.raises(SinkForgot, match="expected batch number 2, found 1"):
            sink.send(payload, 3, marked=True, after=2)
        assert sink.anew()
        sink.send(payload, 3, marked=True)
        assert sent() == {"eve": (3, 3.0)}

    @pytest.mark.parametrize("times", [1, 100])
    def test_who_loses_a_race_of_commits_reads_again(
        self, sink: Sink, folder: Path, sent: Callable[[], Rows], monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        send(sink, 1, {"ann": (1, 1.0), "bob": (2, 2.0)})
        reading, left = DeltaSink._known, [times]

        def raced(self: DeltaSink, table: Any) -> int | None:
            known = reading(self, table)
            if table is not None and known == 1 and left[0]:  # between what was read and the commit
                left[0] -= 1
                other = pl.DataFrame([(f"other {left[0]}", 0, 0.0)], schema=SCHEMA, orient="row")
                write_deltalake(folder, other, mode="append")
            return known

        monkeypatch.setattr(DeltaSink, "_known", raced)
        if times == 1:
            send(sink, 2, {"ann": (5, 5.0)}, gone=("bob",))
            assert sent() == {"ann": (5, 5.0), "other 0": (0, 0.0)}
        else:
            with pytest.raises(SinkUnavailable, match="somebody else committed 10 times"):
                send(sink, 2, {"ann": (5, 5.0)})
            assert sink.last() == 1

    def test_two_that_send_at_once_end_with_what_the_newer_one_says(
        self, folder: Path, sent: Callable[[], Rows], again: Callable[[], Sink]
    ) -> None:
        with again() as zombie, again() as newer:
            first = threading.Thread(
                target=lambda: [send(zombie, n, {"ann": (n, 0.0), f"old {n}": (n, 0.0)}) for n in range(1, 9)]
            )
            first.start()
            send(newer, 1 << 32, {"ann": (-1, 9.0)})
            first.join()
            found = sent()
            assert found["ann"] == (-1, 9.0)
            assert newer.last() == 1 << 32
            send(zombie, 9, {"ann": (9, 0.0)})
            assert sent() == found


def test_a_process_that_is_killed_at_any_moment_leaves_each_batch_once(tmp_path: Path) -> None:
    folder, chance = tmp_path / "t", random.Random(7)
    code = (
        "from tests.sink.test_delta import *\n"
        f"with open_sink(Path({str(folder)!r}), ()) as sink:\n"
        "    at = (sink.last() or 0) + 1\n"
        "    print(at, flush=True)\n"
        "    for n in range(at, at + 400):\n"
        "        payload, _ = sink.pack(change_set({f'row {n} {k}': (n, 0.5) for k in range(3)}))\n"
        "        sink.send(payload, n, marked=True)\n"
    )
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            timer = threading.Timer(chance.uniform(0.05, 0.5), process.send_signal, (signal.SIGKILL,))
            timer.start()
            process.wait(120)
            timer.cancel()
    last = open_sink(folder, ()).last() or 0
    assert last > 4
    assert sorted(row["n"] for row in rows_in(folder)) == [n for n in range(1, last + 1) for _ in range(3)]


def test_a_process_that_is_killed_after_its_commit_sends_the_batch_no_second_time(tmp_path: Path) -> None:
    code = (
        "from tests.sink.test_delta import *\n"
        f"with open_sink(Path({str(tmp_path)!r}), ()) as sink:\n    send(sink, 1, {{'ann': (1, 1.0)}})\n"
    )
    killed = {**os.environ, "MILLSTREAM_FAILPOINT": "sink.delta.committed:kill"}
    assert subprocess.run([sys.executable, "-c", code], env=killed, timeout=120).returncode == -signal.SIGKILL
    with open_sink(tmp_path, ()) as sink:
        assert sink.last() == 1
        send(sink, 1, {"ann": (1, 1.0)})
    assert len(rows_in(tmp_path)) == 1


def test_rows_of_a_view_without_a_key_are_appended(tmp_path: Path) -> None:
    with open_sink(tmp_path, ()) as sink:
        frame = change_set({"ann": (1, 1.0), "bob": (2, float("nan"))}).rows.with_columns(_weight=pl.Series([1, -2]))
        for number in (1, 1, 2):
            sink.send(sink.pack(ChangeSet(frame, pl.DataFrame())).payload, number, marked=True)
        assert not sink.anew()
    assert sorted((row["name"], row["_weight"]) for row in rows_in(tmp_path)) == [("ann", 1)] * 2 + [("bob", -2)] * 2


def test_a_table_may_be_there_already_and_have_folders_by_columns_of_the_key(tmp_path: Path) -> None:
    mine = pl.DataFrame([("ann", 7, 7.0), ("mine", 8, 8.0)], schema=SCHEMA, orient="row")
    write_deltalake(tmp_path, mine, partition_by=["name"])
    with open_sink(tmp_path, KEY, KEY) as sink:
        send(sink, 1, {"ann": (1, 1.0), "a/b=c%": (2, 2.0)})
        assert once(tmp_path) == {"ann": (1, 1.0), "mine": (8, 8.0), "a/b=c%": (2, 2.0)}
    with open_sink(tmp_path / "new", KEY, KEY) as sink:
        send(sink, 1, {"ann": (1, 1.0), "a/b=c%": (2, 2.0)})
        send(sink, 2, {"a/b=c%": (3, 2.0)}, gone=("ann",))
        assert once(tmp_path / "new") == {"a/b=c%": (3, 2.0)}
    assert DeltaTable(tmp_path / "new").metadata().partition_columns == ["name"]
    assert DeltaTable(tmp_path / "new").metadata().name == "totals"


def test_keys_that_are_null_are_keys(tmp_path: Path) -> None:
    schema = {"name": pl.String, "n": pl.Int64}
    frame = pl.DataFrame([(None, 1), ("ann", 2)], schema=schema, orient="row")
    with open_sink(tmp_path) as sink:
        for number in (1, 2):
            rows = frame.with_columns(n=pl.col("n") * number)
            sink.send(sink.pack(ChangeSet(rows, frame.clear().select("name"))).payload, number, marked=True)
        assert {row["name"]: row["n"] for row in rows_in(tmp_path)} == {None: 2, "ann": 4}
        sink.send(sink.pack(ChangeSet(frame.clear(), frame[:1].select("name"))).payload, 3, marked=True)
        assert {row["name"]: row["n"] for row in rows_in(tmp_path)} == {"ann": 4}


def test_a_table_of_other_columns_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pl.DataFrame({"name": ["x"], "n": ["text"], "more": [1]}))
    with open_sink(tmp_path) as sink, pytest.raises(SinkError) as refused:
        send(sink, 1, {"ann": (1, 1.0)})
    assert "has the columns n string, more long; view totals has n long, total double" in refused.value.message
    assert "empty folder" in refused.value.hint
    assert DeltaTable(tmp_path).version() == 0


def test_a_column_of_nothing_but_null_is_refused_with_the_cast_to_write(tmp_path: Path) -> None:
    rows = pl.DataFrame({"name": ["ann"], "n": [None]})
    with open_sink(tmp_path) as sink, pytest.raises(SinkError) as refused:
        sink.send(sink.pack(ChangeSet(rows, rows.clear().select("name"))).payload, 1, marked=True)
    assert "cast(n AS string)" in refused.value.hint


def test_a_file_that_a_crash_of_the_machine_cut_short_is_noticed(tmp_path: Path) -> None:
    with open_sink(tmp_path) as sink:
        send(sink, 1, {"ann": (1, 1.0)})
    (file,) = tmp_path.glob("*.parquet")
    file.write_bytes(b"")
    with pytest.raises(SinkError, match="is not whole"):
        open_sink(tmp_path)


def test_a_batch_that_fails_after_its_commit_is_there(tmp_path: Path) -> None:
    with open_sink(tmp_path) as sink:
        with armed("sink.delta.committed"), pytest.raises(RuntimeError):
            send(sink, 1, {"ann": (1, 1.0)})
        send(sink, 1, {"ann": (1, 1.0)})
        assert once(tmp_path) == {"ann": (1, 1.0)}


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("delta:x?partition=nothing", "has the columns name, n"),
        ("delta:x?partition=n", "only the key of its row, name"),
        ("delta:x?format=json", "found format=, expected partition="),
        ("delta:s3://bucket/x", "expected a folder of this machine"),
    ],
)
def test_an_address_names_a_folder_and_columns_of_the_key(to: str, message: str) -> None:
    pipeline = Pipeline("p")
    view = pipeline.view("v", pipeline.stream("s", "name string").group_by("name").agg(n="count(*)"))
    with pytest.raises(PlanError, match=rf"test_delta\.py:\d+: sink out: .*{message}"):
        pipeline.sink("out", view, to)
    assert pipeline.sink("out", view, "delta:x?partition=name").mode == "exactly_once"
