"""Before a run starts: an as-of join that the log could not replay is refused, on either engine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream import Pipeline, TopicSettings
from millstream.errors import PipelineError
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.runtime.retention_check import check_history
from millstream.runtime.run import run
from millstream.testing import KafkaBroker
from millstream.window import tumbling
from tests.contracts.log import name

WEEK, DAY = timedelta(days=7), timedelta(days=1)
FOREVER = TopicSettings()
COMPACT = TopicSettings(cleanup="compact")

REFUSED: dict[str, tuple[TopicSettings, TopicSettings, str, str]] = {
    "compacted": (FOREVER, COMPACT, "is compacted and keeps no changes for sure", "--cleanup delete"),
    "compacted beside a week": (
        TopicSettings(retention=WEEK),
        COMPACT,
        "keeps events for 7 days",
        "--compaction-lag 7d",
    ),
    "compacted too soon": (
        TopicSettings(retention=WEEK),
        TopicSettings(cleanup="compact", compaction_lag=timedelta(hours=25)),
        "only 1 day 1 hour of changes",
        "--compaction-lag 7d",
    ),
    "expires": (FOREVER, TopicSettings(retention=WEEK), "keeps only 7 days of changes", "--retention none"),
    "expires first": (
        TopicSettings(retention=timedelta(hours=36)),
        TopicSettings(retention=DAY),
        "keeps events for 1 day 12 hours",
        "--retention 36h",
    ),
    "expires by size": (
        TopicSettings(retention=DAY),
        TopicSettings(retention_bytes=1_000_000),
        "expires by size and keeps no changes for sure",
        "--retention-bytes 0",
    ),
    "compacted and expires": (
        TopicSettings(retention=WEEK),
        TopicSettings(cleanup="compact,delete", compaction_lag=WEEK, retention=DAY),
        "only 1 day of changes",
        "--compaction-lag 7d --retention 7d",
    ),
}
ALLOWED: dict[str, tuple[TopicSettings, TopicSettings]] = {
    "everything is kept": (FOREVER, FOREVER),
    "the stream is gone first": (TopicSettings(retention=DAY), TopicSettings(retention=WEEK)),
    "both go together": (TopicSettings(retention=WEEK), TopicSettings(retention=WEEK)),
    "compacted after the stream": (
        TopicSettings(retention=DAY),
        TopicSettings(cleanup="compact", compaction_lag=DAY),
    ),
    "a retention that a compacted topic does not heed": (
        TopicSettings(retention=DAY),
        TopicSettings(cleanup="compact", compaction_lag=DAY, retention=timedelta(hours=1)),
    ),
}


def test_stored_queries_are_a_history_too(tmp_path: Path) -> None:
    shop = Pipeline("shop", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'views.db'}")
    clicks = shop.stream("clicks", "user long, at timestamp", time="at")
    stored = shop.table("stored", "name string, condition string", key="name")
    shop.view("met", clicks.percolate(stored, "condition"))
    with open_log(shop.log, create=True) as log:
        log.create_topic("clicks", 1)
        log.create_topic("stored", 1, COMPACT)
        with pytest.raises(PipelineError, match="stored queries of an event's time could not be replayed") as caught:
            check_history(shop.views, log)
        assert caught.value.hint == "`millstream topics alter stored --cleanup delete`"
        log.alter_topic("stored", settings=FOREVER)
        check_history(shop.views, log)


def pipeline(log: str, folder: Path, topics: tuple[str, str] = ("clicks", "users"), **how: Any) -> Pipeline:
    shop = Pipeline("shop", log=log, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "checkpoint"))
    clicks = shop.stream("clicks", "user long, at timestamp", topic=topics[0], time="at")
    users = shop.table("users", "id long, country string", topic=topics[1], key="id")
    told = clicks.join(users.where("country IS NOT NULL"), on="user = id", **(how or {"as_of": "at"}))
    shop.view("by_country", told.group_by("country", tumbling("at", "1 minute")).agg(n="count(*)"))
    return shop


def outcome(log: Log, shop: Pipeline) -> PipelineError | None:
    try:
        check_history(shop.views, log)
    except PipelineError as error:
        return error
    return None


@pytest.fixture(params=["embedded", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = f"sqlite:{tmp_path / 'log.db'}"
    if request.param == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka")
        url = broker.url
    with open_log(url) as opened:
        yield opened


def test_a_table_that_forgets_before_the_stream_is_refused_with_what_to_do(log: Log, tmp_path: Path) -> None:
    for label, (stream, table, said, hint) in REFUSED.items():
        clicks, users = name("clicks"), name("users")
        log.create_topic(clicks, settings=stream)
        log.create_topic(users, settings=table)
        error = outcome(log, pipeline(log.url, tmp_path, (clicks, users)))
        assert error is not None, label
        assert "view by_country: " in error.message, label
        assert "test_retention_check.py:" in error.message, label
        assert said in error.message, (label, error.message)
        assert f"`millstream topics alter {users} {hint}`" in error.hint, (label, error.hint)
        assert outcome(log, pipeline(log.url, tmp_path, (clicks, users), latest=True)) is None, label


def test_a_table_that_keeps_its_changes_as_long_as_the_stream_is_fine(log: Log, tmp_path: Path) -> None:
    for label, (stream, table) in ALLOWED.items():
        clicks, users = name("clicks"), name("users")
        log.create_topic(clicks, settings=stream)
        log.create_topic(users, settings=table)
        assert outcome(log, pipeline(log.url, tmp_path, (clicks, users))) is None, label


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        (
            TopicSettings(cleanup="compact", compaction_lag=WEEK),
            "is compacted and keeps only 7 days",
            "--cleanup delete",
        ),
        (TopicSettings(cleanup="compact"), "keeps no changes for sure", "--cleanup delete"),
        (TopicSettings(retention=DAY), "expires and keeps only 1 day", "--retention none"),
        (TopicSettings(), "", ""),
    ],
)
def test_a_history_is_refused_of_a_topic_that_forgets(
    tmp_path: Path, settings: TopicSettings, said: str, hint: str
) -> None:
    with open_log(f"sqlite:{tmp_path / 'log.db'}", create=True) as log:
        log.create_topic("users", settings=settings)
        shop = Pipeline("shop", log=log.url, to=f"sqlite:{tmp_path / 'views.db'}")
        users = shop.table("users", "id long, country string", key="id")
        shop.view("were", users.history().where("country = 'x'").group_by("country").agg(n="count(*)"))
        error = outcome(log, shop)
        if not said:
            assert error is None
            return
        assert error is not None
        assert "view were: " in error.message
        assert "test_retention_check.py:" in error.message
        assert said in error.message
        assert f"`millstream topics alter users {hint}" in error.hint


def test_a_run_does_not_start_and_leaves_nothing(tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path / 'log.db'}", create=True) as log:
        log.create_topic("clicks")
        log.create_topic("users", settings=COMPACT)
    with pytest.raises(PipelineError, match="a join as of a time could not be replayed"):
        run(pipeline(f"sqlite:{tmp_path / 'log.db'}", tmp_path), once=True)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("log.db")] == []
