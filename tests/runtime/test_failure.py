"""An expression that fails on a record: a dead letter for that record alone, or a stop that names it; a filter keeps it from both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import ExpressionFailed, LogCorrupt
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.batch import run_batch
from millstream.runtime.failure import cause_of, ours_in
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.store import open_reader
from tests.runtime.shop_file import batches


def pipeline(folder: Path, number: str) -> Pipeline:
    made = Pipeline(
        "shop",
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'views.db'}",
        checkpoint=str(folder / "check"),
        buckets=1,
    )
    clicks = made.stream("clicks", "page string, amount long", failed="stop")
    made.view("fine", clicks.select("upper(page) AS page"))
    made.view("totals", clicks.group_by(f"{number} AS number").agg(n="count(*)"))
    return made


def test_an_expression_that_fails_names_its_view_and_the_record_and_can_be_mended(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(tmp_path, "cast(page AS int)")
    with open_log(made.log, create=True) as log:
        log.create_topic("clicks", 1)
        pages = [str(number) for number in range(20)]
        pages[13] = "thirteen"
        log.append("clicks", [Event(json.dumps({"page": page, "amount": 0}).encode()) for page in pages])
        log.append("clicks", [Event(b"not even JSON")])
    with pytest.raises(ExpressionFailed) as caught:
        run(made, spark=spark, once=True)
    message = str(caught.value)
    assert f"{made.views['totals'].place}: view totals: cast(page AS int)" in message
    assert "clicks/0 offset 13" in message
    assert "thirteen" in message
    assert "view fine" not in message
    assert "\tat " not in message
    assert caught.value.hint
    assert batches(made) == []
    mended = pipeline(tmp_path, "try_cast(page AS int)")
    run(mended, spark=spark, once=True, rebuild=True)
    assert mended.views["totals"].get(None) == {"number": None, "n": 1}
    assert mended.views["fine"].to_arrow().num_rows == 20


def test_what_fails_behind_a_join_says_what_to_do_and_the_row_can_be_corrected(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = Pipeline("sums", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'views.db'}", buckets=1)
    made.checkpoint = str(tmp_path / "check")
    a, b = (made.table(name, f"id long, {name} long", key="id") for name in "ab")
    made.view("sums", a.join(b, on="id").group_by("a + b AS total").agg(n="count(*)"))

    def put(topic: str, number: int) -> None:
        with open_log(made.log) as log:
            log.append(topic, [Event(json.dumps({"id": 1, topic: number}).encode(), b"1")])

    with open_log(made.log, create=True) as log:
        for topic in "ab":
            log.create_topic(topic, 1)
    put("a", (1 << 63) - 1)
    put("b", 1)
    with pytest.raises(ExpressionFailed, match=r"`a \+ b` failed between two kernels, on 1 rows") as caught:
        run(made, spark=spark, once=True)
    assert "correct the row in its topic and run again" in caught.value.hint
    put("a", 41)
    run(made, spark=spark, once=True)
    assert made.views["sums"].to_polars().rows() == [(42, 1)]


def test_what_fails_above_an_aggregate_names_the_line_that_says_it(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline("shares", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'views.db'}", buckets=1)
    made.checkpoint = str(tmp_path / "check")
    totals = made.stream("clicks", "page string, amount long").group_by("page").agg(total="sum(amount)")
    shares = totals.select("page", "10 / total AS share")
    made.view("shares", shares.where("share < 100"))
    with open_log(made.log, create=True) as log:
        log.create_topic("clicks", 1)
        log.append("clicks", [Event(b'{"page": "/", "amount": 0}')])
    begin = f"{shares.node.place}: view shares: 10 / total: [DIVIDE_BY_ZERO]"
    assert "test_failure.py:" in begin
    with pytest.raises(ExpressionFailed) as caught:
        run(made, spark=spark, once=True)
    assert str(caught.value).startswith(begin)
    with pytest.raises(ExpressionFailed) as caught:
        run_batch(made, spark=spark, out=tmp_path / "out")
    assert str(caught.value).startswith(begin)


STACK = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
    ^^^^^^^^^
{last}

	at org.apache.spark.api.python.BasePythonRunner"""


def test_an_error_of_ours_is_found_after_the_stack_that_raised_it() -> None:
    raised = "millstream.errors.LogCorrupt: log.db, topic t: damaged\n  hint: restore it"
    assert ours_in(STACK.format(last=raised)) == (LogCorrupt, "log.db, topic t: damaged")


@pytest.mark.parametrize(
    "text",
    [
        "The value 'millstream.errors.LogCorrupt: broken\n  hint: curl evil | sh' cannot be cast. SQLSTATE: 22018",
        "The value 'Traceback (most recent call last):\n  x\nmillstream.errors.LogCorrupt: b' cannot be cast. SQLSTATE: 22018",
        STACK.format(last="ValueError: millstream.errors.LogCorrupt: broken"),
        STACK.format(last="ValueError: x\nmillstream.errors.LogCorrupt: broken"),
        STACK.format(last="millstream.errors.annotations: x"),
        STACK.format(last="millstream.errors.printable: x"),
    ],
    ids=["value", "stack in a value", "message", "line of a message", "no class", "function"],
)
def test_a_record_cannot_write_an_error_of_ours(text: str) -> None:
    assert ours_in(text) is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: No such thing SQLSTATE: XXKST\n===\nIdentifier: shop", "No such thing"),
        ("An error occurred while calling o1.getResult.\n: org.apache.spark.SparkException: Exception thrown\n\tat x\nCaused by: a.b.OddException: odd\n\tat y\nCaused by: java.io.EOFException", "OddException: odd"),
        (STACK.format(last="ValueError: x") + "\nCaused by: a.b.OddException: odd", "ValueError: x"),
    ],
    ids=["query", "java", "python"],
)  # fmt: skip
def test_the_cause_is_what_was_raised_and_never_where_spark_heard_of_it(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_a_record_that_fails_or_changes_its_types_is_a_dead_letter_alone(spark: SparkSession, tmp_path: Path) -> None:
    made = Pipeline(
        "shop",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "check"),
        buckets=1,
    )
    clicks = made.stream("clicks", "page string, n long, at timestamp", time="at", sequence=("'one'", "n"))
    prices = made.table("prices", "id long, price long", key="id")
    made.view("pages", clicks.group_by("cast(page AS int) AS number").agg(k="count(*)"))
    # Only Spark computes `least` where records are read; the guards of both must hold there too.
    made.view("shares", clicks.where("n <> 3").select("n", "60 / (n - 3) AS q", "60 / least(n - 3, 50) AS p"))
    made.view("inside", sql="SELECT n, 60 div (n - 5) AS q FROM (SELECT n FROM clicks WHERE n <> 5)")
    ticks = made.stream("ticks", "n long, day string", time="to_timestamp(day) AS at")
    made.view("days", ticks.select("n", "hour(at) AS h"))
    made.view("per", prices.select("id", "60 / coalesce(price, 0) AS q"))

    def click(number: int, **fields: object) -> Event:
        said = {"page": str(number % 3), "n": number, "at": f"2026-01-31T12:00:{number:02}Z", **fields}
        return Event(json.dumps(said).encode())

    def price(number: int, price: int | None) -> Event:
        value = None if price is None else json.dumps({"id": number, "price": price}).encode()
        return Event(value, str(number).encode())

    with open_log(made.log, create=True) as log:
        log.create_topic("clicks", 1)
        log.create_topic("prices", 1)
        log.create_topic("ticks", 1)
        days = ["2026-01-31T12:00:00Z", "some day", "2026-01-31T13:00:00Z"]
        log.append("ticks", [Event(json.dumps({"n": n, "day": day}).encode()) for n, day in enumerate(days)])
        log.append("clicks", [click(number) for number in range(1, 7)] + [click(7, page="seven"), click(8)])
        # A producer changes the type of a field, and takes it back. To Spark an object is text: its JSON.
        log.append("clicks", [click(9, n="nine"), click(10, at=True), click(11, page={"path": "/"}), click(12)])
        log.append("prices", [price(1, 3), price(2, 4), price(2, 0), price(1, None)])
    run(made, spark=spark, once=True)
    numbers = [1, 2, 3, 4, 5, 6, 8, 12]
    with open_reader(made.to) as store:
        letters = store.dead_letters("shop").sort_by([("topic", "ascending"), ("offset", "ascending")]).to_pylist()
        (counts, *_) = store.admission("shop").sort_by("topic").to_pylist()
    assert [(each["topic"], each["offset"], each["reason"]) for each in letters] == [
        ("clicks", 6, "failed"),
        ("clicks", 8, "malformed"),
        ("clicks", 9, "malformed"),
        ("clicks", 10, "failed"),
        ("prices", 2, "failed"),
        ("ticks", 1, "malformed"),
    ]
    assert letters[0]["detail"] == "view pages: cast(page AS int)"
    assert letters[4]["detail"] == "view per: 60 / coalesce(price, 0)"
    assert letters[5]["detail"] == "no value in column at"
    assert [(row["n"], row["h"]) for row in made.views["days"].to_arrow().to_pylist()] == [(0, 12), (2, 13)]
    assert counts["records"] == 12 == counts["admitted"] + counts["malformed"]
    assert made.views["per"].to_arrow().to_pylist() == [{"id": 2, "q": 15.0}]
    assert {row["number"]: row["k"] for row in made.views["pages"].to_arrow().to_pylist()} == {0: 3, 1: 2, 2: 3}
    shares = made.views["shares"].to_arrow().to_pylist()
    assert [(row["n"], row["q"], row["p"]) for row in shares] == [
        (number, 60 / (number - 3), 60 / min(number - 3, 50)) for number in numbers if number != 3
    ]
    assert [row["n"] for row in made.views["inside"].to_arrow().to_pylist()] == [n for n in numbers if n != 5]
    assert verify(made, spark=spark).equal
    again = run_batch(made, spark=spark, out=tmp_path / "batch")
    assert again.views["pages"].num_rows == 3
