"""What a server does not take: too large, too slow, too deep, too often; and that others are served meanwhile."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import open_log
from millstream.serve.limits import Budget, Rates
from millstream.serve.refusal import Refusal
from tests.serve.client import Server, serving

SETTINGS = """
[serve.limits]
body = 10_000
events = 10
depth = 8
seconds = 1.0
connections = 20
"""
HEAD = b"POST /topics/clicks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "millstream.toml").write_text(SETTINGS)
    log = f"sqlite:{folder / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("clicks", 1)
    with serving(folder, log) as server:
        yield server


def raw(server: Server, *parts: bytes) -> bytes:
    """What comes back on a connection that sends these parts and then waits."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
        for part in parts:
            connection.sendall(part)
        return answer(connection)


def answer(connection: socket.socket) -> bytes:
    """An answer in JSON, which may come in several pieces; or what there is until the server ends the connection."""
    found = b""
    while not found.endswith(b"}") and (data := connection.recv(65536)):
        found += data
    return found


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Server) -> None:
    found = raw(server, HEAD + b"Content-Length: 1000000000\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 413 ")


def test_a_body_without_an_end_is_refused_when_it_is_too_large(server: Server) -> None:
    part = b"400\r\n" + b" " * 1024 + b"\r\n"
    found = raw(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[part] * 11)
    assert found.startswith(b"HTTP/1.1 413 ")


def test_a_slow_body_is_refused(server: Server) -> None:
    begun = time.monotonic()
    found = raw(server, HEAD + b"Content-Length: 10\r\n\r\n1")
    assert found.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begun < 10


def test_slow_heads_are_cut_off_and_others_are_served(server: Server) -> None:
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=15) for _ in range(19)]
    try:
        for each in slow:
            each.sendall(b"POST /topics/clicks HTTP/1.1\r\nHost: lo")
        for each in slow:
            assert each.recv(100) == b""
    finally:
        for each in slow:
            each.close()
    assert server.post("/topics/clicks", 1).status == 200


def test_a_second_request_on_a_connection_may_come_late_but_not_slowly(server: Server) -> None:
    body = HEAD + b"Content-Length: 1\r\n\r\n1"
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as connection:
        connection.sendall(body)
        assert answer(connection).startswith(b"HTTP/1.1 200 ")
        time.sleep(1.5)  # more than the seconds of a head, less than a connection may be idle
        connection.sendall(body)
        assert answer(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"POST /topics/clicks HTTP/1.1\r\nHo")
        assert connection.recv(100) == b""


@pytest.mark.parametrize("text", ["[" * 9 + "]" * 9, "[" * 9_000, '{"a":' * 1_500])
def test_what_is_nested_too_deep_is_refused(server: Server, text: str) -> None:
    answer = server.ask("POST", "/topics/clicks", text, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert "deep" in answer.json["detail"]
    event = '{"specversion":"1.0","id":"1","source":"s","type":"t","data":' + text + "}"
    for kind, body in (("cloudevents", event), ("cloudevents-batch", f"[{event}]")):
        answer = server.ask("POST", "/topics/clicks", body, {"Content-Type": f"application/{kind}+json"})
        assert answer.status == 400


def test_too_many_events_in_one_request_are_refused(server: Server) -> None:
    lines = {"Content-Type": "application/x-ndjson"}
    assert server.ask("POST", "/topics/clicks", "1\n" * 10, lines).status == 200
    assert server.ask("POST", "/topics/clicks", "1\n" * 11, lines).status == 413


def test_more_requests_than_the_rate_are_told_when_to_come_again(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text("[serve.limits]\nrate = 2.0\n")
    log = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("clicks", 1)
    with serving(tmp_path, log) as server:
        found = [server.post("/topics/clicks", 1) for _ in range(8)]
        late = [each for each in found if each.status == 429]
        assert late
        assert {each.status for each in found} == {200, 429}
        time.sleep(float(late[0].headers["retry-after"]))
        assert server.post("/topics/clicks", 1).status == 200


def test_bodies_in_memory_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text("[serve.limits]\nmemory = 4000\n")
    log = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("clicks", 1)
    with serving(tmp_path, log) as server:
        answer = server.post("/topics/clicks", "x" * 3_000)
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert server.post("/topics/clicks", "x" * 1_000).status == 200
        assert [server.post("/topics/clicks", "x" * 1_000).status for _ in range(10)] == [
            200
        ] * 10  # bytes are given back


def test_one_owner_has_a_share_and_all_have_a_bound() -> None:
    budget = Budget(100)
    budget.take("ann", 50)
    with pytest.raises(Refusal) as refused:
        budget.take("ann", 1)
    assert refused.value.status == 429
    budget.take("bob", 50)
    with pytest.raises(Refusal) as refused:
        budget.take("cat", 1)
    assert refused.value.status == 503
    budget.give("ann", 50)
    budget.take("cat", 50)
    assert (budget.used, budget.by_owner) == (100, {"bob": 50, "cat": 50})


def test_a_rate_is_one_of_each_owner() -> None:
    now = [0.0]
    rates = Rates(10, clock=lambda: now[0])
    for _ in range(20):
        rates.take("ann")
    with pytest.raises(Refusal) as refused:
        rates.take("ann")
    assert refused.value.status == 429
    assert json.loads(bytes(refused.value.response().body))["status"] == 429
    rates.take("bob")
    now[0] += 0.1
    rates.take("ann")
