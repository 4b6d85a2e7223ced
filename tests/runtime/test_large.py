"""Large, deep and bad records through a pipeline: right, in batches and pieces of bounded size, and nothing stops."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millstream.errors import BadEvent
from millstream.event import Event
from millstream.log import open_log
from millstream.log.archive import Archive
from millstream.log.embedded.file import MOST_BYTES
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.spark.options import Options
from millstream.spark.source import StreamReader, Task
from millstream.store import open_reader
from tests.contracts.log import name

MB = 1_000_000


def large(n: int, size: int) -> Event:
    head = json.dumps({"n": n, "text": ""})[:-2]
    return Event(f'{head}{"x" * (size - len(head) - 2)}"}}'.encode())


def test_records_of_the_largest_size_are_read_in_pieces(tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path / 'log.db'}", create=True) as log:
        log.create_topic("t", 1)
        for n in range(0, 100, 10):
            log.append("t", [large(n + i, MB) for i in range(10)])
    reader = StreamReader(Options.of({"log": f"sqlite:{tmp_path / 'log.db'}", "subscribe": "t"}))
    try:
        [task] = reader.partitions({"t": {"0": 0}}, {"t": {"0": 100}})
        assert isinstance(task, Task)
        sizes = [(batch.num_rows, pa.Table.from_batches([batch]).nbytes) for batch in reader.read(task)]
    finally:
        reader.stop()
    assert sum(rows for rows, _ in sizes) == 100
    assert max(size for _, size in sizes) < MOST_BYTES + MB
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        archive = Archive(tmp_path / "archive", "t")
        archive.take(log)
    pieces = [batch.num_rows for batch in archive.read(0, 0, 100)]
    assert sum(pieces) == 100
    assert max(pieces) * MB < MOST_BYTES + MB


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_batches_are_bounded_in_bytes_and_bad_records_stop_nothing(
    engine: str, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("kafka").url if engine == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    topic = name()
    made = Pipeline("p", log=url, to=f"sqlite:{tmp_path / 'views.db'}", buckets=1)
    made.checkpoint = str(tmp_path / "check")
    made.view(
        "v",
        made.stream("t", "n long, text string", topic=topic).group_by().agg(n="count(*)", bytes="sum(length(text))"),
    )
    with open_log(made.log, create=True) as log:
        log.create_topic(topic, 1)
        for n in range(0, 30, 5):
            log.append(topic, [large(n + i, 200_000) for i in range(5)])
        with pytest.raises(BadEvent):
            log.append(topic, [large(0, MB + 1)])
        log.append(
            topic, [Event(b"[" * 200_000), Event(b'{"n":' * 100_000), *(Event(b"nonsense") for _ in range(3_000))]
        )
    seen: list[Progress] = []
    run(made, spark=spark, once=True, byte_limit=1_000_000, progress=seen.append)
    done = [each.records for each in seen]
    assert all(min(after, 30) - before <= 10 for before, after in pairwise([0, *done])), "2 MB of the large ones"
    assert (done[-1], seen[-1].admitted, seen[-1].malformed) == (3_032, 30, 3_002)
    length = 200_000 - len('{"n": 0, "text": ""}')
    rows = made.views["v"].to_arrow().to_pylist()
    assert rows == [{"n": 30, "bytes": 30 * length - 20}]
    with open_reader(made.to) as store:
        letters = store.dead_letters("p", limit=5_000).to_pylist()
    assert max(len(each["detail"]) for each in letters) < 1_000
