"""A disk that fails under an open file ends a run: the file is closed for good, and waiting for it would never end."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import LogFailed, ViewStoreFailed
from millstream.log import open_log
from millstream.relation.sinks import Mode
from millstream.runtime.run import Progress, run
from millstream.runtime.sink_dispatch import Patience
from millstream.sink.topic import TopicSink
from tests.contracts.sink import KEY, send
from tests.runtime.shop_file import admission, append_clicks, load, write_shop
from tests.runtime.test_forgets import View


@contextmanager
def failing_writes() -> Iterator[None]:
    """Let every write of this process that makes a file larger than a page fail, as it does on a disk that is broken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_log_that_has_failed_is_not_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    with TopicSink(open_log(f"sqlite:{tmp_path / 'log.db'}"), "t", "p", KEY) as sink:
        send(sink, 1, {"ann": (1, 1.0)})
        patience = Patience(threading.Event(), said.append)
        for _ in range(2):  # the second time it is closed
            with failing_writes(), pytest.raises(LogFailed):
                patience.call("sink", lambda: send(sink, 2, {"ann": (2, 2.0)}))
    assert said == []


@pytest.mark.parametrize("mode", ["exactly_once", "at_most_once"])
def test_a_sink_into_such_a_log_ends_the_run_and_loses_nothing(tmp_path: Path, mode: Mode) -> None:
    view = View(tmp_path, lambda: TopicSink(open_log(f"sqlite:{tmp_path / 'log.db'}"), "t", "p", ("k",)), mode=mode)
    view.start()
    view.send({"a": 1})
    with failing_writes(), pytest.raises(LogFailed):
        view.send({"b": 2})
    assert view.said == []


def test_a_run_ends_when_the_disk_fails_under_its_views(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    seen: list[Progress] = []
    stack = ExitStack()

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 1:  # the first batch is done, the second comes
            stack.enter_context(failing_writes())

    with stack, pytest.raises(ViewStoreFailed, match="disk I/O error") as caught:
        run(load(file), spark=spark, once=True, rate_limit=50, progress=watch)
    assert "run again" in caught.value.hint
    assert [each.waiting for each in seen if each.waiting] == []
    run(load(file), spark=spark, once=True, takeover=True)  # this process could not give back the lease
    counts = admission(load(file))
    assert sum(row["records"] for row in counts) == 100
    kept = sum(row["n"] for row in load(file).views["by_user"].to_arrow().to_pylist())
    assert kept == sum(row["admitted"] for row in counts) > 0
