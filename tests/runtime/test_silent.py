"""Time goes on beside a partition that is silent, and nobody's topic is written to: streamed, killed, verified, rebuilt, closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.errors import NotAllowed, SparkError
from millstream.event import Event
from millstream.failpoint import armed
from millstream.kernel.state.store import FOREVER
from millstream.log import Log, open_log
from millstream.log.partitioner import partition_of
from millstream.pipeline import Pipeline
from millstream.runtime.checkpoint import open_checkpoint
from millstream.runtime.offset_log import plan_of
from millstream.runtime.rebuild import rebuild
from millstream.runtime.run import run
from millstream.runtime.setup import chain_of
from millstream.runtime.time_travel import as_of
from millstream.runtime.verify import verify
from millstream.testing import KafkaBroker
from millstream.testing.process import free_ports
from millstream.window import tumbling
from tests.contracts.log import name
from tests.runtime.shop_file import admission

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = {partition_of(b"%d" % number, 2): b"%d" % number for number in range(9)}


@pytest.fixture(params=["sqlite", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("kafka").url) if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}"


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    with open_log(url, create=True) as log:
        yield log


def ticks(folder: Path, url: str, topic: str, **settings: Any) -> Pipeline:
    made = Pipeline(
        "ticks", log=url, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "check"), buckets=2, **settings
    )
    stream = made.stream("ticks", "name string, at timestamp", topic=topic, time="at", delay="5 seconds")
    made.view("closed", stream.group_by(tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")
    rates = made.table("rates", "name string, rate int", key="name", topic=f"{topic}-rates")
    at_the_time = stream.join(rates, on="name", as_of="at")
    made.view("rated", at_the_time.group_by("rate").agg(n="count(*)"))
    return made


def at(second: int, partition: int = 0) -> Event:
    moment = BEGIN + timedelta(seconds=second)
    value = {"name": "ab"[second % 2], "at": moment.isoformat()}
    return Event(json.dumps(value).encode(), KEYS[partition], time=moment)


def rate(number: int, second: int) -> Event:
    moment = BEGIN + timedelta(seconds=second)
    return Event(json.dumps({"name": "ab"[number % 2], "rate": number}).encode(), b"ab"[number % 2 :][:1], time=moment)


def held(made: Pipeline) -> tuple[Any, ...]:
    """All views, and what became of the records of each partition."""
    return (*({repr(row) for row in view.to_polars().rows()} for view in made.views.values()), admission(made))


def ends(log: Log, topic: str) -> list[int]:
    return [bound.end for bound in log.bounds(topic).values()]


@pytest.mark.timeout(400)
def test_windows_close_beside_a_silent_partition_and_every_replay_gives_the_same(
    spark: SparkSession, log: Log, url: str, tmp_path: Path
) -> None:
    topic = log.create_topic(name(), 2).name
    log.create_topic(f"{topic}-rates")
    made = ticks(tmp_path, url, topic)
    log.append(f"{topic}-rates", [rate(0, 0), rate(1, 0)])
    log.append(topic, [at(second) for second in range(0, 200, 10)])
    before = ends(log, topic)
    with armed("run.before_delivery"), pytest.raises(SparkError):
        run(made, spark=spark, once=True)
    first = run(made, spark=spark, once=True)
    assert made.views["closed"].to_polars()["n"].to_list() == [6, 6, 6]
    early = {repr(row) for row in made.views["closed"].to_arrow().to_pylist()}
    assert ends(log, topic) == before
    assert verify(made, spark=spark).equal

    log.append(f"{topic}-rates", [rate(2, 150), rate(3, 260)])
    log.append(topic, [at(20, 1), at(230, 1), *(at(second) for second in range(200, 420, 10))])
    before = ends(log, topic)
    with armed("run.before_delivery"), pytest.raises(SparkError):
        run(made, spark=spark, once=True, close=True)
    planned = [
        plan_of(tmp_path / "check", int(path.name)) for path in sorted((tmp_path / "check/offsets").glob("[0-9]*"))
    ]
    assert any(beat.time == FOREVER for plan in planned for beat in plan.beats)
    done = run(made, spark=spark, once=True, close=True)
    assert done.late == 1  # what the silent partition said at last is behind the time that went on without it
    assert made.views["closed"].to_polars()["n"].to_list() == [6, 6, 6, 7, 6, 6, 6]
    assert ends(log, topic) == before
    log.append(topic, [at(430)])
    run(made, spark=spark, once=True)
    whole = held(made)
    assert sum(row["late"] for row in whole[-1]) == 2  # time has ended, also for who comes now
    assert verify(made, spark=spark).equal
    then = as_of(made, "closed", first.batch or 0, spark=spark).to_pylist()
    assert {repr(row) for row in then} == early

    for limit in (7, 1000):
        run(made, spark=spark, once=True, rebuild=True, rate_limit=limit)
        assert held(made) == whole
        assert verify(made, spark=spark).equal
    rebuild(made, spark=spark, rate_limit=9)
    assert held(made) == whole
    assert verify(made, spark=spark).equal


def test_a_checkpoint_that_admits_records_in_a_stage_goes_on_and_its_windows_close(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = ticks(tmp_path, f"sqlite:{tmp_path / 'log.db'}", "clicks")
    with open_log(made.log, create=True) as log:
        starts = {topic: dict.fromkeys(range(2), 0) for topic in ("clicks", "clicks-rates")}
        for topic in starts:
            log.create_topic(topic, 2)
        ids = {topic: log.topic_id(topic) for topic in starts}
        tasks = spark.sparkContext.defaultParallelism
        checkpoint = open_checkpoint(tmp_path / "check", made, chain_of(made), starts, None, tasks, topics=ids)
        assert not checkpoint.early
        log.append("clicks", [at(second) for second in range(0, 200, 10)])
        run(made, spark=spark, once=True)
        assert made.views["closed"].to_polars()["n"].to_list() == [6, 6, 6]
        log.append("clicks", [at(20, 1), at(230, 1)])
        assert run(made, spark=spark, once=True, close=True).late == 1
        assert made.views["closed"].to_polars()["n"].to_list() == [6, 6, 6, 3]
        assert ends(log, "clicks") == [20, 2]
    assert verify(made, spark=spark).equal


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[KafkaBroker, str, str]]:
    """A broker with access control, its address for who may do all, and the one for who must say a name."""
    ours, theirs, controller = free_ports(3)
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{ours},SASL_PLAINTEXT://127.0.0.1:{theirs},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{plain} required user_reader="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(settings=settings) as broker:
        yield broker, f"kafka://127.0.0.1:{ours}", f"kafka://127.0.0.1:{theirs}"


@pytest.mark.timeout(400)
def test_who_may_only_read_runs_a_pipeline_whose_windows_close(
    spark: SparkSession, guarded: tuple[KafkaBroker, str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    _, ours, theirs = guarded
    says = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
    made = ticks(tmp_path, theirs, "clicks", kafka={**says, "sasl.password": "${env:READER_PASSWORD}"})
    with pytest.MonkeyPatch.context() as patch, open_log(ours) as log:
        patch.setenv("READER_PASSWORD", "secret")
        admin = AdminClient({"bootstrap.servers": ours.removeprefix("kafka://")})
        for topic in ("clicks", "clicks-rates"):
            log.create_topic(topic, 2)
            rules = [
                AclBinding(
                    ResourceType.TOPIC,
                    topic,
                    ResourcePatternType.LITERAL,
                    "User:reader",
                    "*",
                    right,
                    AclPermissionType.ALLOW,
                )
                for right in (AclOperation.READ, AclOperation.DESCRIBE)
            ]
            for done in admin.create_acls(rules).values():
                done.result()
        log.append("clicks-rates", [rate(0, 0), rate(1, 0)])
        log.append("clicks", [at(second) for second in range(0, 200, 10)])
        before = ends(log, "clicks")
        with open_log(theirs, kafka=made.kafka) as reader:
            with pytest.raises(NotAllowed, match=r"clicks at .*AUTHORIZATION_FAILED") as raised:
                reader.append("clicks", [at(0)])
            assert "none to write" in raised.value.hint
            with pytest.raises(NotAllowed, match="settings cannot be read, so they cannot be changed"):
                reader.alter_topic("clicks", settings=log.topic("clicks").settings)
        caplog.clear()
        run(made, spark=spark, once=True)
        assert {record.message for record in caplog.records if "settings are unknown" in record.message}
        assert made.views["closed"].to_polars()["n"].to_list() == [6, 6, 6]
        log.append("clicks", [at(210, 1)])
        run(made, spark=spark, once=True, close=True)
        assert made.views["closed"].to_polars()["n"].to_list() == [6, 6, 6, 3]
        assert verify(made, spark=spark).equal
        whole = held(made)
        run(made, spark=spark, once=True, rebuild=True, rate_limit=5)
        assert held(made) == whole
        assert sum(ends(log, "clicks")) == sum(before) + 2  # the record, and Kafka's mark of its transaction
