"""Functions in Python that a user registered in the session: called for the records that they are for, and one that fails costs its record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession, functions

from millstream import Pipeline, run, run_batch, verify
from millstream.errors import ExpressionFailed
from millstream.event import Event
from millstream.log import open_log
from millstream.store import open_reader

cloudpickle.register_pickle_by_value(  # type: ignore[no-untyped-call]
    sys.modules[__name__]
)  # a session that began in another folder does not find the tests


def tenth(n: Any) -> Any:
    """Ten by a number; nothing else will do."""
    if n is None:
        raise ValueError("called with nothing")
    return 10 // n


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Pipeline:
    """A topic with a zero, a null and nonsense in it, and another topic beside it."""

    @functions.pandas_udf("bigint")  # type: ignore[attr-defined]
    def beyond(numbers):  # type: ignore[no-untyped-def]
        assert (numbers != 0).all()
        assert not numbers.isna().any()
        return 2**62 + numbers.astype("int64")

    spark.udf.register("tenth", tenth, "int")
    spark.udf.register("positive", lambda n: n > 0, "boolean")

    @functions.arrow_udf("bigint")  # type: ignore[attr-defined]
    def doubled(numbers):  # type: ignore[no-untyped-def]
        assert numbers.null_count == 0
        assert 0 not in numbers.to_pylist()
        return pc.multiply(numbers, 2)

    spark.udf.register("beyond", beyond)
    spark.udf.register("doubled", doubled)
    made = Pipeline(
        "udf", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'v.db'}", checkpoint=str(tmp_path / "c")
    )
    with open_log(made.log, create=True) as log:
        log.create_topic("numbers", 1)
        log.create_topic("others", 1)
        values = [json.dumps({"id": nth, "n": n}).encode() for nth, n in enumerate([5, 0, 2, None, -5])]
        log.append("numbers", [Event(value) for value in (*values, b"nonsense")])
        log.append("others", [Event(b'{"m": 1}')])
    made.view("others", made.stream("others", "m int"))
    return made


def rows(pipeline: Pipeline, view: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(pipeline.views[view].to_polars().select(columns).rows())


def test_a_filter_guards_a_function_in_python(shop: Pipeline, spark: SparkSession) -> None:
    numbers = shop.stream("numbers", "id int, n int", failed="stop")
    shop.view("each", numbers.where("n <> 0").select("id", "tenth(n) AS q"))
    shop.view("twice", numbers.where("n > 0").group_by("tenth(tenth(n)) AS q").agg(k="count(*)"))
    shop.view(
        "tested", numbers.where("n IS NOT NULL").where("positive(n)").select("id", "tenth(n) + tenth(n + 1) AS q")
    )
    shop.view("at_once", numbers.where("n <> -5 AND positive(n)").select("id"))
    shop.view("told", numbers.select("id", "n <> -5 AND n IS NOT NULL AND positive(n) AS is"))
    shop.view("columns", numbers.where("n <> 0").select("id", "beyond(n) AS q"))
    shop.view("arrays", numbers.where("n <> 0").select("id", "doubled(n) AS q"))
    shop.view(
        "cases",
        numbers.select("id", "CASE WHEN n <> 0 AND n > 2 THEN tenth(n) WHEN n < 0 THEN -1 ELSE id END + 1 AS q"),
    )
    done = run(shop, spark=spark, once=True)
    assert (done.records, done.admitted, done.malformed) == (7, 6, 1)
    assert rows(shop, "each", "id", "q") == [(0, 2), (2, 5), (4, -2)]
    assert rows(shop, "twice", "q", "k") == [(2, 1), (5, 1)]
    assert rows(shop, "tested", "id", "q") == [(0, 3), (2, 8)]
    assert rows(shop, "at_once", "id") == [(0,), (2,)]
    assert rows(shop, "told", "id", "is") == [(0, True), (1, False), (2, True), (3, False), (4, False)]
    assert rows(shop, "arrays", "id", "q") == [(0, 10), (2, 4), (4, -10)]
    assert rows(shop, "cases", "id", "q") == [(0, 3), (1, 2), (2, 3), (3, 4), (4, 0)]
    assert rows(shop, "columns", "id", "q") == [(0, 2**62 + 5), (2, 2**62 + 2), (4, 2**62 - 5)]
    assert verify(shop, spark=spark).equal


def test_a_record_on_which_a_function_in_python_fails_is_a_dead_letter_for_itself_alone(
    shop: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    shop.view("each", shop.stream("numbers", "id int, n int").select("id", "tenth(n) AS q"))
    done = run(shop, spark=spark, once=True)
    assert (done.admitted, done.malformed) == (4, 3)
    assert rows(shop, "each", "id", "q") == [(0, 2), (2, 5), (4, -2)]
    with open_reader(shop.to) as store:
        letters = store.dead_letters(shop.name).sort_by("offset").to_pylist()
    assert [(each["offset"], each["reason"]) for each in letters] == [(1, "failed"), (3, "failed"), (5, "malformed")]
    assert "tenth(n)" in letters[0]["detail"]
    assert verify(shop, spark=spark).equal
    assert run_batch(shop, spark=spark, out=tmp_path / "out").views["each"].num_rows == 3


def test_a_function_in_python_that_fails_may_stop_the_pipeline_and_is_named(
    shop: Pipeline, spark: SparkSession
) -> None:
    shop.view("each", shop.stream("numbers", "id int, n int", failed="stop").select("id", "tenth(n) AS q"))
    with pytest.raises(ExpressionFailed, match=r"tenth\(n\) fails on numbers/0 offset 1: tenth: ZeroDivisionError"):
        run(shop, spark=spark, once=True)
