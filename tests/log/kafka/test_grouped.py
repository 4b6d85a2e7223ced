"""Appends that share a transaction of a real broker: fewer transactions, and nobody pays for another."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import BadEvent, MillstreamError
from millstream.event import Event
from millstream.log import open_log
from millstream.log.contract import Log, TopicSettings
from millstream.testing import KafkaBroker
from tests.contracts.log import name, read_all
from tests.log.test_faults import start
from tests.waiting import until


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[Log]:
    with open_log(kafka.url) as opened:
        yield opened


def test_appends_of_many_threads_share_transactions_and_one_thread_has_its_own(log: Log) -> None:
    topic = log.create_topic(name()).name

    def transactions() -> int:
        """Each leaves a marker, which takes an offset."""
        return log.bounds(topic)[0].end - len(read_all(log, topic))

    for number in range(5):
        log.append(topic, [Event(b"%d" % number)])
    assert transactions() == 5
    threads = [threading.Thread(target=log.append, args=(topic, [Event(b"x")])) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(read_all(log, topic)) == 69
    assert 5 < transactions() < 5 + 32


def test_an_append_that_the_broker_refuses_harms_only_its_caller(log: Log, kafka: KafkaBroker) -> None:
    topic = log.create_topic(name(), 1, TopicSettings(max_record_bytes=500_000)).name
    log.append(topic, [Event(b"first")])
    log.topic(topic)  # known for some seconds, in which it becomes another
    with open_log(kafka.url) as other:
        other.alter_topic(topic, settings=TopicSettings(max_record_bytes=1_000))
    outcome: dict[int, str] = {}  # values that do not compress, since a broker looks at compressed batches

    def write(number: int) -> None:
        value = os.urandom(100_000) if number % 5 == 0 else b"%d" % number
        try:
            log.append(topic, [Event(value), Event(b"small %d" % number)])
            outcome[number] = "there"
        except BadEvent:
            outcome[number] = "refused"
        except MillstreamError as error:
            outcome[number] = str(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcome == {number: "there" if number % 5 else "refused" for number in range(20)}
    got = {record.value for record in read_all(log, topic)}
    there = {number for number in range(20) if number % 5}
    assert got == {b"first", *(b"%d" % n for n in there), *(b"small %d" % n for n in there)}


WRITER = """
import os, sys, threading
from millstream.log import open_log
from millstream.event import Event
url, topic, told = sys.argv[1:]
log = open_log(url)
out = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def write(thread):
    for turn in range(1_000_000):
        mark = b"%d.%d" % (thread, turn)
        log.append(topic, [Event(mark, b"%d" % i) for i in range(7)])
        os.write(out, mark + b"\\n")

threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(32)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_a_process_that_is_killed_while_threads_append_leaves_whole_appends_and_all_it_acknowledged(
    kafka: KafkaBroker, log: Log, tmp_path: Path
) -> None:
    topic = log.create_topic(name(), 3).name
    for kill in range(3):
        told = tmp_path / f"told-{kill}"
        child = start(WRITER, kafka.url, topic, told)
        try:
            until(lambda: told.exists() and told.read_bytes().count(b"\n") >= 40 + 29 * kill)  # noqa: B023
        finally:
            child.kill()
            assert child.wait(30) == -signal.SIGKILL
        with open_log(kafka.url) as other:  # readers wait until the brokers end what the killed one left open
            other.append(topic, [Event(b"after", b"%d" % n) for n in range(20)])
            until(lambda: {r.partition for r in read_all(other, topic) if r.value == b"after"} == {0, 1, 2}, timeout=60)
            counts = Counter(r.value for r in read_all(other, topic) if r.value != b"after")
            acknowledged = set(told.read_bytes().split())
            assert acknowledged <= counts.keys()
            assert set(counts.values()) == {7}, counts
            other.delete_topic(topic)
            other.create_topic(topic, 3)
