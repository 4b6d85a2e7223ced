"""The joins of the book, on Spark, with what they must say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream import load_pipeline
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.runtime.verify import verify

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "textbook.py"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def event(key: object, minute: float, **values: object) -> Event:
    return Event(json.dumps(values, default=datetime.isoformat).encode(), key=str(key).encode(), time=at(minute))


def rows(view: Any) -> list[tuple[Any, ...]]:
    names = [name for name in view.columns if not name.startswith("_")]
    return sorted(view.to_polars().select(names).rows())


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_the_joins_of_the_book_say_what_the_book_says(
    engine: str, spark: SparkSession, tmp_path: Path, monkeypatch: Any, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    book = load_pipeline(EXAMPLE)
    if engine == "kafka":
        book.log = request.getfixturevalue("kafka").url
    first = {
        "profiles": [event(1, 0, id=1, name="Ann"), event(1, 5, id=1, name="Anne")],
        "searches": [event(7, 0, id=7, words="mill", at=at(0)), event(8, 0, id=8, words="stream", at=at(0))],
        "clicks": [event(7, 2, search=7, url="/a", at=at(2)), event(8, 70, search=8, url="/b", at=at(70))],
        "activity": [event(1, 4, user=1, action="in", at=at(4)), event(1, 6, user=1, action="out", at=at(6))],
        "tweets": [event(1, 0, id=1, author=5, words="hello"), event(2, 1, id=2, author=6, words="bye")],
        "follows": [
            event(json.dumps({"follower": f, "followee": g}), 0, follower=f, followee=g)
            for f, g in ((9, 5), (9, 6), (8, 5))
        ],
        "impressions": [event(3, 0, ad=3, at=at(0)), event(4, 0, ad=4, at=at(0))],
        "hits": [event(3, 5, hit=3, at=at(5))],
    }
    second = {
        "tweets": [Event(None, key=b"1")],
        "follows": [Event(None, key=json.dumps({"follower": 9, "followee": 6}).encode())],
        "impressions": [event(5, 30, ad=5, at=at(30))],
        "hits": [event(0, 30, hit=0, at=at(30))],
    }
    with open_log(book.log, create=True) as log:
        for topic in first:
            log.create_topic(topic, 1)
        for topic, events in first.items():
            log.append(topic, events)
        run(book, spark=spark, once=True)
        assert rows(book.views["found"]) == [("mill", "/a", at(2))], "the click after 70 minutes was too late"
        assert rows(book.views["told"]) == [(1, "in", at(4), "Ann"), (1, "out", at(6), "Anne")]
        assert rows(book.views["timelines"]) == [(8, 1, 5, "hello"), (9, 1, 5, "hello"), (9, 2, 6, "bye")]
        assert rows(book.views["missed"]) == [], "nobody knows yet"
        for topic, events in second.items():
            log.append(topic, events)
    run(book, spark=spark, once=True)
    assert rows(book.views["timelines"]) == [], "one tweet is gone, the author of the other is not followed any more"
    assert rows(book.views["missed"]) == [(4, at(0))], "the time of the first is up, and the last has time left"
    run(book, spark=spark, once=True, close=True)
    assert rows(book.views["missed"]) == [(4, at(0)), (5, at(30))]
    assert verify(book, spark=spark).equal
