"""Idempotency keys over restarts, crashes and servers that take over: every acknowledged event is there, once."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.log import open_log
from millstream.serve.journal import Journal
from tests.serve.client import Server, ask, serving
from tests.waiting import until

COUNT = 20_000
SENDERS = 16


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = request.getfixturevalue("kafka").url if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    return str(url)


@pytest.fixture
def topic(request: pytest.FixtureRequest, log: str) -> str:
    name = "posted-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:60]
    with open_log(log) as opened:
        opened.create_topic(name, 3)
    return name


def values(url: str, topic: str) -> Counter[bytes]:
    """How often each value is in a topic."""
    found: Counter[bytes] = Counter()
    with open_log(url, create=False) as log:
        ends = {partition: bound.end for partition, bound in log.bounds(topic).items()}
        with log.reader(topic) as reader:
            while any(position < ends[partition] for partition, position in reader.positions.items()):
                found.update(record.value or b"" for record in reader.poll(5_000, timeout=1.0))
    return found


@pytest.mark.parametrize("crash", [False, True])
def test_a_key_is_remembered_over_a_restart(tmp_path: Path, log: str, topic: str, crash: bool) -> None:
    path = f"/topics/{topic}"
    name = ["--name", topic]
    with serving(tmp_path, log, name) as server:
        first = [server.post(path, {"n": n}, idempotency_key=f"k{n}") for n in range(3)]
        server.kill() if crash else server.stop()
    with serving(tmp_path, log, name) as server:
        again = [server.post(path, {"n": n}, idempotency_key=f"k{n}") for n in range(3)]
        other = server.post(path, {"n": 7}, idempotency_key="k0")
    assert [each.json for each in again] == [each.json for each in first]
    assert {each.headers["idempotency-replayed"] for each in again} == {"true"}
    assert other.status == 409
    assert values(log, topic) == Counter({b'{"n": 0}': 1, b'{"n": 1}': 1, b'{"n": 2}': 1})


def test_an_append_whose_answer_was_lost_in_a_crash_is_answered_afterwards(
    tmp_path: Path, log: str, topic: str
) -> None:
    name = ["--name", topic]
    with serving(tmp_path, log, name, {"MILLSTREAM_FAILPOINT": "serve.after_append:kill@2"}) as server:
        assert server.post(f"/topics/{topic}", {"n": 1}, idempotency_key="one").status == 200
        with pytest.raises(OSError):  # noqa: PT011 - whichever way a connection ends
            server.post(f"/topics/{topic}", {"n": 2}, idempotency_key="two")
    with serving(tmp_path, log, name) as server:
        answer = server.post(f"/topics/{topic}", {"n": 2}, idempotency_key="two")
    assert (answer.status, answer.headers["idempotency-replayed"]) == (200, "true")
    ((partition, offset),) = answer.json["positions"]
    with (
        open_log(log, create=False) as opened,
        opened.reader(topic, {partition: offset}, partitions=[partition]) as reader,
    ):
        assert until(lambda: reader.poll(1, timeout=1.0))[0].value == b'{"n": 2}'
    assert values(log, topic) == Counter({b'{"n": 1}': 1, b'{"n": 2}': 1})


def test_the_next_server_of_a_name_takes_over(tmp_path: Path, log: str, topic: str) -> None:
    name = ["--name", topic]
    with serving(tmp_path, log, name) as old:
        assert old.post(f"/topics/{topic}", {"n": 1}, idempotency_key="one").status == 200
        with serving(tmp_path, log, name) as new:
            assert old.post(f"/topics/{topic}", {"n": 3}, idempotency_key="two").status == 503
            assert new.post(f"/topics/{topic}", {"n": 2}, idempotency_key="two").status == 200
            assert old.process.wait(30) == 1
            assert new.post(f"/topics/{topic}", {"n": 2}, idempotency_key="two").status == 200
    assert values(log, topic) == Counter({b'{"n": 1}': 1, b'{"n": 2}': 1})


def test_what_is_forgotten_is_forgotten(tmp_path: Path) -> None:
    moment = [1_000_000_000.0]
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        journal = Journal(log, "forgetful", clock=lambda: moment[0])
        journal.take(b"k" * 16, b"d" * 16)
        moment[0] += 86_000
        assert journal.find(b"k" * 16) is not None
        moment[0] += 1_000
        assert journal.find(b"k" * 16) is None


def test_every_acknowledged_event_is_there_once_over_kills(tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("clicks", 4)
    current = [Server(tmp_path, log)]
    waiting, acknowledged, lock = list(range(COUNT)), dict[int, list[int]](), threading.Lock()
    posted = threading.Event()

    def send() -> None:
        connection: http.client.HTTPConnection | None = None
        while len(acknowledged) < COUNT:
            with lock:
                n = waiting.pop() if waiting else None
            if n is None:
                break
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", current[0].port, timeout=20)
                headers = {"Content-Type": "application/json", "Idempotency-Key": f"k{n}"}
                answer = ask(connection, "POST", "/topics/clicks", json.dumps({"n": n}), headers)
            except (OSError, http.client.HTTPException):
                if connection is not None:
                    connection.close()
                connection = answer = None
            with lock:
                if answer is not None and answer.status == 200:
                    acknowledged[n] = answer.json["positions"][0]
                    if len(acknowledged) % 1_000 == 0:
                        posted.set()
                else:
                    waiting.append(n)  # nobody knows what became of it: again, with the same key
        if connection is not None:
            connection.close()

    try:
        with ThreadPoolExecutor(SENDERS) as pool:
            senders = [pool.submit(send) for _ in range(SENDERS)]
            for _ in range(3):
                posted.clear()
                posted.wait(60)
                current[0].kill()
                current[0] = Server(tmp_path, log)
            for each in senders:
                each.result()
    finally:
        current[0].kill()
    assert len(acknowledged) == COUNT
    assert values(log, "clicks") == Counter({json.dumps({"n": n}).encode(): 1 for n in range(COUNT)})
    with open_log(log, create=False) as opened, opened.reader("clicks") as reader:
        there: dict[tuple[int, int], int] = {}
        while len(there) < COUNT:
            for record in reader.poll(5_000):
                there[record.partition, record.offset] = json.loads(record.value or b"")["n"]
    assert all(there[partition, offset] == n for n, (partition, offset) in acknowledged.items())
