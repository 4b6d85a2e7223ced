"""What a notebook shows of pipelines, streams and views: what is there, what is not there yet, and never markup out of data."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from millstream import Pipeline
from millstream.testing import Trial
from millstream.window import tumbling

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
EVIL = "<script>alert('&')</script>"
Begin = Callable[..., Trial]


def shop(log: str = "sqlite:nowhere/log.db", to: str = "sqlite:nowhere/views.db") -> Pipeline:
    pipeline = Pipeline("shop", log=log, to=to)
    clicks = pipeline.stream("clicks", "page string, at timestamp", time="at", delay="10 seconds")
    pipeline.table("users", "id long, name string", key="id")
    pipeline.view("per_minute", clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)"))
    return pipeline


def shown(what: Any) -> str:
    """The HTML as text, once it is found to be well formed and of few harmless elements."""
    html = what._repr_html_()
    open_: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag in {"div", "b", "small", "table", "thead", "tbody", "tr", "th", "td", "pre"}, tag
            assert not attrs
            open_.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_.pop() == tag

    Check().feed(html)
    assert open_ == []
    return unescape(re.sub(r"<[^>]+>", " ", html.replace("</tr>", "\n")))


@pytest.fixture
def full(trial: Begin) -> tuple[Trial, Pipeline]:
    """A pipeline that has run, as its owner holds it."""
    ours = trial(shop(), partitions=2)
    rows = [{"page": f"/{i:02}", "at": NOON + timedelta(seconds=i)} for i in range(12)]
    ours.feed("clicks", [*rows, {"page": f"!{EVIL}", "at": NOON}])
    ours.advance("1 minute")
    held = shop(ours.log)
    held.views = {each.name: replace(held.views[each.name], to=each.to) for each in ours._engine.chain.outputs}
    return ours, held


def test_a_view_shows_its_first_rows_batch_and_watermark(full: tuple[Trial, Pipeline]) -> None:
    full[0].feed("clicks", [{"page": "/99", "at": NOON + timedelta(minutes=5)}])  # in one partition
    text = shown(full[1].views["per_minute"])
    assert "View per_minute" in text
    assert "the first 10 of 14 rows, as of batch 2, committed 20" in text
    assert "watermark 2026-01-31 12:01:01+00:00" in text
    assert re.search(r"page +window_start +window_end +n", text)
    assert re.search(r"/00 +2026-01-31 12:00:00\S* +2026-01-31 12:01:00\S* +1", text)
    assert "/11" not in text, "that is beyond the first rows"


def test_what_stands_in_a_row_is_never_markup(full: tuple[Trial, Pipeline]) -> None:
    ours, held = full
    ours.feed("clicks", [EVIL.encode()])
    shows: list[Any] = [held.views["per_minute"], held.streams["clicks"]]
    for what in shows:
        html = what._repr_html_()
        assert "<script" not in html
        assert "&lt;script&gt;alert(" in html


def test_what_stands_in_a_definition_is_never_markup() -> None:
    pipeline = Pipeline("odd", log=f"sqlite:{EVIL}", to=f"sqlite:{EVIL}")
    odd = pipeline.stream("odd", "`<b>x</b>` long, s string")
    view = pipeline.view("v", odd.where(f's = "{EVIL}"'))
    shows: list[Any] = [pipeline, odd, odd.where(f's = "{EVIL}"'), view]
    for what in shows:
        shown(what)
        assert "<script" not in what._repr_html_()
        assert "<b>x" not in what._repr_html_()


def test_a_stream_shows_its_columns_and_last_records(full: tuple[Trial, Pipeline]) -> None:
    ours, held = full
    ours.feed("clicks", [{"page": "x" * 500, "at": NOON + timedelta(minutes=3)}])
    text = shown(held.streams["clicks"])
    assert "Stream clicks" in text
    assert "time at, delay 10 seconds" in text
    assert re.search(r"page +at +\n +string +timestamp", text)
    assert "the last 5 of 14 records" in text
    newest = text.split("value")[1].strip().splitlines()[0]
    assert "2026-01-31 12:03:00+00:00" in newest
    assert newest.rstrip().endswith("x…")
    assert len(newest) < 250
    assert "heartbeat" not in text


def test_rows_and_columns_of_a_stream_show_how_they_are_made() -> None:
    text = shown(shop().streams["clicks"].where("page <> '/'").select("page"))
    assert "Relation page" in text
    assert "where page <> '/'" in text


def test_a_table_shows_its_key_and_that_nothing_came_yet(full: tuple[Trial, Pipeline]) -> None:
    text = shown(full[1].tables["users"])
    assert "Table users" in text
    assert "key id" in text
    assert "no records yet" in text


def test_a_pipeline_shows_its_sources_and_views(full: tuple[Trial, Pipeline]) -> None:
    text = shown(full[1])
    assert re.search(r"clicks +stream +clicks +page string, at timestamp +at", text)
    assert re.search(r"users +table +users +id long, name string", text)
    assert re.search(r"per_minute +page, window_start +page, window_start, window_end, n +changes +13 +1", text)


def test_what_is_not_there_yet_is_said(tmp_path: Path) -> None:
    pipeline = shop(f"sqlite:{tmp_path}/log.db", f"sqlite:{tmp_path}/views.db")
    assert re.search(r"no log at .*log\.db", shown(pipeline.streams["clicks"]))
    assert re.search(r"no views at .*views\.db; `millstream run FILE` makes them", shown(pipeline.views["per_minute"]))
    assert "none yet" in shown(pipeline)
    assert "no views yet" in shown(Pipeline("empty"))
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_a_topic_or_a_view_that_is_not_there_yet_is_said(full: tuple[Trial, Pipeline]) -> None:
    pipeline = Pipeline("other", log=full[0].log, to=full[1].views["per_minute"].to)
    events = pipeline.stream("events", "n long")
    view = pipeline.view("per_minute", events.group_by().agg(n="count(*)"))
    assert "events" in shown(events)
    assert re.search("no topic|unknown topic|topic events", shown(events))
    assert "no view per_minute of pipeline other yet" in shown(view), "the one that is there is of another pipeline"


def test_a_view_that_is_kept_nowhere_says_so(full: tuple[Trial, Pipeline]) -> None:
    pipeline = full[1]
    view = pipeline.view("passing", pipeline.streams["clicks"], to="nowhere")
    assert "View passing" in shown(view)
    assert "view passing of pipeline shop is kept nowhere" in shown(view)
    assert re.search(r"passing .* kept nowhere", shown(pipeline))


def test_a_broker_is_not_asked() -> None:
    assert "millstream consume clicks --log kafka://127.0.0.1:1" in shown(shop("kafka://127.0.0.1:1").streams["clicks"])


def test_no_spark_is_loaded() -> None:
    code = (
        "import sys; from millstream import Pipeline; p = Pipeline('p'); s = p.stream('s', 'n long'); v = p.view('v', s)\n"
        "[each._repr_html_() for each in (p, s, v)]; assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
