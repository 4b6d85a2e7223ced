"""A partition that has nothing to say, while the pipeline runs on: it holds nobody back, and its heartbeats are few."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product, starmap
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.kernel.admission.record import IGNORED, beat_of
from millstream.kernel.state.store import FOREVER
from millstream.log import open_log
from millstream.log.heartbeat import PREFIX, heartbeat_sql, read_heartbeat
from millstream.log.partitioner import partition_of
from millstream.pipeline import Pipeline
from millstream.relation.nodes import EventTime
from millstream.runtime.heartbeats import Quiet, due
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.store import open_reader, open_writer
from millstream.window import tumbling

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEY = next(key for key in (b"%d" % number for number in range(9)) if partition_of(key, 2) == 0)


def test_a_silent_partition_gets_a_heartbeat_a_batch_and_windows_close(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline(
        "beat",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "check"),
        buckets=1,
    )
    ticks = made.stream("ticks", "at timestamp", time="at", idle="10 minutes")
    made.view("closed", ticks.group_by(tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")
    stop = threading.Event()
    closed: list[int] = []
    with open_log(made.log, create=True) as log:
        log.create_topic("ticks", 2)

        def append(minute: int) -> None:
            at = [BEGIN + timedelta(minutes=minute, seconds=second) for second in range(0, 60, 10)]
            log.append("ticks", [Event(json.dumps({"at": each.isoformat()}).encode(), key=KEY) for each in at])

        def after(progress: Progress) -> None:
            closed.append(made.views["closed"].to_arrow().num_rows)
            append(len(closed))
            if closed[-1] >= 3 or len(closed) > 20:
                stop.set()

        append(0)
        run(made, spark=spark, stop=stop, progress=after)
        assert closed[-1] >= 3
        assert log.bounds("ticks")[1].end == 0  # nothing is written into the topic
    verified = verify(made, spark=spark)
    assert verified.equal, verified


def test_only_a_heartbeat_of_exactly_our_form_is_one_and_every_record_is_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = Pipeline(
        "exact",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "check"),
        buckets=1,
    )
    ticks = made.stream("ticks", "at timestamp", time="at")
    names = made.table("names", "id string, name string", key="id")
    made.view("counted", ticks.group_by().agg(n="count(*)"))
    made.view("named", names)

    def tick(second: int) -> bytes:
        return json.dumps({"at": (BEGIN + timedelta(seconds=second)).isoformat()}).encode()

    far = int(datetime(2099, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    said = int(BEGIN.timestamp()) * 1_000_000
    forged = [
        (b"millstream.heartbeats-report", tick(1), "admitted"),
        (b"millstream.heartbeat.0", tick(2), "admitted"),
        (b"millstream.heartbeat.0", b"nonsense", "malformed"),
        (b"millstream.heartbeat.0", None, "malformed"),
        (b"millstream.heartbeat.0", b'{"time":null,"pipeline":null}', "malformed"),
        (b"millstream.heartbeat.0", b'{"time":%d,"pipeline":null}' % far, "future"),
        (b"millstream.heartbeat.0", b'{"time":%d,"pipeline":"exact"}' % said, "heartbeats"),
        (b"millstream.heartbeat.0", b'{"time":null,"pipeline":"other"}', "heartbeats"),
    ]
    with open_log(made.log, create=True) as log:
        log.create_topic("ticks")
        log.create_topic("names")
        log.append(
            "ticks", [Event(tick(0)), *(Event(value, key) for key, value, _ in forged), Event(tick(3))], own=True
        )
        log.append("names", [Event(b'{"name": "n"}', b"millstream.heartbeat.7")], own=True)
    run(made, spark=spark, once=True)
    with open_reader(made.to) as store:
        (counted,) = (row for row in store.admission().to_pylist() if row["topic"] == "ticks")
    fates = Counter(fate for *_, fate in forged) + Counter(admitted=2)
    assert {name: counted[name] for name in fates} == fates
    assert counted["records"] == len(forged) + 2 - fates["heartbeats"]
    assert made.views["counted"].to_arrow().to_pylist() == [{"n": fates["admitted"]}]
    assert made.views["named"].to_arrow().to_pylist() == [{"id": "millstream.heartbeat.7", "name": "n"}]
    assert verify(made, spark=spark).equal


def test_spark_reads_heartbeats_as_python_does(spark: SparkSession) -> None:
    keys = [None, PREFIX, PREFIX + b"0", PREFIX + b"7\n", PREFIX + b"\xff", PREFIX + "٣".encode(), b"x" + PREFIX + b"1"]
    said = [b'{"time":%b,"pipeline":%b}' % pair for pair in product((b"5", b"-5", b"null", b"05", b"1e3", b"9" * 19),
        (b"null", b'"p"', b'"q"', b'""', b'"p\n"'))]  # fmt: skip
    values = [None, b"{}", b"\xff", b" " + said[0], said[0] + b"\n", *said]
    pairs = [(key, value) for key in keys for value in values]
    expected = [None if found is None else beat_of(found, "p") for found in starmap(read_heartbeat, pairs)]
    frame = spark.createDataFrame([(n, *pair) for n, pair in enumerate(pairs)], "n int, key binary, value binary")
    sql = heartbeat_sql("p", ended=FOREVER, ignored=IGNORED)
    assert [row.beat for row in frame.selectExpr("n", f"{sql} AS beat").sort("n").collect()] == expected
    assert {5, -5, FOREVER, IGNORED} < set(expected)


def test_a_partition_that_is_behind_is_not_idle_however_old_its_last_record() -> None:
    time = EventTime("at", idle=timedelta(seconds=1))
    behind = {0: Quiet(50, 60, unread=True), 1: Quiet(40, 60)}
    assert due(time, behind, 90_000_000) == {1: 50}
    assert due(time, {0: Quiet(50, 60, unread=True), 1: Quiet(40, 60, unread=True)}, 90_000_000) == {}
    assert due(time, {0: Quiet(50, 60), 1: Quiet(40, 60)}, 90_000_000) == {0: 89_000_000, 1: 89_000_000}


def test_the_clock_says_nothing_where_events_are_older_than_their_append_allows() -> None:
    second = 1_000_000
    time = EventTime("at", delay=timedelta(seconds=10), idle=timedelta(seconds=30))
    now, append = 10_000 * second, 9_000 * second
    newest = append - 40 * second  # as old as the delay and the idle time together
    assert due(time, {0: Quiet(newest - 10 * second, append)}, now) == {0: now - 40 * second}
    assert due(time, {0: Quiet(newest - 10 * second - 1, append)}, now) == {}
    # History in one of two partitions is enough, and a partition without events says nothing.
    live = Quiet(append - 10 * second, append)
    assert due(time, {0: live, 1: Quiet(0, append)}, now) == {}
    assert due(time, {0: live, 1: Quiet(None, None)}, now) == dict.fromkeys((0, 1), now - 40 * second)
    assert due(time, {0: Quiet(None, append)}, now) == {}
    # Partitions that are idle beside others still follow those.
    assert due(time, {0: Quiet(0, now), 1: Quiet(None, None)}, now) == {1: 0}


def test_a_live_run_over_events_of_january_says_nothing_of_their_time(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline(
        "fill",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "check"),
        buckets=1,
    )
    for name in ("january", "today"):
        ticks = made.stream(name, "at timestamp", time="at", delay="1 second", idle="2 seconds")
        made.view(f"{name}_closed", ticks.group_by(tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")
    stop = threading.Event()
    told: list[Progress] = []
    with open_log(made.log, create=True) as log:
        for name in ("january", "today"):
            log.create_topic(name)

        def append(topic: str, at: datetime) -> None:
            log.append(topic, [Event(json.dumps({"at": at.isoformat()}).encode())])

        def spoken() -> set[str]:
            """The topics for which the clock has spoken."""
            with open_writer(made.to) as store:
                return {beat.topic for *_, beat in store.heartbeats("fill")}

        def after(progress: Progress) -> None:
            told.append(progress)
            if progress.admitted == 3 or progress.late:
                stop.set()
            elif log.bounds("january")[0].end == 1 and spoken():
                append("january", BEGIN + timedelta(minutes=5))

        append("january", BEGIN)
        append("today", datetime.now(UTC))
        patience = threading.Timer(120, stop.set)
        patience.start()
        run(made, spark=spark, stop=stop, progress=after)
        patience.cancel()
        assert (told[-1].admitted, told[-1].late) == (3, 0)
        assert spoken() == {"today"}
        assert [log.bounds(name)[0].end for name in ("january", "today")] == [2, 1]
    assert made.views["january_closed"].to_arrow().column("n").to_pylist() == [1]


def test_a_run_without_heartbeats_makes_none_and_one_with_them_does(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("silent", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'views.db'}", buckets=1)
    made.checkpoint = str(tmp_path / "check")
    made.view("counted", made.stream("ticks", "at timestamp", time="at").group_by().agg(n="count(*)"))
    with open_log(made.log, create=True) as log:
        log.create_topic("ticks", 1)
        log.append("ticks", [Event(json.dumps({"at": BEGIN.isoformat()}).encode())])
        run(made, spark=spark, once=True)
        with open_writer(made.to) as store:
            for partitions, wanted in ((2, False), (3, True)):  # a partition that is new gets a heartbeat at the start
                log.alter_topic("ticks", partitions=partitions)
                run(made, spark=spark, once=True, heartbeats=wanted)
                assert any(beat.partition == partitions - 1 for *_, beat in store.heartbeats("silent")) == wanted
        assert [bound.end for bound in log.bounds("ticks").values()] == [1, 0, 0]
