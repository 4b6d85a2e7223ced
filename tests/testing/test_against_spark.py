"""A trial gives what a run on Spark gives: over the same log, the same views, dead letters and counts; record by record too."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from millstream import Confluent, Event, Pipeline
from millstream.decode.decoder import Decoder, FeedDecoder
from millstream.decode.leftovers import judge, to_records
from millstream.errors import NeedsSpark
from millstream.event import Record
from millstream.kernel.admission.gate import Admission
from millstream.kernel.admission.record import column_of
from millstream.runtime.run import run
from millstream.runtime.setup import chain_of
from millstream.spark.lowering import decode
from millstream.spark.records import COLUMNS
from millstream.store import Batch, open_reader, open_writer
from millstream.testing import Trial
from millstream.window import hopping, session, tumbling
from tests.spark.test_decode_oracle import EPOCH, SCHEMA, WHOLE, some_records

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
EXAMPLES = Path(__file__).parents[2] / "examples"


def bags(place: str, pipeline: str, views: list[str]) -> dict[str, Counter[str]]:
    """All that a store holds of a pipeline, but for which batch it came with."""
    with open_reader(place) as store:
        tables = {view: store.table(view) for view in views}
        tables["dead letters"] = store.dead_letters(pipeline, limit=100_000).drop_columns(["batch"])
        tables["admission"] = store.admission(pipeline)
    return {name: Counter(map(repr, pl.DataFrame(table).rows())) for name, table in tables.items()}


def assert_a_run_gives_the_same(ours: Trial, define: Callable[[], Pipeline], spark: SparkSession, folder: Path) -> None:
    theirs = define()
    theirs.log, theirs.checkpoint = ours.log, str(folder / "checkpoint")
    theirs.views = {name: replace(view, to=f"sqlite:{folder / 'views.db'}") for name, view in theirs.views.items()}
    theirs.to = f"sqlite:{folder / 'views.db'}"
    with open_writer(ours._engine.chain.outputs[0].to) as writer:
        beats = [told.beat for told in writer.heartbeats(theirs.name)]
    with open_writer(theirs.to) as writer:  # as a rebuild finds it: the heartbeats of the version before, and no views
        fence = writer.claim(theirs.name)
        writer.prepare(theirs.name, "before", [])
        writer.commit(Batch("before", 0, fence, beats=beats))
        writer.release()
    run(theirs, spark=spark, once=True, rate_limit=200, rebuild=True)
    views = [output.name for output in ours._engine.chain.outputs]
    found = bags(ours._engine.chain.outputs[0].to, theirs.name, views)
    wanted = bags(theirs.to, theirs.name, views)
    for name in wanted:
        assert found[name] == wanted[name], name
        assert wanted[name], f"{name} is empty, which proves nothing"


def moments(chance: random.Random, count: int) -> list[datetime]:
    """Times that mostly grow, with some late ones among them."""
    return [NOON + timedelta(seconds=7 * i - (chance.random() < 0.2) * chance.randrange(300)) for i in range(count)]


def test_the_clicks_of_the_example(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    chance = random.Random(1)
    ours = trial(EXAMPLES / "clicks.py", partitions=2)
    rows: list[Any] = [
        {"user": chance.randrange(5), "page": chance.choice("abc"), "at": t} for t in moments(chance, 200)
    ]
    rows[::31] = [b"nonsense"] * len(rows[::31])
    rows += [{"user": 1, "page": "a"}, {"user": 2, "page": "b", "at": NOON - timedelta(days=1)}, Event(None, b"k")]
    for low in range(0, len(rows), 40):
        ours.feed("clicks", rows[low : low + 40])
        ours.crash()
    ours.feed("clicks", [{"user": 4, "page": "c", "at": NOON + timedelta(days=9)}], at=NOON)
    ours.close()
    assert_a_run_gives_the_same(ours, lambda: _load("clicks.py"), spark, tmp_path)


def _load(name: str) -> Pipeline:
    from millstream.load import load_pipeline

    return load_pipeline(EXAMPLES / name)


def test_the_joins_of_the_example(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    chance = random.Random(2)
    ours = trial(EXAMPLES / "textbook.py")
    for i, t in enumerate(moments(chance, 30)):
        with ours.batch():
            ours.feed("profiles", [{"id": chance.randrange(4), "name": f"name {i}"}])
            ours.feed("searches", [{"id": i, "words": f"words {i}", "at": t}])
            ours.feed("clicks", [{"search": i - chance.randrange(3), "url": f"/{i}", "at": t}])
            ours.feed("activity", [{"user": chance.randrange(5), "action": "look", "at": t}])
            ours.feed("tweets", [{"id": i % 9, "author": chance.randrange(3), "words": f"tweet {i}"}])
            ours.feed("follows", [{"follower": chance.randrange(3), "followee": chance.randrange(3)}])
            ours.feed("impressions", [{"ad": i, "at": t}])
            ours.feed("hits", [{"hit": chance.randrange(30), "at": t}])
            if i % 5 == 4:
                ours.delete("tweets", [{"id": chance.randrange(9)}])
                ours.delete("follows", [{"follower": chance.randrange(3), "followee": chance.randrange(3)}])
                ours.delete("profiles", [{"id": 3}])
    ours.close()
    assert_a_run_gives_the_same(ours, lambda: _load("textbook.py"), spark, tmp_path)


def busy() -> Pipeline:
    """Windows of several kinds, behind joins and before expressions, with duplicates and routed late rows."""
    pipeline = Pipeline("busy")
    events = pipeline.stream(
        "events", "who string, nth long, user long, amount double, at timestamp", key="user", time="at", delay="20 seconds",
        late="route", sequence=("who", "nth"),
    )  # fmt: skip
    users = pipeline.table("users", "id long, country string", key="id")
    joined = events.join(users, on="user = id", how="left", as_of="at")
    pipeline.view(
        "minutes",
        joined.group_by("country", tumbling("at", "1 minute")).agg(n="count(*)", s="sum(amount)"),
        emit="final",
    )
    pipeline.view("hops", events.group_by(hopping("at", "2 minutes", "1 minute")).agg(n="count(*)", m="max(amount)"))
    pipeline.view("visits", events.where("amount > 2").group_by("user", session("at", "30 seconds")).agg(n="count(*)"))
    pipeline.view("best", events.select("user", "amount").top(2, by="amount DESC", per="user"))
    minutes = events.windowed(tumbling("at", "1 minute"))
    pipeline.view(
        "highest", minutes.top(1, by="amount DESC", per="window_end").select("user", "window_start"), emit="final"
    )
    hops = events.windowed(hopping("at", "2 minutes", "1 minute")).select("user", "amount", "window_end")
    pipeline.view("placed", hops.over("window_end", order="amount").add(place="row_number()"), emit="final")
    totals = events.group_by("user").agg(total="sum(amount)", n="count(*)")
    pipeline.view("rich", totals.where("total > 20").select("user", "total / n AS mean", "concat('u', user) AS name"))
    return pipeline


def test_unpivoted_columns(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    def rooms() -> Pipeline:
        pipeline = Pipeline("rooms")
        table = pipeline.table("rooms", "id long, day double, night double, name string", key="id")
        pipeline.view("parts", table.unpivot(["id", "upper(name) AS name"], ["day", "night"], "part", "degrees"))
        warm = table.unpivot("id", ["day", "night * 2 AS twice"], "part", "degrees").where("degrees > 3")
        pipeline.view("warm", warm.group_by("part").agg(n="count(*)", s="sum(degrees)"))
        return pipeline

    chance = random.Random(5)
    ours, there = trial(rooms()), dict[int, tuple[float | None, float | None, str]]()
    for number in range(60):
        row = chance.choice([None, 1.5, 8.25]), chance.choice([2.5, 7.0]), f"room {number}"
        there[number % 7] = row
        ours.feed("rooms", [{"id": number % 7, "day": row[0], "night": row[1], "name": row[2]}])
    ours.feed("rooms", [b"nonsense"])
    ours.delete("rooms", [{"id": 3}])
    del there[3]
    frame = spark.createDataFrame(
        [(key, *row[:2], row[2].upper()) for key, row in there.items()],
        "id long, day double, night double, name string",
    )
    spread = frame.unpivot(["id", "name"], ["day", "night"], "part", "degrees")
    found = ours.rows("parts")
    assert Counter(tuple(row[name] for name in spread.columns) for row in found) == Counter(
        map(tuple, spread.collect())
    )
    assert len(found) == 12
    assert_a_run_gives_the_same(ours, rooms, spark, tmp_path)


def test_the_history_of_a_table(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    def people() -> Pipeline:
        pipeline = Pipeline("people")
        users = pipeline.table("users", "id long, city string", key="id")
        looks = pipeline.stream("looks", "user long, at timestamp", time="at", delay="1 hour")
        were = users.history()
        pipeline.view("were", were)
        pipeline.view("now", were.where("valid_to IS NULL").select("id", "upper(city) AS city", "valid_from"))
        pipeline.view("moves", were.group_by("city").agg(n="count(*)", last="max(valid_from)"))
        pipeline.view("then", looks.join(users, on="user = id", as_of="at").select("user", "at", "city"))
        return pipeline

    chance, ours = random.Random(11), trial(people(), partitions=2)
    times = [NOON + timedelta(seconds=chance.choice((10, 10, 10, 5)) * i) for i in range(80)]
    for time in times:
        key = chance.randrange(5)
        if chance.random() < 0.2:
            ours.delete("users", [{"id": key}], at=time)
        else:
            ours.feed("users", [{"id": key, "city": chance.choice(["x", "y", None])}], at=time)
    looks: list[Any] = [
        {"user": chance.randrange(6), "at": NOON + timedelta(seconds=chance.randrange(900))} for _ in range(60)
    ]
    ours.feed("looks", [*looks, b"nonsense"])
    assert_a_run_gives_the_same(ours, people, spark, tmp_path)
    rows, then = ours.rows("were"), ours.rows("then")
    assert any(row["valid_to"] is None for row in rows)
    at: list[tuple[Any, ...]] = [
        (look["user"], look["at"], row["city"])
        for look in looks
        for row in rows
        if row["id"] == look["user"] and row["valid_from"] <= look["at"]
        if row["valid_to"] is None or look["at"] < row["valid_to"]
    ]
    assert Counter(at) == Counter((row["user"], row["at"], row["city"]) for row in then)
    assert len(set(at)) > 20


@pytest.mark.parametrize("with_spark", [False, True])
def test_windows_behind_joins(
    with_spark: bool, spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]
) -> None:
    chance = random.Random(3)
    ours = trial(busy(), spark=spark) if with_spark else trial(busy())
    ours.feed("users", [{"id": i, "country": "abc"[i % 3]} for i in range(5)])
    times = moments(chance, 150)
    for low in range(0, 150, 50):
        rows = [
            {"who": chance.choice("pq"), "nth": i + chance.randrange(3), "user": chance.randrange(6), "amount": chance.random() * 9, "at": t}
            for i, t in enumerate(times[low : low + 50], low)
        ]  # fmt: skip
        ours.feed("events", [*rows, b"{}", b'{"user": 1.5}'])
        ours.delete("users", [{"id": chance.randrange(5)}])
        ours.feed("users", [{"id": 9, "country": "z"}])
        ours.advance("5 seconds")
    ours.crash("run.after_delivery")
    ours.close()
    assert_a_run_gives_the_same(ours, busy, spark, tmp_path)


def hard() -> Pipeline:
    """What only Spark computes: an odd function, a decimal, text, and forms of time."""
    pipeline = Pipeline("hard")
    events = pipeline.stream("events", "name string, price decimal(9, 2), at timestamp", time="at")
    lines = pipeline.stream("lines", "line string", codec="text")
    pipeline.view("sounds", events.group_by("soundex(name) AS sound").agg(n="count(*)", total="sum(price)"))
    pipeline.view("words", lines.select("reverse(line) AS enil"))
    return pipeline


def test_with_a_session_everything_can_be_tried(
    spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]
) -> None:
    with pytest.raises(NeedsSpark):
        trial(hard())
    ours = trial(hard(), spark=spark)
    ours.feed("events", [{"name": "Robert", "price": 1.5, "at": "2026-01-31T13:00:00+01:00"}, b"nonsense"], at=NOON)
    ours.feed("events", [{"name": "Rupert", "price": 2, "at": "2026-01-31 12:00:01"}])
    ours.feed("lines", [{"line": "stream"}])
    ours.crash()
    ours.close()
    assert [(row["n"], str(row["total"])) for row in ours.rows("sounds")] == [(2, "3.50")]
    assert ours.rows("words") == [{"enil": "maerts"}]
    assert_a_run_gives_the_same(ours, hard, spark, tmp_path)


def money() -> Pipeline:
    """Decimals read, computed, grouped by and joined, and days moved by spans: none of it takes Spark."""
    pipeline = Pipeline("money")
    sales = pipeline.stream("sales", "item long, price decimal(15, 2), discount decimal(15, 2), sold date")
    items = pipeline.table("items", "item long, kind string, cost decimal(10, 2)", key="item")
    recent = sales.where("sold >= DATE '2026-03-01' - INTERVAL '1' MONTH AND discount BETWEEN 0.06 - 0.01 AND 0.09")
    per_item = recent.group_by("item", "discount").agg(charged="sum(price * (1 - discount))", n="count(*)")
    pipeline.view(
        "years",
        sales.group_by("extract(YEAR FROM sold) AS year", "price").agg(n="count(*)", rounded="sum(round(price, 1))"),
    )
    joined = per_item.join(items, on="item").select("kind", "charged - cost * n AS gain")
    pipeline.view("gains", joined.group_by("kind").agg(gain="sum(gain)", best="max(gain)"))
    return pipeline


def test_money_needs_no_spark(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    ours = trial(money())
    ours.feed("items", [{"item": 1, "kind": "a", "cost": 1.5}, {"item": 2, "kind": "b", "cost": "0.25"}])
    ours.feed(
        "sales",
        [{"item": 1, "price": 10.05, "discount": 0.05, "sold": "2026-02-01"}, {"item": 1, "price": True}, b"nonsense"],
    )
    ours.feed(
        "sales",
        [
            {"item": 2, "price": "99.99", "discount": "0.07", "sold": "2026-02-03"},
            {"item": 2, "price": 10.05, "sold": "2024-02-29"},
        ],
    )
    ours.feed("items", [{"item": 1, "kind": "b", "cost": 2}])
    ours.crash()
    ours.close()
    assert ours.rows("gains") == [{"kind": "b", "gain": Decimal("100.2882"), "best": Decimal("92.7407")}]
    assert len(ours.rejected("sales")) == 2
    assert_a_run_gives_the_same(ours, money, spark, tmp_path)


# record by record

PARTS = "id long, note string, n int, at timestamp"
VALUES = [
    None, b"", b"{}", b'{"id": 1}', b'{"id": null, "note": "x"}', b'{"note": "x", "n": 4}', b'{"n": "x"}', b'{"id": 5, "n": 2147483648}',
    b'{"id": 5, "id": "x"}', b'{"id": true}', b'{"at": "soon"}', b'{"at": "2026-01-31T12:00:00Z"}', b'{"at": "", "id": 1}', b'{"n": 1e3}',
    b'{"id": 1', b'{"id": 1}}', b"{'id': 1}", b'{"id": NaN}', b"junk", b"17", b"null", b'"x"', b"[]", b'[{"id": 1}]', b'{"note": 7}', b"{id: 1}",
    b'{"id": [1]}', b'{"note": "x"', b'{"id": 1,}', b'{"at": false}',
]  # fmt: skip
KEYS = [None, b"", b"7", b"-12", b" 7", b"7.0", b"x", b"\xff", b"99999999999999999999", b'{"id": 3, "note": "k"}', b'{"id": "3"}',
        b"millstream.heartbeat.0"]  # fmt: skip
BEATS = [
    b'{"time": 5, "pipeline": null}',
    b'{"time": null, "pipeline": "oracle"}',
    b'{"time": 5, "pipeline": "other"}',
    b'{"time": null}',
]


def stream(pipeline: Pipeline, **options: Any) -> None:
    pipeline.view("all", pipeline.stream("parts", PARTS, **options).select("*", "n + 1 AS more"))


def table(pipeline: Pipeline, key: Any) -> None:
    pipeline.view("all", pipeline.table("parts", PARTS, key=key))


def test_json_framed_for_a_schema_registry(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    def define() -> Pipeline:
        made = Pipeline("framed")
        codec = Confluent("http://nobody.invalid", "clicks-value", kind="json")
        clicks = made.stream("clicks", "page string, n bigint", codec=codec)
        names = made.table("names", "page string, title string", key="page", codec="confluent-json")
        made.view("pages", clicks.group_by("page").agg(total="sum(n)"))
        made.view("titles", names)
        return made

    ours = trial(define())
    bad = [b'{"page": "a", "n": 5}', b"\0\0\0\0", b"\0\0\0\0\7nonsense", b"\1\0\0\0\7{}"]
    rows: list[Any] = [{"page": "abc"[n % 3], "n": n} for n in range(30)]
    names: list[Any] = [
        {"page": "a", "title": "ü"},
        {"page": "b", "title": "\n"},
        Event(None, b"b"),
        Event(bad[0], b"a"),
    ]
    ours.feed("names", names)
    ours.feed("clicks", [*rows[:9], *bad, *rows[9:], b'\0\0\0\n\n{"page": "a", "n": 1000}', Event(None, b"a")])
    assert {row["page"]: row["total"] for row in ours.rows("pages")} == {"a": 135 + 1000, "b": 145, "c": 155}
    assert [(row["page"], row["title"]) for row in ours.rows("titles")] == [("a", "ü")]
    assert_a_run_gives_the_same(ours, define, spark, tmp_path)


@pytest.mark.parametrize(
    ("define", "least"),
    [(lambda p: stream(p), 150), (lambda p: stream(p, time="at"), 150), (lambda p: table(p, "id"), 150),
     (lambda p: table(p, "note"), 150), (lambda p: table(p, ["id", "note"]), 60)],
)  # fmt: skip
def test_what_is_left_is_judged_as_spark_does(
    define: Callable[[Pipeline], None], least: int, spark: SparkSession
) -> None:
    pairs = [(key, value) for key in KEYS[:-1] for value in VALUES] + [(KEYS[-1], value) for value in BEATS]
    pairs += [(None, value) for value in WHOLE]
    compare(define, pairs, least, spark)


def test_what_is_left_of_random_records_is_judged_as_spark_does(spark: SparkSession) -> None:
    def define(pipeline: Pipeline) -> None:
        pipeline.view("all", pipeline.stream("parts", SCHEMA, time="at").select("*"))

    compare(define, [(None, value) for value in some_records(11, 1500)], 250, spark)


def compare(
    define: Callable[[Pipeline], None], pairs: list[tuple[bytes | None, bytes | None]], least: int, spark: SparkSession
) -> None:
    pipeline = Pipeline("oracle")
    define(pipeline)
    chain = chain_of(pipeline)
    (feed,) = chain.feeds
    decoder = Decoder(Admission(chain), utc=True).feeds["parts"]
    assert isinstance(decoder, FeedDecoder)
    records = [Record("parts", 0, i, key, value, i * 1000, i * 2000) for i, (key, value) in enumerate(pairs)]
    _, left = decoder.decode(0, to_records(records))
    frames = []
    for record in (record for record, is_left in zip(records, left, strict=True) if is_left):
        try:
            frames.append(judge(decoder, "oracle", 0, [record]))
        except NeedsSpark:
            continue
    ours = pl.concat(frames)
    rows = [
        (r.key, r.value, r.topic, r.partition, r.offset, EPOCH + timedelta(seconds=r.offset), EPOCH + timedelta(seconds=2 * r.offset))
        for r in records
    ]  # fmt: skip
    kinds = ("binary", "binary", "string", "int", "bigint", "timestamp", "timestamp")
    ddl = ", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, kinds, strict=True))
    native = pl.DataFrame(decode(spark.createDataFrame(rows, ddl), chain, "oracle").toArrow())
    theirs = native.filter(pl.col("_o").is_in(ours["_o"].to_list())).sort("_o")
    assert ours.height >= least, f"{ours.height} of {int(left.sum())} are judged"
    for name in ours.columns:
        column = column_of(feed, name) if any(name == each.name for each in feed.expressions) else name
        usable = theirs["_bad"].is_null() & theirs["_beat"].is_null()
        same = ours[name].eq_missing(theirs[column])
        wrong = ours.filter(~(same | (~usable & (column != name))))["_o"]
        shown = [(records[i].key, records[i].value) for i in wrong[:5]]
        assert not len(wrong), (name, shown, ours.filter(ours["_o"].is_in(wrong.to_list()))[name][:5].to_list(),
                                theirs.filter(theirs["_o"].is_in(wrong.to_list()))[column][:5].to_list())  # fmt: skip


def nested() -> Pipeline:
    """The least and the greatest of arrays and structs, where rows are taken back and where they are not, in all kinds of windows."""
    pipeline = Pipeline("nested")
    columns = "id long, g string, a array<double>, r struct<x: double, n: array<string>, d: date>, at timestamp"
    best = {"lo": "min(a)", "hi": "max(a)", "first": "min(r)", "last": "max(r)", "pair": "max(struct(a, r, id))"}
    table, stream = pipeline.table("t", columns, key="id"), pipeline.stream("s", columns, time="at")
    pipeline.view("of_table", table.group_by("g").agg(**best))
    pipeline.view("of_stream", stream.group_by("g").agg(**best))
    windows: dict[str, Any] = {
        "tumbled": tumbling("at", "1 day"),
        "hopped": hopping("at", "2 days", "1 day"),
        "visited": session("at", "1 day"),
    }
    for name, window in windows.items():
        pipeline.view(name, stream.group_by("g", window).agg(**best))
    return pipeline  # fmt: skip


def test_the_least_and_greatest_of_nested_values_are_sparks(spark: SparkSession, trial: Callable[..., Trial]) -> None:
    chance = random.Random(5)
    numbers = [None, 0.0, 1.5, -2.0, 1e300]
    arrays = [None, [], *([chance.choice(numbers) for _ in range(chance.randint(1, 3))] for _ in range(12))]
    texts = [None, [], ["a"], ["a", None], ["a", "b"], ["é"], ["z", "a"], ["\U0001f600"], ["\uffee"]]
    days = [None, "2026-01-01", "1969-12-31"]
    structs = [None] + [{"x": chance.choice(numbers), "n": chance.choice(texts), "d": chance.choice(days)} for _ in range(30)]  # fmt: skip

    def row(number: int) -> dict[str, Any]:
        at = NOON + timedelta(minutes=number)
        return {"id": number % 60, "g": "abc"[number % 3], "a": chance.choice(arrays), "r": chance.choice(structs), "at": at}  # fmt: skip

    ours, fed = trial(nested(), spark=spark), []
    there: dict[int, dict[str, Any]] = {}
    for low in range(0, 120, 30):
        rows = [row(number) for number in range(low, low + 30)]
        fed += rows
        gone = chance.sample(range(60), 8)
        there = {number: each for number, each in (there | {each["id"]: each for each in rows}).items() if number not in gone}  # fmt: skip
        with ours.batch():
            ours.feed("s", rows)
            ours.feed("t", rows)
            ours.delete("t", [{"id": number} for number in gone])
    kind = "id long, g string, a array<double>, r struct<x: double, n: array<string>, d: string>"
    wanted = "min(a) AS lo", "max(a) AS hi", "min(r) AS first", "max(r) AS last", "max(struct(a, r, id)) AS pair"
    for rows, views in ((list(there.values()), ["of_table"]), (fed, ["of_stream", "tumbled", "hopped", "visited"])):
        plain = [(each["id"], each["g"], each["a"], each["r"]) for each in rows]
        spark.createDataFrame(plain, kind).createOrReplaceTempView("nested_rows")
        cast = "SELECT id, g, a, struct(r.x, r.n, cast(r.d AS date) AS d) AS s, r FROM nested_rows"
        made = f"SELECT id, g, a, CASE WHEN r IS NOT NULL THEN s END AS r FROM ({cast})"
        found = spark.sql(f"SELECT g, {', '.join(wanted)} FROM ({made}) GROUP BY g ORDER BY g").collect()
        expected = [each.asDict(recursive=True) for each in found]
        for view in views:
            shown = sorted(ours.rows(view), key=lambda each: each["g"])
            assert {repr({name: each[name] for name in expected[0]}) for each in shown} == set(map(repr, expected)), (
                view
            )
            assert len(shown) == (6 if view == "hopped" else 3)
