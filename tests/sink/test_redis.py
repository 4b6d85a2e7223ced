"""Redis keeps the contract, and what only it promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
import redis

from millstream import Pipeline
from millstream.errors import ConfigError, PlanError, SinkError, SinkUnavailable
from millstream.failpoint import armed
from millstream.relation.sink_address import ttl_of, without_ttl
from millstream.sink import ChangeSet, Sink
from millstream.sink.redis import RedisSink
from millstream.testing import RedisServer
from tests.contracts.sink import KEY, SCHEMA, JsonSinkContract, Rows, named, send
from tests.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def open_sink(server: RedisServer) -> Sink:
    return RedisSink(server.url, "totals", "millstream.shop.out", KEY)


def open_cache(server: RedisServer, ttl: timedelta) -> Sink:
    return RedisSink(server.url, "totals", "millstream.shop.out", KEY, ttl)


class TestRedis(JsonSinkContract):
    @pytest.fixture
    def client(self, server: RedisServer) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            yield client

    @pytest.fixture
    def again(self, server: RedisServer, client: redis.Redis) -> Callable[[], Sink]:
        return lambda: open_sink(server)

    @pytest.fixture
    def sent(self, client: redis.Redis) -> Callable[[], Rows]:
        return lambda: named([json.loads(row) for row in client.hgetall("millstream:{totals}").values()])

    def test_a_key_of_another_kind_is_an_error_and_nothing_changes(self, sink: Sink, client: redis.Redis) -> None:
        client.set("millstream:{totals}", "mine")
        with pytest.raises(SinkError, match="WRONGTYPE"):
            send(sink, 1, {"ann": (1, 1.0)})
        assert client.get("millstream:{totals}") == b"mine"
        assert sink.last() is None

    def test_many_rows_come_in_parts_and_a_repeat_goes_on_at_the_one_that_is_missing(
        self, server: RedisServer, sink: Sink, client: redis.Redis, sent: Callable[[], Rows]
    ) -> None:
        old: Rows = {f"user {number}": (number, 0.5) for number in range(25_000)}
        new: Rows = {name: (n + 1, 0.5) for name, (n, _) in old.items()}
        gone = tuple(list(new)[:12_000])
        left = dict(list(new.items())[12_000:])
        send(sink, 1, old)
        code = (
            "from tests.sink.test_redis import *\n"
            f"with RedisSink({server.url!r}, 'totals', 'millstream.shop.out', KEY) as sink:\n"
            "    left = {f'user {n}': (n + 1, 0.5) for n in range(12_000, 25_000)}\n"
            "    send(sink, 2, left, gone=tuple(f'user {n}' for n in range(12_000)))\n"
        )
        killed = {**os.environ, "MILLSTREAM_FAILPOINT": "sink.redis.part:kill@1"}
        assert subprocess.run([sys.executable, "-c", code], env=killed, timeout=120).returncode == -signal.SIGKILL
        assert sink.last() == 1  # all of the next is not there yet
        parts: Any = client.get("millstream:{totals}:millstream.shop.out:parts")
        assert parts.split()[:2] == [b"2", b"1"]
        assert sum(row[0] == old[name][0] + 1 for name, row in sent().items()) == 10_000
        before = client.info("commandstats")["cmdstat_hset"]["calls"]
        send(sink, 2, left, gone)
        after = client.info("commandstats")["cmdstat_hset"]["calls"]
        assert after - before == 3  # 3,000 rows of 13,000, 1,000 a call
        assert (sent(), sink.last()) == (left, 2)
        assert not client.exists("millstream:{totals}:millstream.shop.out:parts")
        send(sink, 1, old)
        assert sent() == left

    def test_between_parts_a_zombie_changes_nothing_and_what_redis_lost_is_sent_again(
        self, sink: Sink, again: Callable[[], Sink], client: redis.Redis, sent: Callable[[], Rows]
    ) -> None:
        rows: Rows = {f"user {number}": (number, 0.5) for number in range(25_000)}
        send(sink, 1, {"ann": (1, 1.0)})
        newer = (1 << 32) + 1
        with again() as other:
            with armed("sink.redis.part"), pytest.raises(RuntimeError):
                send(other, newer, rows)
            send(sink, 2, {"user 1": (0, 0.0), "mal": (1, 1.0)})
            assert "mal" not in sent()
            assert sink.last() == 1
            assert not sink.seal(1 << 33, after=1)  # something came since
            client.set("millstream:{totals}:millstream.shop.out:parts", f"{newer} 2 of-another-batch")
            send(other, newer, rows)
        assert sent() == {"ann": (1, 1.0), **rows}

    def test_a_part_has_at_least_a_row_and_not_more_bytes_than_it_may(self, sink: Sink) -> None:
        rows = [{"name": "x" * size, "n": 1, "total": 1.0} for size in (3_000_000, 3_000_000, 9_000_000, 10, 10)]
        frame = pl.DataFrame(rows, schema=SCHEMA)
        payload, _ = sink.pack(ChangeSet(frame, frame[:1].select("name")))
        assert [(len(part.pairs) // 2, len(part.gone)) for part in payload] == [(1, 0), (1, 0), (1, 0), (2, 1)]


class TestCache(JsonSinkContract):
    """With a time to live: keys of their own."""

    @pytest.fixture
    def client(self, server: RedisServer) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            yield client

    @pytest.fixture
    def again(self, server: RedisServer, client: redis.Redis) -> Callable[[], Sink]:
        return lambda: open_cache(server, timedelta(hours=1))

    @pytest.fixture
    def sent(self, client: redis.Redis) -> Callable[[], Rows]:
        return lambda: named([json.loads(client.get(key)) for key in client.scan_iter(match="millstream:{totals}:{*")])  # type: ignore[arg-type]

    def test_a_row_has_its_time_from_when_it_was_last_written_and_the_number_has_none(
        self, server: RedisServer, client: redis.Redis
    ) -> None:
        key, mark = 'millstream:{totals}:{"name":"ann"}', "millstream:{totals}:millstream.shop.out"
        with open_cache(server, timedelta(seconds=1)) as sink:
            send(sink, 1, {"ann": (1, 1.0), "bob": (1, 1.0)})
            assert 0 < client.pttl(key) <= 1000
            until(lambda: not client.exists(key))
            assert (client.get(mark), client.pttl(mark)) == (b"1", -1)
            send(sink, 2, {"bob": (2, 2.0)}, gone=("ann",))
            assert sink.last() == 2
        with open_cache(server, timedelta(hours=2)) as sink:
            send(sink, 3, {"bob": (3, 3.0)})
            assert client.pttl('millstream:{totals}:{"name":"bob"}') > 3_600_000

    def test_what_begins_anew_leaves_no_row_and_takes_nothing_of_others(
        self, sink: Sink, client: redis.Redis, sent: Callable[[], Rows]
    ) -> None:
        rows: Rows = {f"user {number}": (number, 0.5) for number in range(2_500)}
        send(sink, 1, rows)
        client.set("millstream:{totals2}:{}", "other")
        assert sink.anew()
        assert sent() == {}
        assert client.exists("millstream:{totals2}:{}")

    def test_many_rows_come_in_parts(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        rows: Rows = {f"user {number}": (number, 0.5) for number in range(12_000)}
        with armed("sink.redis.part"), pytest.raises(RuntimeError):
            send(sink, 1, rows)
        assert (len(sent()), sink.last()) == (10_000, None)
        send(sink, 1, rows)
        assert (sent(), sink.last()) == (rows, 1)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("redis://h:1/0?ttl=1 month", "is not always the same length"),
        ("redis://h:1/0?ttl=", "expected a duration"),
        ("redis://h:1/0?ttl=10ms", "expected a second at least"),
    ],
)
def test_a_time_to_live_is_a_duration(to: str, message: str) -> None:
    pipeline = Pipeline("p")
    view = pipeline.view("v", pipeline.stream("s", "name string").group_by("name").agg(n="count(*)"))
    with pytest.raises(PlanError, match=rf"test_redis\.py:\d+: sink out: .*{message}"):
        pipeline.sink("out", view, to)
    assert pipeline.sink("out", view, "redis://h:1/0?ttl=90m&protocol=2").mode == "exactly_once"
    assert ttl_of("redis://:${env:A?ttl=b}@h:1/0?protocol=2&ttl=90m") == timedelta(minutes=90)
    assert without_ttl("redis://h:1/0?protocol=2&ttl=90m") == "redis://h:1/0?protocol=2"
    assert without_ttl("redis://h:1/0?ttl=90m") == "redis://h:1/0"


def test_a_server_that_was_away_gets_the_batch_once() -> None:
    with RedisServer() as server, open_sink(server) as sink:
        send(sink, 1, {"ann": (1, 1.0)})
        server.kill()
        with pytest.raises(SinkUnavailable, match="Redis at"):
            send(sink, 2, {"ann": (2, 2.0)})
        server.start()
        assert sink.last() == 1  # on the disk before it was acknowledged
        send(sink, 2, {"ann": (2, 2.0)})
        assert sink.last() == 2


def test_a_view_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="no key"):
        RedisSink("redis://127.0.0.1:1/0", "v", "p", ())


def test_a_password_is_taken_from_where_the_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "p@ss/w?rd#1")
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "p@ss/w?rd#1")
        url = server.url.replace("redis://", "redis://:${env:REDIS_PASSWORD}@")
        with RedisSink(url, "totals", "millstream.shop.out", KEY) as sink:
            send(sink, 1, {"ann": (1, 1.0)})
            assert sink.last() == 1
        with open_sink(server) as other, pytest.raises(SinkUnavailable, match="authenticate"):
            other.last()
