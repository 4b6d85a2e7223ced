"""Redis keeps the contract, and what only it promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import redis

from millstream.errors import ConfigError, SinkError, SinkUnavailable
from millstream.outlet import Outlet
from millstream.outlet.redis import RedisOutlet
from millstream.testing import RedisServer
from tests.contracts.outlet import KEY, JsonOutletContract, Rows, named, send


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def open_outlet(server: RedisServer) -> Outlet:
    return RedisOutlet(server.url, "totals", "millstream.shop.out", KEY)


class TestRedis(JsonOutletContract):
    @pytest.fixture
    def client(self, server: RedisServer) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            yield client

    @pytest.fixture
    def again(self, server: RedisServer, client: redis.Redis) -> Callable[[], Outlet]:
        return lambda: open_outlet(server)

    @pytest.fixture
    def sent(self, client: redis.Redis) -> Callable[[], Rows]:
        return lambda: named([json.loads(row) for row in client.hgetall("millstream:{totals}").values()])

    def test_a_key_of_another_kind_is_an_error_and_nothing_changes(self, outlet: Outlet, client: redis.Redis) -> None:
        client.set("millstream:{totals}", "mine")
        with pytest.raises(SinkError, match="WRONGTYPE"):
            send(outlet, 1, {"ann": (1, 1.0)})
        assert client.get("millstream:{totals}") == b"mine"
        assert outlet.last() is None


def test_a_server_that_was_away_gets_the_batch_once() -> None:
    with RedisServer() as server, open_outlet(server) as outlet:
        send(outlet, 1, {"ann": (1, 1.0)})
        server.kill()
        with pytest.raises(SinkUnavailable, match="Redis at"):
            send(outlet, 2, {"ann": (2, 2.0)})
        server.start()
        assert outlet.last() == 1  # on the disk before it was acknowledged
        send(outlet, 2, {"ann": (2, 2.0)})
        assert outlet.last() == 2


def test_a_view_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="no key"):
        RedisOutlet("redis://127.0.0.1:1/0", "v", "p", ())


def test_a_password_is_taken_from_where_the_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "p@ss/w?rd#1")
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "p@ss/w?rd#1")
        url = server.url.replace("redis://", "redis://:${env:REDIS_PASSWORD}@")
        with RedisOutlet(url, "totals", "millstream.shop.out", KEY) as outlet:
            send(outlet, 1, {"ann": (1, 1.0)})
            assert outlet.last() == 1
        with open_outlet(server) as other, pytest.raises(SinkUnavailable, match="authenticate"):
            other.last()
