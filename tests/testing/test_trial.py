"""A trial of a pipeline: what it shows, when time goes on, what a crash leaves, and what only Spark can do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from millstream import Event, Pipeline
from millstream.errors import NeedsSpark, PipelineError
from millstream.store import open_writer
from millstream.testing import Trial
from millstream.window import session, tumbling

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PLACES = [
    "run.before_delivery",
    "store.before_write",
    "store.before_commit",
    "store.after_commit",
    "run.after_delivery",
]
Begin = Callable[..., Trial]


def at(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def click(page: str, seconds: float, user: int = 1) -> dict[str, Any]:
    return {"user": user, "page": page, "at": at(seconds)}


def shop(**options: Any) -> Pipeline:
    pipeline = Pipeline("shop")
    options = {"time": "at", "delay": "10 seconds", **options}
    clicks = pipeline.stream("clicks", "user long, page string, at timestamp", key="user", **options)
    users = pipeline.table("users", "id long, name string", key="id")
    minutes = clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)")
    pipeline.view("per_minute", minutes)
    pipeline.view("closed", minutes, emit="final")
    pipeline.view("named", clicks.join(users, on="user = id", how="left", as_of="at").select("page", "name"))
    pipeline.view("people", users)
    return pipeline


def minutes(trial: Trial, view: str) -> list[tuple[str, int, int]]:
    return [(row["page"], (row["window_start"] - NOON).seconds, row["n"]) for row in trial.rows(view)]


def test_rows_are_dictionaries_with_times_in_utc(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("clicks", [click("/", 5), click("/", 50)])
    assert ours.rows("per_minute") == [
        {"page": "/", "window_start": NOON, "window_end": NOON + timedelta(minutes=1), "n": 2}
    ]
    assert ours.rows("per_minute")[0]["window_start"].tzinfo is UTC


def test_a_record_whose_key_only_begins_like_a_heartbeats_is_a_record_like_any_other(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("clicks", [click("/", 1)])
    odd = b'{"page": "/odd", "at": "%s"}' % at(2).encode()
    for key in (b"millstream.heartbeats-report", b"millstream.heartbeat"):
        ours.feed("clicks", [Event(odd, key)])
    ours.feed("clicks", [click("/", second) for second in range(3, 9)])
    assert minutes(ours, "per_minute") == [("/", 0, 7), ("/odd", 0, 2)]
    counted = ours.counts("clicks")
    assert (counted["records"], counted["admitted"], counted["heartbeats"]) == (9, 9, 0)


@pytest.mark.parametrize(
    ("unit", "factor"), [("timestamp_seconds", 1), ("timestamp_millis", 1000), ("timestamp_micros", 1_000_000)]
)
def test_event_time_in_a_number_since_the_epoch(trial: Begin, unit: str, factor: int) -> None:
    pipeline = Pipeline("epoch")
    ticks = pipeline.stream("ticks", "k long, n long", time=f"{unit}(n) AS at", delay="10 seconds")
    pipeline.view("closed", ticks.group_by("k", tumbling("at", "1 minute")).agg(last="max(at)"), emit="final")
    pipeline.view("all", ticks)
    ours = trial(pipeline)
    second = int(NOON.timestamp())
    ours.feed("ticks", [{"k": 1, "n": (second + after) * factor} for after in (0, 50, 80, 3)] + [{"k": 2}])
    assert ours.rows("closed") == [
        {"k": 1, "window_start": NOON, "window_end": NOON + timedelta(minutes=1), "last": NOON + timedelta(seconds=50)}
    ]
    assert ours.rows("all")[0] == {"k": 1, "n": second * factor, "at": NOON}
    assert [(letter["reason"], letter["detail"]) for letter in ours.rejected("ticks")] == [
        ("late", "the watermark was 2026-01-31 12:01:10.000000+00:00"),
        ("malformed", "no value in column at"),
    ]


def test_event_time_is_the_records_own(trial: Begin) -> None:
    pipeline = Pipeline("own")
    ticks = pipeline.stream("ticks", "k long", time="_timestamp")
    pipeline.view("minutes", ticks.group_by(tumbling("_timestamp", "1 minute")).agg(n="count(*)"))
    ours = trial(pipeline)
    ours.feed("ticks", [Event(b'{"k": 1}', time=NOON + timedelta(seconds=second)) for second in (0, 30, 70)], at=NOON)
    assert [(row["window_start"], row["n"]) for row in ours.rows("minutes")] == [
        (NOON, 2),
        (NOON + timedelta(minutes=1), 1),
    ]


def test_a_record_from_the_future_says_its_time_and_what_may_be_wrong_with_it(trial: Begin) -> None:
    pipeline = Pipeline("far")
    ticks = pipeline.stream("ticks", "n long", time="timestamp_seconds(n) AS at")
    pipeline.view("all", ticks)
    ours = trial(pipeline)
    millis, later = int(NOON.timestamp() * 1000), int(NOON.timestamp()) + 7200
    ours.feed("ticks", [Event(b'{"n": %d}' % number) for number in (millis, later)], at=NOON)
    hint = "; milliseconds that were read as seconds? timestamp_millis(…) AS at"
    assert [letter["detail"] for letter in ours.rejected("ticks")] == [
        f"its time is in the year 58054{hint}",
        "its time is 2026-01-31 14:00:00.000000+00:00",
    ]


def test_a_window_closes_when_time_goes_on(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("clicks", [click("/", 5)])
    assert ours.rows("closed") == []
    ours.advance("64 seconds")  # the newest event is at 5 s, the delay 10 s: the mark is at 59 s
    assert ours.rows("closed") == []
    ours.advance("1 second")
    assert minutes(ours, "closed") == [("/", 0, 1)]


def test_time_goes_on_to_a_moment_and_never_back(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("clicks", [click("/", 5)])
    ours.advance(to=at(70))
    assert minutes(ours, "closed") == [("/", 0, 1)]
    ours.advance(to=at(0))
    ours.feed("clicks", [click("/", 5)])
    assert [letter["reason"] for letter in ours.rejected("clicks")] == ["late"]


def test_close_ends_all_time(trial: Begin) -> None:
    ours = trial(shop(), partitions=3)
    ours.feed("clicks", [click("/", 5, user) for user in range(3)])
    ours.close()
    assert minutes(ours, "closed") == [("/", 0, 3)]
    ours.feed("clicks", [click("/", 500)])
    assert ours.counts("clicks")["late"] == 1


def test_a_feed_is_a_batch_and_several_can_be_one(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("clicks", [click("/", 5)])
    ours.feed("clicks", [click("/", 6)])
    went, came = ours.changes("per_minute")
    assert (went[0], went[1]["n"], came[0], came[1]["n"]) == ("-", 1, "+", 2)
    with ours.batch():
        ours.feed("users", [{"id": 2, "name": "bob"}])
        ours.feed("clicks", [click("/", 7, 2)])
        ours.feed("clicks", [click("/", 8, 2)])
    assert [(sign, row["n"]) for sign, row in ours.changes("per_minute")] == [("-", 2), ("+", 4)]
    assert ours.changes("people") == [("+", {"id": 2, "name": "bob"})]
    with open_writer(ours._engine.chain.outputs[0].to) as sink:
        assert [entry.batch for entry in sink.entries("shop")] == [2, 1, 0]


def test_equal_rows_are_counted_in_changes(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("clicks", [click("/", 5), click("/", 6)])
    ours.feed("clicks", [click("/", 7)])
    assert ours.changes("named") == [("+", {"page": "/", "name": None})]
    assert len(ours.rows("named")) == 3


def test_a_tombstone_deletes_a_row(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("users", [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}])
    ours.delete("users", [{"id": 1}])
    assert ours.rows("people") == [{"id": 2, "name": "bob"}]
    assert ours.changes("people") == [("-", {"id": 1, "name": "ann"})]
    with pytest.raises(PipelineError, match="facts"):
        ours.delete("clicks", [{"user": 1}])


def test_a_key_of_two_columns_is_found_in_the_tombstone(trial: Begin) -> None:
    pipeline = Pipeline("follows")
    pipeline.view("all", pipeline.table("follows", "who long, whom string, note string", key=["who", "whom"]))
    ours = trial(pipeline)
    ours.feed("follows", [{"who": 1, "whom": "b"}, {"who": 1, "whom": "c", "note": "x"}])
    ours.delete("follows", [{"who": 1, "whom": "b"}])
    assert ours.rows("all") == [{"who": 1, "whom": "c", "note": "x"}]


def test_a_change_of_a_table_holds_from_when_it_was_fed(trial: Begin) -> None:
    ours = trial(shop())
    ours.feed("users", [{"id": 1, "name": "ann"}])
    ours.feed("clicks", [click("a", 0)])
    ours.feed("users", [{"id": 1, "name": "anna"}], at=at(30))
    ours.feed("clicks", [click("b", 29), click("c", 30)])
    assert ours.rows("named") == [
        {"page": "a", "name": "ann"}, {"page": "b", "name": "ann"}, {"page": "c", "name": "anna"}
    ]  # fmt: skip


def test_a_change_that_is_fed_late_holds_from_its_own_time_and_turns_no_time_back(trial: Begin) -> None:
    ours = trial(shop(lateness="1 minute", late="correct"))
    ours.feed("users", [{"id": 1, "name": "ann"}])
    ours.feed("clicks", [click("a", 5), click("b", 40), click("c", 65)])
    ours.feed("users", [{"id": 1, "name": "anna"}], at=at(30))
    assert [row["name"] for row in sorted(ours.rows("named"), key=str)] == ["ann", "anna", "anna"]
    assert ours.rows("closed") == []
    ours.advance("5 seconds")  # after the newest event
    assert minutes(ours, "closed") == [("a", 0, 1), ("b", 0, 1)]


@pytest.mark.parametrize("kind", ["table", "stream"])
def test_the_greatest_array_is_found_batch_by_batch(trial: Begin, kind: str) -> None:
    pipeline = Pipeline("parts")
    define = pipeline.table if kind == "table" else pipeline.stream
    texts = define("texts", "id long, words string", key="id")
    parts = texts.group_by("id > 9 AS large").agg(most="max(split(words, ','))", least="min(split(words, ','))")
    pipeline.view("parts", parts)
    pipeline.view("alone", texts.select("split(words, ',') AS words"))
    begun = trial(pipeline)
    begun.feed("texts", [{"id": 1, "words": "a,c"}, {"id": 2, "words": "a"}, {"id": 10, "words": None}])
    begun.feed("texts", [{"id": 3, "words": "b"}])
    begun.feed("texts", [{"id": 4, "words": "a,a"}])
    nothing = {"large": True, "most": None, "least": None}
    assert begun.rows("parts") == [{"large": False, "most": ["b"], "least": ["a"]}, nothing]
    if kind == "table":
        assert begun.rows("alone") == [{"words": each} for each in (None, ["a"], ["a", "a"], ["a", "c"], ["b"])]
        begun.delete("texts", [{"id": 2}, {"id": 3}])
        assert begun.rows("parts") == [{"large": False, "most": ["a", "c"], "least": ["a", "a"]}, nothing]


def test_every_verdict_has_its_dead_letter(trial: Begin) -> None:
    ours = trial(shop(sequence=("user", "unix_micros(at)")))
    ours.feed("clicks", [click("/", 100), click("/", 100)])
    ours.feed(
        "clicks", [click("/", 80, 2), b"nonsense", {"page": "/"}, b'{"user": "x", "page": "/"}', Event(None, b"k")]
    )
    ours.feed("clicks", [click("/", 3 * 3600, 3)], at=at(100))
    reasons = [(letter["offset"], letter["reason"], letter["detail"]) for letter in ours.rejected("clicks")]
    assert reasons == [
        (1, "duplicate", None),
        (2, "late", "the watermark was 2026-01-31 12:01:30.000000+00:00"),
        (3, "malformed", "not JSON with the declared columns: nonsense"),
        (4, "malformed", "no value in column at"),
        (5, "malformed", 'not JSON with the declared columns: {"user": "x", "page": "/"}'),
        (6, "malformed", "no value"),
        (7, "future", f"its time is {NOON + timedelta(hours=3):%Y-%m-%d %H:%M:%S.%f}+00:00"),
    ]
    counts = ours.counts("clicks")
    assert (counts["records"], counts["admitted"], counts["malformed"]) == (8, 1, 4)
    assert ours.rejected("users") == []


def test_a_pipeline_says_how_many_dead_letters_are_kept(trial: Begin) -> None:
    pipeline = shop()
    pipeline.dead_letters = 3
    ours = trial(pipeline)
    for n in range(3):
        ours.feed("clicks", [b"nonsense %d" % (2 * n + each) for each in range(2)])
    assert [letter["offset"] for letter in ours.rejected("clicks")] == [3, 4, 5]
    assert ours.counts("clicks")["malformed"] == 6


@pytest.mark.parametrize("place", [None, *PLACES])
def test_a_crash_loses_nothing_and_does_nothing_twice(trial: Begin, place: str | None) -> None:
    """Wherever it happens, all views, verdicts and later changes are those of a run without it."""
    calm, hit = trial(shop()), trial(shop())
    for ours in (calm, hit):
        ours.feed("users", [{"id": 1, "name": "ann"}])
        ours.feed("clicks", [click("/", 5), click("/", 6), b"nonsense"])
        if ours is hit:
            hit.crash(place)
        ours.feed("clicks", [click("/", 7), click("/x", 70, 2)])
        if ours is hit:
            hit.crash()
            hit.crash(place)
        ours.feed("clicks", [click("/x", 71), click("/", 20)])
        ours.close()
    for view in calm.pipeline.views:
        assert hit.rows(view) == calm.rows(view)
        assert hit.changes(view) == calm.changes(view)
    assert hit.counts("clicks") == calm.counts("clicks")
    assert hit.rejected("clicks") == calm.rejected("clicks")
    assert minutes(hit, "closed") == [("/", 0, 3), ("/x", 60, 2)]


def test_what_was_committed_is_computed_again_and_not_written_again(trial: Begin) -> None:
    ours = trial(shop())
    ours.crash("store.after_commit")
    ours.feed("clicks", [click("/", 5)])
    with open_writer(ours._engine.chain.outputs[0].to) as sink:
        (entry,) = sink.entries("shop")
    assert (entry.batch, entry.fence) == (0, 1), "by the one before the crash"
    ours.feed("clicks", [click("/", 6)])
    assert minutes(ours, "per_minute") == [("/", 0, 2)], "and its state is there for the next batch"


def test_a_crash_at_a_place_that_is_never_reached_is_an_error(trial: Begin) -> None:
    ours = trial(shop())
    ours.crash("nowhere")
    with pytest.raises(PipelineError, match="never came to 'nowhere'"):
        ours.feed("clicks", [click("/", 5)])


def test_views_of_several_stores_are_written_each_to_its_own(trial: Begin) -> None:
    pipeline = Pipeline("two", to="sqlite:one.db")
    events = pipeline.stream("events", "n long")
    pipeline.view("a", events.group_by().agg(n="sum(n)"))
    pipeline.view("b", events.group_by().agg(n="max(n)"), to="sqlite:other.db")
    ours = trial(pipeline)
    ours.crash("store.after_commit")  # of the first of them
    ours.feed("events", [{"n": 1}, {"n": 2}])
    assert (ours.rows("a"), ours.rows("b")) == ([{"n": 3}], [{"n": 2}])
    assert {Path(output.to).name for output in ours._engine.chain.outputs} == {"views-0.db", "views-1.db"}
    assert not Path("one.db").exists()


def test_late_rows_can_be_looked_at_where_they_are_routed(trial: Begin) -> None:
    pipeline = Pipeline("routed")
    events = pipeline.stream("events", "n long, at timestamp", time="at", late="route")
    pipeline.view("sums", events.group_by().agg(n="sum(n)"))
    ours = trial(pipeline)
    ours.feed("events", [{"n": 1, "at": at(10)}, {"n": 5, "at": at(0)}])
    assert ours.rows("events_late") == [{"n": 5, "at": NOON}]


def test_expressions_after_the_last_kernel_are_computed(trial: Begin) -> None:
    pipeline = Pipeline("after")
    events = pipeline.stream("events", "k string, n long")
    sums = events.group_by("k").agg(total="sum(n)")
    pipeline.view("big", sums.where("total > 5").select("k", "total * 2 AS twice", "upper(k) AS name"))
    ours = trial(pipeline)
    ours.feed("events", [{"k": "a", "n": 4}, {"k": "b", "n": 7}])
    assert ours.rows("big") == [{"k": "b", "twice": 14, "name": "B"}]
    ours.feed("events", [{"k": "a", "n": 2}, {"k": "b", "n": -3}])
    assert ours.rows("big") == [{"k": "a", "twice": 12, "name": "A"}]


def test_without_a_session_the_zone_is_utc(trial: Begin) -> None:
    pipeline = Pipeline("hours")
    events = pipeline.stream("events", "n long, at timestamp", time="at")
    pipeline.view("raw", events.select("0.908 * n AS price", "date_format(at, 'yyyy-MM-dd') AS day"))
    counts = events.group_by(tumbling("at", "1 hour")).agg(c="count(*)")
    pipeline.view("hours", counts.select("window_start", "hour(window_start) AS hour", "c"))
    ours = trial(pipeline)
    ours.feed("events", [{"n": 5, "at": at(30 * 60)}])
    assert ours.rows("raw") == [{"price": Decimal("4.540"), "day": "2026-01-31"}]
    assert [(row["hour"], row["c"]) for row in ours.rows("hours")] == [(12, 1)]


def test_a_batch_that_failed_is_tried_again_with_the_next(trial: Begin) -> None:
    pipeline = Pipeline("failing")
    sums = pipeline.stream("events", "k string, n long").group_by("k").agg(total="sum(n)")
    pipeline.view("shares", sums.select("k", "100 / total AS share"))
    ours = trial(pipeline)
    ours.feed("events", [{"k": "b", "n": 4}])
    for n in (0, 0):
        with pytest.raises(NeedsSpark, match=r"100 / .* met a row that only Spark can answer"):
            ours.feed("events", [{"k": "a", "n": n}])
    assert ours.rows("shares") == [{"k": "b", "share": 25.0}]
    ours.feed("events", [{"k": "a", "n": 5}])
    assert ours.rows("shares") == [{"k": "a", "share": 20.0}, {"k": "b", "share": 25.0}]
    assert ours.counts("events")["records"] == 4


def test_an_event_is_not_from_the_future_by_a_part_of_a_millisecond(trial: Begin) -> None:
    ours = trial(shop(ahead="0 seconds"))
    ours.feed("clicks", [click("/", 5.000_001)])
    assert ours.rejected("clicks") == []


@pytest.mark.parametrize(
    ("define", "what"),
    [
        (lambda p: p.stream("e", "n long").select("soundex(n) AS s"), r"topic e: soundex\(`?n`?\)"),
        (lambda p: p.stream("e", "n decimal(38, 18)"), r"topic e: column n decimal\(38, ?18\)"),
        (lambda p: p.stream("e", "n string", codec="text"), "topic e: codec text"),
        (lambda p: p.stream("e", "n long").group_by("n").agg(c="count(*)").select("n", "soundex(c) AS s"), r"view v: .*soundex"),
    ],
)  # fmt: skip
def test_what_only_spark_computes_is_named_at_the_start(define: Callable[[Pipeline], Any], what: str) -> None:
    pipeline = Pipeline("hard")
    pipeline.view("v", define(pipeline))
    with pytest.raises(NeedsSpark, match=what) as error:
        Trial(pipeline)
    assert "spark=" in error.value.hint


def test_a_record_that_only_spark_reads_is_named(trial: Begin) -> None:
    ours = trial(shop())
    with pytest.raises(NeedsSpark, match="2026-01-31 noon") as error:
        ours.feed("clicks", [click("/", 1) | {"at": "2026-01-31 noon"}])
    assert "write times as" in error.value.hint
    with pytest.raises(NeedsSpark, match=r"\[\]") as error:
        trial(shop()).feed("clicks", [Event(b"[]")])
    assert "times" not in error.value.hint


def test_a_wrong_name_is_told_with_the_right_ones(trial: Begin) -> None:
    ours = trial(shop())
    with pytest.raises(PipelineError, match="no stream or table 'klicks'; it has clicks, users"):
        ours.feed("klicks", [])
    with pytest.raises(PipelineError, match="no view 'x'; it has per_minute, closed, named, people"):
        ours.rows("x")
    with pytest.raises(PipelineError, match="'pge', which is not among at, page, user"):
        ours.feed("clicks", [{"pge": "/"}])


def test_times_may_be_datetimes_of_any_zone(trial: Begin) -> None:
    pipeline = Pipeline("sessions")
    events = pipeline.stream("events", "k string, at timestamp", time="at")
    pipeline.view("sessions", events.group_by("k", session("at", "1 minute")).agg(n="count(*)"))
    ours = trial(pipeline)
    berlin = datetime.fromisoformat("2026-01-31T13:00:30+01:00")
    ours.feed("events", [{"k": "a", "at": NOON}, {"k": "a", "at": berlin}])
    assert [(row["window_start"], row["n"]) for row in ours.rows("sessions")] == [(NOON, 2)]


def test_a_trial_leaves_nothing_behind_and_touches_nothing_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Trial(shop()) as ours:
        ours.feed("clicks", [click("/", 5)])
        folder = Path(ours.log.removeprefix("sqlite:")).parent
        assert folder.exists()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_neither_the_plugin_nor_a_trial_loads_spark() -> None:
    code = (
        "import sys, millstream.testing.plugin\n"
        "assert not {'polars', 'pyarrow', 'pyspark'} & set(sys.modules), 'the plugin is loaded for everyone'\n"
        "from millstream.testing import Trial\n"
        "with Trial('examples/textbook.py') as book:\n"
        "    book.feed('tweets', [{'id': 1, 'author': 2, 'words': 'hi'}])\n"
        "    book.feed('follows', [{'follower': 3, 'followee': 2}])\n"
        "    book.close()\n"
        "    assert len(book.rows('timelines')) == 1\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)


def test_a_trial_keeps_a_view_that_is_kept_nowhere(trial: Begin) -> None:
    pipeline = Pipeline("passing")
    pipeline.view("v", pipeline.stream("s", "x long").where("x > 1"), to="nowhere")
    ours = trial(pipeline)
    ours.feed("s", [{"x": 1}, {"x": 2}])
    assert ours.rows("v") == [{"x": 2}]
