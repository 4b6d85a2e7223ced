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
from millstream.sink import Outlet, Parcel
from millstream.sink.topic import TopicOutlet
from millstream.testing import KafkaBroker
from tests.contracts.sink import KEY, JsonOutletContract, Rows, named, parcel, send


def open_outlet(url: str, topic: str) -> Outlet:
    return TopicOutlet(open_log(url), topic, "millstream.shop.out", KEY)


def records(log: Log, topic: str) -> list[tuple[Any, Any]]:
    """All records of a topic, as a reader of committed ones sees them: key and value."""
    found = [record for p, b in log.bounds(topic).items() for record in log.read(topic, p, b.start, b.end)]
    return [(json.loads(each.key or b""), each.value and json.loads(each.value)) for each in found]


class TopicContract(JsonOutletContract):
    @pytest.fixture
    def topic(self) -> str:
        return f"out-{uuid.uuid4().hex[:8]}"

    @pytest.fixture
    def again(self, url: str, topic: str) -> Callable[[], Outlet]:
        return lambda: open_outlet(url, topic)

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

    def test_a_topic_that_is_missing_is_made_compacted(self, outlet: Outlet, log: Log, topic: str) -> None:
        assert log.topic(topic).settings.compacts

    def test_a_repeat_adds_no_record(self, outlet: Outlet, again: Callable[[], Outlet], log: Log, topic: str) -> None:
        send(outlet, 1, {"ann": (1, 1.0)}, gone=("bob",))
        send(outlet, 1, {"ann": (1, 1.0)}, gone=("bob",))
        outlet.close()
        with again() as other:
            send(other, 1, {"ann": (1, 1.0)}, gone=("bob",))
        found = [({"name": "ann"}, {"name": "ann", "n": 1, "total": 1.0}), ({"name": "bob"}, None)]
        assert sorted(records(log, topic), key=str) == found

    def test_without_a_number_a_repeat_is_there_twice(self, outlet: Outlet, log: Log, topic: str) -> None:
        send(outlet, 1, {"ann": (1, 1.0)}, marked=False)
        send(outlet, 1, {"ann": (1, 1.0)}, marked=False)
        assert len(records(log, topic)) == 2
        assert outlet.last() is None

    def test_a_row_that_is_too_large_is_refused_and_its_neighbours_are_not(
        self, log: Log, url: str, topic: str, sent: Callable[[], Rows]
    ) -> None:
        log.create_topic(topic, settings=TopicSettings(cleanup="compact", max_record_bytes=5_000))
        with open_outlet(url, topic) as outlet:
            payload, refused = outlet.pack(parcel({"ann": (1, 1.0), "b" * 5_000: (2, 2.0)}))
            assert [each.why.partition(",")[0] for each in refused] == ["10040 bytes"]
            outlet.send(payload, 1, marked=True)
        assert sent() == {"ann": (1, 1.0)}

    def test_a_view_without_a_key_sends_rows_with_their_weights(self, log: Log, url: str, topic: str) -> None:
        with TopicOutlet(open_log(url), topic, "p", ()) as outlet:
            frame = pl.DataFrame({"n": [1, 2], "_weight": [2, -1]})
            outlet.send(outlet.pack(Parcel(frame, frame.clear().drop("_weight"))).payload, 1, marked=True)
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
    with TopicOutlet(open_log(f"sqlite:{tmp_path / 'log.db'}"), "out", "p", ("x", "name")) as outlet:
        gone = pl.DataFrame(
            {"x": [1.0, float("nan"), float("-inf"), None, 2.0], "name": ["a", "a", "a", "a", "b" * 5_000]}
        )
        payload, refused = outlet.pack(Parcel(gone.clear(), gone))
        assert refused == []  # that was said when the row came
        keys = [json.loads(event.key or b"") for event in payload]
        assert keys == [{"x": 1.0, "name": "a"}, {"x": None, "name": "a"}]
        outlet.send(payload, 1, marked=True)


def test_a_broker_that_was_away_gets_the_batch_once() -> None:
    with KafkaBroker() as broker, open_outlet(broker.url, "out") as outlet:
        send(outlet, 1, {"ann": (1, 1.0)})
        broker.kill()
        with pytest.raises(LogUnavailable):
            send(outlet, 2, {"ann": (2, 2.0)})
        broker.start()
        patience = Patience(threading.Event(), lambda _: None, most=120)
        for _ in range(2):
            patience.call("sink", lambda: send(outlet, 2, {"ann": (2, 2.0)}))
        with open_log(broker.url) as log:
            assert [value["n"] for _, value in records(log, "out")] == [1, 2]


def test_a_large_batch_gets_the_time_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"name": [f"{number:0100d}" for number in range(500_000)]})
    with (
        KafkaBroker(settings={"transaction.max.timeout.ms": "15100"}) as broker,  # it would be 51 s
        TopicOutlet(open_log(broker.url), "out", "p", ("name",)) as outlet,
        open_log(broker.url) as log,
    ):
        outlet.send(outlet.pack(Parcel(frame[:1], frame.clear())).payload, 1, marked=True)
        monkeypatch.setattr("millstream.log.kafka.write.LEAST", 1.0)  # as 15 s are for millions of rows
        outlet.send(outlet.pack(Parcel(frame, frame.clear())).payload, 2, marked=True, after=1)
        outlet.send(outlet.pack(Parcel(frame, frame.clear())).payload, 2, marked=True)
        assert outlet.last() == 2
        assert log.bounds("out")[0].end >= 500_001
