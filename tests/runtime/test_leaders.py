"""Three brokers under a live run with appends: leaders are killed, chosen anew and moved back; nothing is lost, nothing is there twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from pyspark.sql import SparkSession

from millstream.event import Event
from millstream.log import open_log
from millstream.log.producer import Buffer, Producer
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.testing import KafkaCluster
from millstream.window import tumbling
from tests.waiting import until

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PARTITIONS = 3


class Clicks:
    """Clicks with growing numbers, sent on and on by a named producer until they shall end."""

    def __init__(self, url: str) -> None:
        self.sent, self._stop = 0, threading.Event()
        self._url = url

    @contextmanager
    def flowing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(120)

    def _send(self) -> None:
        with (
            open_log(self._url) as log,
            Producer(log, "clicks", Buffer(batch=10, capacity=20), name="clicks") as sender,
        ):
            while not self._stop.wait(0.01):
                value = {"id": self.sent, "at": (BEGIN + timedelta(seconds=self.sent)).isoformat()}
                sender.send(Event(json.dumps(value).encode(), b"%d" % self.sent))
                self.sent += 1
            sender.flush(120)


class Leaders:
    """Which broker leads which partition of the topic."""

    def __init__(self, cluster: KafkaCluster, topic: str = "clicks") -> None:
        self._topic = topic
        self._admin: Any = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def now(self) -> dict[int, int]:
        found = self._admin.list_topics(self._topic, timeout=30).topics[self._topic].partitions
        return {number: each.leader for number, each in found.items()}

    def in_step(self) -> bool:
        found = self._admin.list_topics(self._topic, timeout=30).topics[self._topic].partitions
        return all(len(each.isrs) == 3 for each in found.values())

    def move_back(self) -> None:
        """To the first copy of each partition, as it was made."""
        places = [confluent_kafka.TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        self._admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, places).result(30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as started:
        yield started


def test_a_log_that_is_open_knows_its_offsets_when_a_leader_is_killed_and_when_it_is_moved_back(
    cluster: KafkaCluster,
) -> None:
    leaders = Leaders(cluster, "offsets")
    with open_log(cluster.url) as log:
        log.create_topic("offsets", PARTITIONS)
        log.append("offsets", [Event(b"%d" % number, b"%d" % number) for number in range(20)])
        bounds = log.bounds("offsets")
        first = leaders.now()
        cluster.brokers[first[0] - 1].kill()
        until(lambda: leaders.now()[0] not in (first[0], -1), timeout=60)
        assert log.bounds("offsets") == bounds
        cluster.brokers[first[0] - 1].start()
        until(leaders.in_step, timeout=60)
        log.bounds("offsets")
        leaders.move_back()
        until(lambda: leaders.now() == first, timeout=60)
        assert log.bounds("offsets") == bounds


def test_leaders_that_are_killed_and_moved_under_a_live_run_lose_and_repeat_nothing(
    cluster: KafkaCluster, spark: SparkSession, tmp_path: Path
) -> None:
    with open_log(cluster.url) as log:
        log.create_topic("clicks", PARTITIONS)
    made = Pipeline(
        "shop", log=cluster.url, to=f"sqlite:{tmp_path / 'v.db'}", checkpoint=str(tmp_path / "c"), buckets=2
    )
    stream = made.stream(
        "clicks", "id int, at timestamp", time="at", delay="10 seconds", idle="1 second", ahead="9999 days"
    )
    made.view("per_minute", stream.group_by(tumbling("at", "1 minute")).agg(n="count(*)", ids="count(DISTINCT id)"))
    stop, seen, ended = threading.Event(), list[Progress](), list[Progress | BaseException]()
    clicks, leaders = Clicks(cluster.url), Leaders(cluster)

    def live() -> None:
        try:
            ended.append(run(made, spark=spark, rate_limit=500, progress=seen.append, stop=stop))
        except BaseException as error:
            ended.append(error)

    def goes_on(more: int) -> None:
        aim = (seen[-1].admitted if seen else 0) + more
        until(lambda: ended or (seen and seen[-1].admitted >= aim), timeout=120)
        assert not ended, ended

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with clicks.flowing():
            goes_on(50)
            first = leaders.now()
            for partition in (0, 1):
                leader = leaders.now()[partition]
                cluster.brokers[leader - 1].kill()
                until(lambda p=partition, old=leader: leaders.now()[p] not in (old, -1), timeout=60)  # type: ignore[misc]
                goes_on(100)
                cluster.brokers[leader - 1].start()
                until(leaders.in_step, timeout=60)
                leaders.move_back()
                until(lambda: leaders.now() == first, timeout=60)
                goes_on(100)
        until(lambda: ended or seen[-1].admitted >= clicks.sent, timeout=120)
    finally:
        stop.set()
        thread.join(120)
    assert isinstance(ended[0], Progress), ended
    rows = made.views["per_minute"].to_polars()
    assert (rows["n"].sum(), rows["ids"].sum()) == (clicks.sent, clicks.sent)
    verified = verify(made, spark=spark)
    assert verified.equal, verified
