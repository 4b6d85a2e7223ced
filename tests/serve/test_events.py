"""Following topics by server-sent events: nothing is left out, nothing comes twice, and slow readers hold nobody up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Pipeline
from millstream.erase.form import Subject
from millstream.erase.request import request
from millstream.event import Event
from millstream.log import open_log
from millstream.log.contract import TopicSettings
from millstream.log.heartbeat import PREFIX
from tests.serve.client import Listening, Server, listening, serving
from tests.waiting import until


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("kafka").url if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}")


@pytest.fixture
def topic(request: pytest.FixtureRequest, log: str) -> str:
    name = "followed-" + "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
    with open_log(log) as opened:
        opened.create_topic(name, 3)
    return name


@pytest.fixture
def server(tmp_path: Path, log: str, topic: str) -> Iterator[Server]:
    with serving(tmp_path, log, ["--name", topic]) as server:
        yield server


def append(log: str, topic: str, numbers: range, *, padding: str = "") -> None:
    with open_log(log, create=False) as opened:
        opened.append(topic, [Event(json.dumps({"n": n, "padding": padding}).encode(), b"%d" % n) for n in numbers])


def numbers(client: Listening, count: int) -> list[int]:
    return sorted(data["value"]["n"] for data in client.take(count))


def test_who_comes_back_with_an_id_gets_what_follows(server: Server, log: str, topic: str) -> None:
    append(log, topic, range(100))
    with listening(server, f"/topics/{topic}/events?from=earliest") as client:
        first = numbers(client, 40)
        last = client.last
    append(log, topic, range(100, 150))
    with listening(server, f"/topics/{topic}/events", {"Last-Event-ID": last}) as client:
        rest = numbers(client, 110)
        append(log, topic, range(150, 200))
        live = numbers(client, 50)
        last = client.last
    assert sorted(first + rest) == list(range(150))
    assert live == list(range(150, 200))
    append(log, topic, range(200, 201))
    with listening(server, f"/topics/{topic}/events", {"Last-Event-ID": last}) as client:
        assert numbers(client, 1) == [200]


def test_who_comes_back_while_others_follow_gets_nothing_twice(server: Server, log: str, topic: str) -> None:
    with listening(server, f"/topics/{topic}/events") as other:
        assert other.response.readline().startswith(b"id: ")
        append(log, topic, range(60))
        numbers(other, 25)
        last = other.last
        rest = numbers(other, 35)
        with listening(server, f"/topics/{topic}/events", {"Last-Event-ID": last}) as client:
            assert numbers(client, 35) == rest
            append(log, topic, range(60, 70))
            assert numbers(client, 10) == numbers(other, 10) == list(range(60, 70))


def test_without_a_place_only_what_is_new_comes_in_order_of_each_key(server: Server, log: str, topic: str) -> None:
    append(log, topic, range(10))
    with listening(server, f"/topics/{topic}/events") as client, listening(server, f"/topics/{topic}/events") as other:
        for client_ in (client, other):
            assert client_.response.readline().startswith(b"id: ")  # it follows from here on
        append(log, topic, range(100, 160))
        found = client.take(60)
        assert sorted(data["value"]["n"] for data in found) == list(range(100, 160))
        assert numbers(other, 60) == list(range(100, 160))
    for partition in range(3):
        offsets = [data["offset"] for data in found if data["partition"] == partition]
        assert offsets == sorted(offsets)
    assert {"partition", "offset", "time", "key", "value", "headers"} == set(found[0])


def test_the_end_of_the_server_ends_those_who_follow(server: Server, topic: str) -> None:
    with listening(server, f"/topics/{topic}/events") as client:
        assert client.response.readline().startswith(b"id: ")
        assert server.stop() in (0, 130)
        with pytest.raises(EOFError):
            client.next()


class TestEmbedded:
    """What does not depend on the engine."""

    @pytest.fixture(params=["sqlite"])
    def log(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'log.db'}"

    def test_a_reader_that_stands_still_holds_nobody_up_and_misses_nothing(
        self, server: Server, log: str, topic: str
    ) -> None:
        with listening(server, f"/topics/{topic}/events?from=earliest") as slow:
            assert slow.response.readline().startswith(b"id: ")
            for low in range(0, 300, 20):  # 15 MB: more than sockets and the tail hold
                append(log, topic, range(low, low + 20), padding="x" * 50_000)
            with listening(server, f"/topics/{topic}/events?from=earliest") as quick:
                assert numbers(quick, 300) == list(range(300))
            assert numbers(slow, 300) == list(range(300))

    def test_what_retention_took_is_told_by_a_reset(self, tmp_path: Path, log: str) -> None:
        with open_log(log) as opened:
            opened.create_topic("short", 1, TopicSettings(retention_bytes=1))
            opened.append("short", [Event(b"1"), Event(b"2")])
            opened.append("short", [Event(b"3")])
            until(lambda: opened.maintain("short") and opened.bounds("short")[0].start > 0)
            start = opened.bounds("short")[0].start
        with (
            serving(tmp_path, log) as server,
            listening(server, "/topics/short/events", {"Last-Event-ID": "0:0"}) as client,
        ):
            kind, data = client.next()
            assert kind == "reset"
            assert "offsets 0 to" in data["reason"]
            assert client.last == f"0:{start}"
            server.post("/topics/short", 4)
            seen = []
            while 4 not in seen:
                seen += [data["value"] for data in client.take(1)]

    def test_heartbeats_are_not_shown_and_values_stay_on_their_line(self, server: Server, log: str, topic: str) -> None:
        with listening(server, f"/topics/{topic}/events?from=earliest") as client:
            with open_log(log, create=False) as opened:
                opened.append(topic, [Event(b"{}", PREFIX + b"x")], own=True)
                opened.append(topic, [Event(b"\n\ndata: 1\n\nid: 9:9", b"\n\nevent: reset")])
                opened.append(topic, [Event(b"\xff\0", b"k", headers=(("h\n", b"\n\nid: 1"),))])
            one, two = sorted(client.take(2), key=lambda each: str(each["key"]))
            assert (one["key"], one["value"]) == ("\n\nevent: reset", "\n\ndata: 1\n\nid: 9:9")
            assert (two["value"], two["headers"]) == ({"base64": "/wA="}, {"h\n": "\n\nid: 1"})

    @pytest.mark.parametrize(
        ("query", "last", "status"),
        [("from=somewhere", None, 400), ("", "x:y", 400), ("", "7:1", 400), ("", "0:99", 200), ("from=0", None, 200)],
    )
    def test_a_place_that_is_none_is_refused(
        self, server: Server, topic: str, query: str, last: str | None, status: int
    ) -> None:
        headers = {} if last is None else {"Last-Event-ID": last}
        with listening(server, f"/topics/{topic}/events?{query}", headers) as client:
            assert client.response.status == status
        assert server.ask("GET", "/topics/nothing/events").status == 404
        assert server.ask("GET", f"/topics/millstream.serve.{topic}/events").status == 403

    def test_those_who_follow_are_bounded_and_leave_their_place(self, tmp_path: Path, log: str) -> None:
        (tmp_path / "millstream.toml").write_text("[serve.limits]\nstreams = 2\n")
        with open_log(log) as opened:
            opened.create_topic("few", 1)
        with serving(tmp_path, log) as server:
            with listening(server, "/topics/few/events") as one, listening(server, "/topics/few/events") as two:
                assert one.response.readline()
                assert two.response.readline()
                assert server.ask("GET", "/topics/few/events").status == 503

            def status() -> int:
                with listening(server, "/topics/few/events") as client:
                    return client.response.status

            until(lambda: status() == 200)


def test_who_is_to_be_forgotten_is_left_out_from_the_request_on(tmp_path: Path) -> None:
    log = f"sqlite:{tmp_path / 'log.db'}"
    shop = Pipeline("shop", log=log, to=f"sqlite:{tmp_path / 'views.db'}")
    shop.stream("orders", "n long", subject={"user": "n"})
    with open_log(log) as opened:
        opened.create_topic("orders", 3)
    append(log, "orders", range(3))
    with serving(tmp_path, log) as server:
        with listening(server, "/topics/orders/events?from=earliest") as client:
            assert numbers(client, 3) == [0, 1, 2]
            request([shop], Subject("user", "1"))
            time.sleep(1.5)
            append(log, "orders", range(1, 2))
            append(log, "orders", range(7, 9))
            assert numbers(client, 2) == [7, 8]
        with listening(server, "/topics/orders/events?from=earliest") as client:
            assert numbers(client, 4) == [0, 2, 7, 8]
