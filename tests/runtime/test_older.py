"""Checkpoint, views and log of different ages: a run goes on only where all of them fit together."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millstream.errors import CheckpointMismatch, LogError, OffsetOutOfRange, SparkError
from millstream.event import Event
from millstream.failpoint import armed
from millstream.log import open_log
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.pipeline import Pipeline
from millstream.runtime.batch import run_batch
from millstream.runtime.rebuild import rebuild
from millstream.runtime.run import Progress, run
from millstream.runtime.time_travel import as_of
from millstream.runtime.verify import verify
from millstream.spark.options import Options
from millstream.spark.source import StreamReader
from millstream.testing import KafkaBroker
from tests.contracts.log import name
from tests.runtime.shop_file import append_clicks, batches, load, write_shop


def counts(folder: Path, log: str, topic: str = "clicks", label: str = "shop") -> Pipeline:
    """How many clicks there are of each page."""
    made = Pipeline(
        "counts", log=log, to=f"sqlite:{folder / label}.db", checkpoint=str(folder / f"{label}.check"), buckets=1
    )
    made.view("pages", made.stream("clicks", "page string", topic=topic).group_by("page").agg(n="count(*)"))
    return made


def pages(*names: str) -> list[Event]:
    return [Event(b'{"page": "%s"}' % name.encode()) for name in names]


def put(folder: Path, copy: Path) -> None:
    """Let a folder, or a file of views, be as its copy is."""
    for old in (folder, folder.with_name(f"{folder.name}-wal"), folder.with_name(f"{folder.name}-shm")):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    shutil.copytree(copy, folder) if copy.is_dir() else shutil.copy(copy, folder)


def places(folder: Path) -> Iterator[Path]:
    yield folder / "check"
    yield folder / "views.db"


@pytest.mark.timeout(400)
def test_a_run_goes_on_only_where_checkpoint_and_views_fit_together(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    pipeline = load(file)
    copies = {}
    for at, first in ((1, 0), (4, 100)):
        append_clicks(tmp_path, first, 100 if first == 0 else 150)
        run(pipeline, spark=spark, once=True, rate_limit=50)
        assert batches(pipeline)[-1][0] == at
        for path in places(tmp_path):
            copies[at, path.name] = copy = tmp_path / f"copy-{at}-{path.name}"
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    append_clicks(tmp_path, 250, 50)
    check, views = places(tmp_path)
    whole = {view.name: view.to_arrow() for view in pipeline.views.values()}

    def refused(match: str, hint: str = "--rebuild") -> None:
        with pytest.raises(CheckpointMismatch, match=match) as caught:
            run(pipeline, spark=spark, once=True, rate_limit=50)
        assert hint in caught.value.hint

    put(check, copies[1, "check"])
    refused("the checkpoint .*/check is older than the views: it ends at batch 1, they are at batch 4, 3 later")
    assert {view.name: view.to_arrow() for view in pipeline.views.values()} == whole
    put(check, copies[4, "check"])

    put(views, copies[1, "views.db"])
    refused(
        "the views in sqlite:.*/views.db are older than the checkpoint: they are at batch 1, it has finished batch 4"
    )
    put(views, copies[4, "views.db"])

    views.unlink()
    refused("check is there, but its views in .*/views.db are gone", f"restore {views}")
    assert not views.exists()
    put(views, copies[4, "views.db"])

    (check / "millstream.json").write_text('{"id": ')
    refused("millstream.json: cannot be read")
    put(check, copies[4, "check"])

    for part in ("offsets", "state"):
        shutil.rmtree(check / part)
        refused(f"{part}.* is gone", "restore")
        put(check, copies[4, "check"])

    changes = next((check / "state").rglob("*.changelog"))
    changes.write_bytes(b"")
    refused("changelog is empty: it was cut short", "restore")
    put(check, copies[4, "check"])
    changes.with_name(
        f"..{changes.name}.tmp.crc"
    ).touch()  # what a full disk leaves of a file that Spark did not finish

    (check / "commits" / "4").unlink()  # all that a power cut may take: the batch is planned for good, and comes again
    (check / "commits" / ".4.crc").unlink(missing_ok=True)
    run(pipeline, spark=spark, once=True, rate_limit=50)
    assert [batch for batch, _ in batches(pipeline)] == [0, 1, 2, 3, 4, 5]

    append_clicks(tmp_path, 300, 150)
    with armed("run.before_delivery"), pytest.raises(SparkError):
        run(pipeline, spark=spark, once=True)  # a batch of 150 is planned, and cannot be done
    assert (check / "offsets" / "6").exists()
    run(pipeline, spark=spark, once=True, rate_limit=50)
    assert [batch for batch, _ in batches(pipeline)] == list(range(9))
    assert verify(pipeline, spark=spark).equal

    (check / "millstream.json").write_text("{}")
    run(pipeline, spark=spark, once=True, rebuild=True)
    assert verify(pipeline, spark=spark).equal


@pytest.mark.timeout(400)
@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_a_topic_that_was_deleted_and_made_again_is_not_the_one_that_was_read(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    broker: KafkaBroker | None = request.getfixturevalue("kafka") if engine == "kafka" else None
    url = broker.url if broker else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as log:
        topic = log.create_topic(name()).name
        log.append(topic, pages("a", "b", "c"))
        pipeline = counts(tmp_path, url, topic)
        run(pipeline, spark=spark, once=True)
        log.delete_topic(topic)
        log.create_topic(topic)
        log.append(topic, pages(*"defghijkl"))
        before = pipeline.views["pages"].to_polars().rows()
        for call in (
            lambda: run(pipeline, spark=spark, once=True),
            lambda: verify(pipeline, spark=spark),
            lambda: as_of(pipeline, "pages", 0, spark=spark),
            lambda: rebuild(pipeline, spark=spark),
        ):
            with pytest.raises(CheckpointMismatch, match=f"topic {topic} was deleted and made again") as caught:
                call()
            assert "run --rebuild" in caught.value.hint
        assert pipeline.views["pages"].to_polars().rows() == before
        run(pipeline, spark=spark, once=True, rebuild=True)
        assert pipeline.views["pages"].to_polars().rows() == [(page, 1) for page in "defghijkl"]
        assert verify(pipeline, spark=spark).equal
        if broker:
            return
        log.append(topic, pages("m"))
    older = tmp_path / "older.db"
    shutil.copy(tmp_path / "log.db", older)
    with open_log(url) as log:
        log.append(topic, pages("n", "o"))
    run(pipeline, spark=spark, once=True)
    put(tmp_path / "log.db", older)
    for again in (partial(run, once=True), verify):
        with pytest.raises(
            CheckpointMismatch, match=r"the log is older than the views: .* ends at offset 10, .* up to 12"
        ):
            again(pipeline, spark=spark)
    with open_log(url) as log:
        log.append(topic, pages("x"))
    reader = StreamReader(Options.of({"log": url, "subscribe": topic}))
    with pytest.raises(OffsetOutOfRange, match="offset 12 is beyond the end; the next one is 11"):
        reader.latestOffset({topic: {"0": 12}}, ReadAllAvailable())
    reader.stop()


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_a_topic_that_is_made_again_under_a_run_ends_it_before_anything_of_it_is_written(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    url = request.getfixturevalue("kafka").url if engine == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as log:
        topic = log.create_topic(name()).name
        log.append(topic, pages("a", "b", "c"))
        pipeline = counts(tmp_path, url, topic)

        stop = threading.Event()

        def make_again(progress: Progress) -> None:
            if (progress.batch or 0) > 0:
                stop.set()
            elif progress.batch == 0 and not progress.waiting and log.topic_id(topic) == first:
                log.delete_topic(topic)
                log.create_topic(topic)
                log.append(topic, pages(*"defghijkl"))

        first = log.topic_id(topic)
        with pytest.raises(CheckpointMismatch, match=f"topic {topic} was deleted and made again"):
            run(pipeline, spark=spark, interval="100 milliseconds", progress=make_again, stop=stop)
    assert pipeline.views["pages"].to_polars().rows() == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.timeout(400)
def test_history_that_is_gone_is_an_error_unless_it_is_archived_or_to_be_forgotten(
    spark: SparkSession, tmp_path: Path
) -> None:
    now = [1_767_225_600_000]
    log = SqliteLog(tmp_path / "log.db", clock=lambda: now[0])
    hour = timedelta(hours=1)
    log.create_topic("kept", 2, TopicSettings(retention=hour, archive="archive"))
    log.create_topic("lost", 1, TopicSettings(retention=hour))
    kept, lost = (counts(tmp_path, log.url, topic, topic) for topic in ("kept", "lost"))
    other = f"sqlite:{tmp_path / 'batch.db'}"

    def append(first: int) -> None:
        for number in range(first, first + 30, 10):
            now[0] += 10
            for topic in ("kept", "lost"):
                events = pages(*(f"p{each % 7}" for each in range(number, number + 10)))
                log.append(topic, [event._replace(key=b"%d" % place) for place, event in enumerate(events)])

    append(0)
    for pipeline in (kept, lost):
        run(pipeline, spark=spark, once=True)
    run_batch(lost, spark=spark, to=other)
    now[0] += 2 * 3_600_000
    append(30)
    for topic in ("kept", "lost"):
        log.maintain(topic)
    assert log.bounds("lost")[0].start == 30
    assert all(bound.start > 0 for bound in log.bounds("kept").values())

    run(kept, spark=spark, once=True)
    whole = kept.views["pages"].to_polars().rows()
    assert sum(n for _, n in whole) == 60
    assert verify(kept, spark=spark).equal
    assert sum(as_of(kept, "pages", 0, spark=spark)["n"].to_pylist()) == 30
    done = run(kept, spark=spark, once=True, rebuild=True, rate_limit=10)
    assert (done.batch, done.records) == (5, 60)  # an append is a batch, in the archive too
    assert kept.views["pages"].to_polars().rows() == whole
    assert run_batch(kept, spark=spark, out=tmp_path / "out").counts["records"] == 60
    second = datetime.fromtimestamp(
        1_767_225_600.020, UTC
    )  # when the second ten were appended, which only the archive has
    assert run_batch(kept, spark=spark, start=second, out=tmp_path / "part").counts["records"] == 50

    run(lost, spark=spark, once=True)
    before = lost.views["pages"].to_polars().rows()
    calls: list[Callable[..., Any]] = [
        partial(run, once=True, rebuild=True), rebuild, partial(run_batch, to=other), verify, partial(as_of, view="pages", at=0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(OffsetOutOfRange, match="topic lost partition 0: offsets 0 to 29 are gone") as caught:
            call(lost, spark=spark)
        assert caught.value.missing == (0, 30)
        assert "--forget-history" in caught.value.hint
    assert lost.views["pages"].to_polars().rows() == before
    for call in calls[:3]:
        call(lost, spark=spark, forget_history=True)
    assert sum(n for _, n in lost.views["pages"].to_polars().rows()) == 30

    log.delete_topic("kept")
    log.create_topic("kept", 2, TopicSettings(retention=hour, archive="archive"))
    with pytest.raises(LogError, match=r"archive .*/kept: it is of a topic kept that was deleted and made again"):
        run(kept, spark=spark, once=True, rebuild=True)
    log.close()
