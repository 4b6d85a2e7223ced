"""Topics keep the contract on both engines, and what only they promise."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from millstream.errors import LogUnavailable
from millstream.log import Log, open_log
from millstream.log.contract import TopicSettings
from millstream.runtime.sink_dispatch import Patience
from millstream.sink import ChangeSet, Sink
from millstream.sink.topic import TopicSink
from millstream.testing import KafkaBroker
from tests.contracts.sink import KEY, JsonSinkContract, Rows, change_set, named, send


def open_sink(url: str, topic: str) -> Sink:
    return TopicSink(open_log(url), topic, "millstream.shop.out", KEY)


def records(log: Log, topic: str) -> list[tuple[Any, Any]]:
    """All records of a topic, as a reader of committed ones sees them: key and value."""
    found = [record for p, b in log.bounds(topic).items() for record in log.read(topic, p, b.start, b.end)]
    return [(json.loads(each.key or b""), each.value and json.loads(each.value)) for each in found]


class TopicContract(JsonSinkContract):
    @pytest.fixture
    def topic(self) -> str:
        return f"out-{uuid.uuid4().hex[:8]}"

    @pytest.fixture
    def again(self, url: str, topic: str) -> Callable[[], Sink]:
        return lambda: open_sink(url, topic)

    @pytest.fixture
    def log(self, url: str) -> Iterator[Log]:
        with open_log(url) as opened:
            yield opened

    @pytest.fixture
    def sent(self, log: Log, topic: str) -> Callable[[], Rows]:
        def newest() -> Rows:
            rows = {key["name"]: value for key, value in records(log, topic)}
            return named([row for row in rows.values() if row is not None])

        return newest

    def test_a_topic_that_is_missing_is_made_compacted(self, sink: Sink, log: Log, topic: str) -> None:
        assert log.topic(topic).settings.compacts

    def test_a_repeat_adds_no_record(self, sink: Sink, again: Callable[[], Sink], log: Log, topic: str) -> None:
        send(sink, 1, {"ann": (1, 1.0)}, gone=("bob",))
        send(sink, 1, {"ann": (1, 1.0)}, gone=("bob",))
        sink.close()
        with again() as other:
            send(other, 1, {"ann": (1, 1.0)}, gone=("bob",))
        found = [({"name": "ann"}, {"name": "ann", "n": 1, "total": 1.0}), ({"name": "bob"}, None)]
        assert sorted(records(log, topic), key=str) == found

    def test_without_a_number_a_repeat_is_there_twice(self, sink: Sink, log: Log, topic: str) -> None:
        send(sink, 1, {"ann": (1, 1.0)}, marked=False)
        send(sink, 1, {"ann": (1, 1.0)}, marked=False)
        assert len(records(log, topic)) == 2
        assert sink.last() is None

    def test_a_row_that_is_too_large_is_refused_and_its_neighbours_are_not(
        self, log: Log, url: str, topic: str, sent: Callable[[], Rows]
    ) -> None:
        log.create_topic(topic, settings=TopicSettings(cleanup="compact", max_record_bytes=5_000))
        with open_sink(url, topic) as sink:
            payload, refused = sink.pack(change_set({"ann": (1, 1.0), "b" * 5_000: (2, 2.0)}))
            assert [each.why.partition(",")[0] for each in refused] == ["10040 bytes"]
            sink.send(payload, 1, marked=True)
        assert sent() == {"ann": (1, 1.0)}

    def test_a_view_without_a_key_sends_rows_with_their_weights(self, log: Log, url: str, topic: str) -> None:
        with TopicSink(open_log(url), topic, "p", ()) as sink:
            frame = pl.DataFrame({"n": [1, 2], "_weight": [2, -1]})
            sink.send(sink.pack(ChangeSet(frame, frame.clear().drop("_weight"))).payload, 1, marked=True)
        assert not log.topic(topic).settings.compacts
        values = [json.loads(r.value or b"") for r in log.read(topic, 0, 0)]
        assert values == [{"n": 1, "_weight": 2}, {"n": 2, "_weight": -1}]


class TestEmbedded(TopicContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'log.db'}"


class TestKafka(TopicContract):
    @pytest.fixture
    def url(self, kafka: KafkaBroker) -> str:
        return kafka.url


def test_a_key_that_was_never_sent_leaves_no_tombstone(tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("out", settings=TopicSettings(cleanup="compact", max_record_bytes=5_000))
    with TopicSink(open_log(f"sqlite:{tmp_path / 'log.db'}"), "out", "p", ("x", "name")) as sink:
        gone = pl.DataFrame(
            {"x": [1.0, float("nan"), float("-inf"), None, 2.0], "name": ["a", "a", "a", "a", "b" * 5_000]}
        )
        payload, refused = sink.pack(ChangeSet(gone.clear(), gone))
        assert refused == []  # that was said when the row came
        keys = [json.loads(event.key or b"") for event in payload]
        assert keys == [{"x": 1.0, "name": "a"}, {"x": None, "name": "a"}]
        sink.send(payload, 1, marked=True)


def test_a_broker_that_was_away_gets_the_batch_once() -> None:
    with KafkaBroker() as broker, open_sink(broker.url, "out") as sink:
        send(sink, 1, {"ann": (1, 1.0)})
        broker.kill()
        with pytest.raises(LogUnavailable):
            send(sink, 2, {"ann": (2, 2.0)})
        broker.start()
        patience = Patience(threading.Event(), lambda _: None, most=120)
        for _ in range(2):
            patience.call("sink", lambda: send(sink, 2, {"ann": (2, 2.0)}))
        with open_log(broker.url) as log:
            assert [value["n"] for _, value in records(log, "out")] == [1, 2]


def test_a_large_batch_gets_the_time_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"name": [f"{number:0100d}" for number in range(500_000)]})
    at_once = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"
    }  # the broker looks each 10 s otherwise
    with (
        KafkaBroker(settings={"transaction.max.timeout.ms": "15100", **at_once}) as broker,  # it would be 51 s
        TopicSink(open_log(broker.url), "out", "p", ("name",)) as sink,
        open_log(broker.url) as log,
    ):
        monkeypatch.setattr("millstream.log.kafka.write.LEAST", 1.0)  # as 15 s are for millions of rows
        sink.send(sink.pack(ChangeSet(frame[:1], frame.clear())).payload, 1, marked=True)
        sink.send(sink.pack(ChangeSet(frame, frame.clear())).payload, 2, marked=True, after=1)
        sink.send(sink.pack(ChangeSet(frame, frame.clear())).payload, 2, marked=True)
        assert sink.last() == 2
        assert log.bounds("out")[0].end >= 500_001
