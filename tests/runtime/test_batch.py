"""One definition, streamed and as a batch: over the same range of the log both say the same."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millstream import Pipeline, load_pipeline, run, run_batch, verify
from millstream.cli import execute as cli
from millstream.errors import AlreadyRunning, CheckpointMismatch, ConfigError, OffsetOutOfRange, PipelineError
from millstream.event import Event
from millstream.log import Log, open_log
from millstream.store import open_reader, open_writer
from millstream.window import tumbling
from tests.runtime import random_shop, test_operators
from tests.runtime.random_shop import Shop, Supply, stored
from tests.runtime.shop_file import Child, append_clicks, load, write_shop

EXAMPLES = Path(__file__).parents[2] / "examples"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def operators(folder: Path) -> tuple[Pipeline, Any]:
    """Every operator, windows and joins among them."""
    chance = random.Random(8)

    def feed(log: Log, part: int) -> None:
        for minute in range(part * 4, part * 4 + 4):
            for topic, events in test_operators.some_events(chance, minute).items():
                log.append(topic, events)

    return test_operators.pipeline(folder), feed


def bad_records(folder: Path) -> tuple[Pipeline, Any]:
    """Late, repeated and malformed records, a side view for the late ones."""
    shop, supply = Shop(1), Supply(4)
    assert shop.late == "route"

    def feed(log: Log, part: int) -> None:
        for _ in range(3 + part):
            log.append("clicks", supply.clicks(30))
            log.append("notes", supply.notes(4))
            log.append("users", supply.users(6))

    return shop.pipeline("streamed", folder, f"sqlite:{folder / 'log.db'}"), feed


def textbook(folder: Path) -> tuple[Pipeline, Any]:
    """The joins of the book."""
    book, chance = load_pipeline(EXAMPLES / "textbook.py"), random.Random(2)
    book.checkpoint = str(folder / "checkpoint")
    columns = {
        "searches": ("id", "words"), "clicks": ("search", "url"), "activity": ("user", "action"), "profiles": ("id", "name"),
        "tweets": ("id", "author", "words"), "follows": ("follower", "followee"), "impressions": ("ad",), "hits": ("hit",),
    }  # fmt: skip

    def feed(log: Log, part: int) -> None:
        for topic in ("profiles", "tweets", "follows", *columns):
            events = []
            for number in range(8):
                at = BEGIN + timedelta(minutes=10 * part + number)
                value: dict[str, Any] = {name: chance.randrange(4) for name in columns[topic]} | {"at": at.isoformat()}
                value |= {name: str(value[name]) for name in ("words", "url", "action", "name") if name in value}
                key = value if topic == "follows" else value[columns[topic][0]]
                kept = chance.random() > 0.2 or topic not in ("tweets", "follows", "profiles")
                events.append(
                    Event(json.dumps(value).encode() if kept else None, key=json.dumps(key).encode(), time=at)
                )
            log.append(topic, events)

    return book, feed


def bags(tables: Mapping[str, Any]) -> dict[str, Counter[Any]]:
    return {name: random_shop._bag(table) for name, table in tables.items()}


@pytest.mark.parametrize("make", [operators, bad_records, textbook])
def test_a_batch_over_a_range_is_what_the_stream_had_there(
    make: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, feed = make(tmp_path)
    with open_log(made.log, create=True) as log:
        for topic in {view.topic for view in sources(made)}:
            log.create_topic(topic, 2)
        feed(log, 0)
        run(made, spark=spark, once=True)
        with open_writer(made.to) as sink:
            reached = sink.last(made.name)
        assert reached is not None
        early = stored(made)
        feed(log, 1)
        # Before the stream closes time in the log: a batch closes it for itself, and the log is as it was.
        ends = {view.topic: log.bounds(view.topic) for view in sources(made)}
        closed = run_batch(made, spark=spark, close=True, out=tmp_path / "closed")
        assert {view.topic: log.bounds(view.topic) for view in sources(made)} == ends
        run(made, spark=spark, once=True, close=True, rate_limit=40)
    late = stored(made)
    assert bags(closed.views) == late
    assert {path.stem: random_shop._bag(pq.read_table(path)) for path in views_in(tmp_path / "closed")} == late
    assert early != late
    assert bags(run_batch(made, spark=spark, until=reached.offsets, out=tmp_path / "early").views) == early
    whole = run_batch(made, spark=spark, to=f"sqlite:{tmp_path / 'other.db'}")
    assert bags(whole.views) == late
    with open_reader(f"sqlite:{tmp_path / 'other.db'}") as other, open_reader(made.to) as own:
        assert other.admission(made.name) == own.admission(made.name)
        assert {view.name: random_shop._bag(other.table(view.name)) for view in other.views()} == late


def sources(pipeline: Pipeline) -> list[Any]:
    return [relation.node for relation in (*pipeline.streams.values(), *pipeline.tables.values())]


def views_in(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.parquet") if not path.name.startswith("millstream_")]


def test_a_batch_keeps_apart_from_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    shop = load(file)
    first = run_batch(shop, spark=spark)
    assert first.counts["records"] == 100
    assert bags(first.views) == stored(shop)
    assert verify(shop, spark=spark).equal
    append_clicks(tmp_path, 100, 100)
    second = run_batch(shop, spark=spark, close=True)  # replaces the first
    assert second.counts["records"] == 200
    assert bags(second.views) == stored(shop) != bags(first.views)
    verified = verify(shop, spark=spark)
    assert verified.equal, verified
    assert verified.records == 200
    with pytest.raises(CheckpointMismatch, match="made by a batch") as refused:
        run(shop, spark=spark, once=True)
    assert "--rebuild" in refused.value.hint
    run(shop, spark=spark, once=True, rebuild=True)
    kept = stored(shop)
    with pytest.raises(PipelineError, match="runs as a stream") as refused_batch:
        run_batch(shop, spark=spark)
    assert "--to" in refused_batch.value.hint
    shop.checkpoint = str(tmp_path / "elsewhere")
    with pytest.raises(PipelineError, match="a stream keeps its views in"):
        run_batch(shop, spark=spark)
    with open_writer(shop.to) as other:
        other.claim(shop.name)
        with pytest.raises(AlreadyRunning):
            run_batch(shop, spark=spark)
    assert stored(shop) == kept


def test_from_a_time_on_streams_are_cut_and_tables_are_not(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("cut", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'views.db'}", buckets=2)
    sales = made.stream("sales", "shop long, price long, at timestamp", time="at")
    shops = made.table("shops", "id long, city string", key="id")
    per_hour = sales.group_by("shop", tumbling("at", "1 hour")).agg(total="sum(price)")
    made.view("per_hour", per_hour, emit="final")
    made.view("cities", shops.select("id", "city"))

    def sale(minute: int) -> Event:
        at = BEGIN + timedelta(minutes=minute)
        return Event(json.dumps({"shop": 1, "price": minute, "at": at.isoformat()}).encode(), key=b"1", time=at)

    with open_log(made.log, create=True) as log:
        log.create_topic("sales", 1)
        log.create_topic("shops", 1)
        log.append("shops", [Event(b'{"id": 1, "city": "Ulm"}', key=b"1", time=BEGIN)])
        log.append("sales", [sale(minute) for minute in range(0, 300, 10)])
        hour = BEGIN + timedelta(hours=1)
        some = run_batch(made, spark=spark, start=hour, until=hour + timedelta(hours=2), close=True)
        assert some.start == {"sales": {0: 6}, "shops": {0: 0}}
        assert some.end == {"sales": {0: 18}, "shops": {0: 1}}
        wanted = [sum(range(60, 120, 10)), sum(range(120, 180, 10))]
        assert sorted(some.views["per_hour"]["total"].to_pylist()) == wanted
        assert some.views["cities"].to_pylist() == [{"id": 1, "city": "Ulm"}]
        assert made.views["per_hour"].to_polars()["total"].sort().to_list() == wanted
        assert verify(made, spark=spark).equal
        open_end = run_batch(made, spark=spark, start={"sales": {0: 24}})
        assert open_end.views["per_hour"].num_rows == 0, "nothing closed the last hour"
        assert open_end.counts["records"] == 30 - 24 + 1
        for wrong, error in (({"sales": {0: 31}}, OffsetOutOfRange), ({"bought": {0: 1}}, ConfigError)):
            with pytest.raises(error):
                run_batch(made, spark=spark, start=wrong)
        with pytest.raises(ConfigError, match="begins at offset 9 and ends at 3"):
            run_batch(made, spark=spark, start={"sales": {0: 9}}, until={"sales": {0: 3}})


def test_the_command_runs_a_batch_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 100)
    for options in (["--batch", "--once"], ["--from", "2026-01-01"], ["--batch", "--from", "{1}"]):
        assert cli(["run", str(file), *options]) == 2
        assert ("--batch" if options[-1] != "{1}" else "--from") in capsys.readouterr().err
    out = tmp_path / "made"
    out.mkdir()
    (out / "mine.txt").write_text("")
    refused = Child("run", file, "--batch", "--out", out)
    try:
        code, _, err = refused.wait()
    finally:
        refused.end()
    assert code == 2, err
    assert "something else" in err
    (out / "mine.txt").unlink()
    child = Child("run", file, "--batch", "--until", '{"clicks": {"0": 0}}', "--out", out, "--json")
    try:
        code, printed, err = child.wait()
    finally:
        child.end()
    assert code == 0, err
    found = json.loads(printed)
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        half = log.bounds("clicks")[1].end
    assert found["records"] == half < 100
    assert found["views"]["by_user"] == pq.read_table(out / "by_user.parquet").num_rows > 0
    assert json.loads((out / "millstream.json").read_text())["end"] == {"clicks": {"0": 0, "1": half}}
    counts = pq.read_table(out / "millstream_admission.parquet").to_pylist()
    rejected = sum(row["late"] + row["malformed"] for row in counts)
    assert rejected == pq.read_table(out / "millstream_dead_letters.parquet").num_rows > 0
    assert not (tmp_path / "views.db").exists()


def test_a_checkpoint_must_be_a_folder(tmp_path: Path) -> None:
    shop = load(write_shop(tmp_path))
    shop.checkpoint = "hdfs://namenode/shop"
    for runs in (run, run_batch):
        with pytest.raises(ConfigError, match="expected a folder"):
            runs(shop)
