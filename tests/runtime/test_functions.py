"""Functions of a pipeline on Spark: in every expression, for the rows that count, the same in a run, a batch, a rebuild and `verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession, functions

from millstream import Pipeline, rebuild, run, run_batch, verify
from millstream.errors import CheckpointMismatch, ExpressionFailed, PlanError
from millstream.event import Event
from millstream.log import open_log
from millstream.relation.spark_functions import SPARK_FUNCTIONS
from millstream.store import open_reader

cloudpickle.register_pickle_by_value(  # type: ignore[no-untyped-call]
    sys.modules[__name__]
)  # a session that began in another folder does not find the tests

VALUES: list[dict[str, Any]] = [
    {"id": 0, "n": 5, "w": "a"},
    {"id": 1, "n": 0, "w": "b"},
    {"id": 2, "n": 2, "w": None},
    {"id": 3, "n": None, "w": "a"},
]


def tenth(n: Any) -> Any:
    """Ten by a number; nothing else will do."""
    if n is None:
        raise ValueError("called with nothing")
    return 10 // n


def shout(text):  # type: ignore[no-untyped-def]  # by its types PySpark would look for another kind
    return text and text.upper() + "!"


def of_series(numbers):  # type: ignore[no-untyped-def]
    assert (numbers != 0).all()
    assert not numbers.isna().any()
    return numbers.astype("int64") + 100


def of_words(words):  # type: ignore[no-untyped-def]
    return words.map(lambda word: None if word is None else word * 2)


def of_arrays(numbers):  # type: ignore[no-untyped-def]
    assert numbers.null_count == 0
    assert 0 not in numbers.to_pylist()
    return pc.multiply(numbers, 2)


@pytest.fixture(params=["json", "text"])
def codec(request: pytest.FixtureRequest) -> str:
    """Records that are decoded where they are read, and others, which only Spark decodes."""
    return str(request.param)


def numbers_of(pipeline: Pipeline, codec: str) -> Any:
    if codec == "json":
        return pipeline.stream("numbers", "id int, n int, w string")
    fields = "from_json(line, 'id int, n int, w string')"
    read = pipeline.stream("numbers", "line string", codec="text").where(f"{fields}.id IS NOT NULL")
    return read.select(*(f"{fields}.{name} AS {name}" for name in ("id", "n", "w")))


@pytest.fixture
def shop(tmp_path: Path) -> Pipeline:
    return made(tmp_path)


def made(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(
        "own", log=f"sqlite:{tmp_path / 'log.db'}", to=f"sqlite:{tmp_path / 'v.db'}", checkpoint=str(tmp_path / "c")
    )
    pipeline.udf.register("tenth", tenth, "int")
    pipeline.udf.register("shout", functions.udf(shout, "string"))
    pipeline.udf.register("of_series", functions.pandas_udf(of_series, "bigint"))  # type: ignore[attr-defined]
    pipeline.udf.register("of_words", of_words, "string", kind="pandas")
    pipeline.udf.register("of_arrays", functions.arrow_udf(of_arrays, "bigint"))  # type: ignore[attr-defined]
    return pipeline


def append(pipeline: Pipeline, *values: bytes) -> None:
    with open_log(pipeline.log, create=True) as log:
        if not log.topics():
            log.create_topic("numbers", 1)
        log.append("numbers", [Event(value) for value in values])


def kept(pipeline: Pipeline, view: str, *columns: str) -> list[tuple[Any, ...]]:
    return pipeline.views[view].to_polars().select(columns).rows()


def rows(pipeline: Pipeline, view: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(kept(pipeline, view, *columns))


def test_functions_of_a_row_of_series_and_of_arrays_are_called_for_the_rows_that_filters_keep(
    shop: Pipeline, spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    append(shop, *(json.dumps(each).encode() for each in VALUES), b"nonsense")
    numbers = numbers_of(shop, codec)
    kept = numbers.where("n <> 0")
    shop.view("each", kept.select("id", "tenth(n) AS q"))
    shop.view("series", kept.select("id", "of_series(n) AS q"))
    shop.view("arrays", kept.select("id", "OF_ARRAYS(n) AS q"))
    shop.view("all_words", numbers.select("id", "shout(w) AS q", "of_words(w) AS twice"))
    shop.view("cases", numbers.select("id", "CASE WHEN n > 0 THEN tenth(n) END AS q"))
    shop.view("asked", numbers.where("n > 0 AND tenth(n) > 2").select("id"))
    done = run(shop, spark=spark, once=True)
    assert (done.records, done.admitted) == (5, 4 if codec == "json" else 5)
    assert rows(shop, "each", "id", "q") == [(0, 2), (2, 5)]
    assert rows(shop, "series", "id", "q") == [(0, 105), (2, 102)]
    assert rows(shop, "arrays", "id", "q") == [(0, 10), (2, 4)]
    assert rows(shop, "all_words", "id", "q", "twice") == [
        (0, "A!", "aa"),
        (1, "B!", "bb"),
        (2, None, None),
        (3, "A!", "aa"),
    ]
    assert rows(shop, "cases", "id", "q") == [(0, 2), (1, None), (2, 5), (3, None)]
    assert rows(shop, "asked", "id") == [(2,)]
    assert verify(shop, spark=spark).equal
    out = run_batch(shop, spark=spark, out=tmp_path / "out")
    assert {name: out.views[name].num_rows for name in ("each", "series", "arrays", "cases")} == {
        "each": 2, "series": 2, "arrays": 2, "cases": 4,
    }  # fmt: skip


def test_functions_are_called_between_groups_and_over_them(shop: Pipeline, spark: SparkSession) -> None:
    append(shop, *(json.dumps(each).encode() for each in [*VALUES, {"id": 4, "n": 7, "w": "c"}]))
    shop.stream("numbers", "id int, n int, w string")
    grouped = "SELECT shout(w) AS w, sum(n) AS s FROM numbers WHERE w IS NOT NULL GROUP BY shout(w)"
    shop.view("sums", sql=f"SELECT w, shout(w) AS louder, of_series(s) AS h FROM ({grouped}) WHERE s > 0")
    shop.view(
        "counts",
        sql=f"SELECT tenth(s) AS t, count(*) AS k FROM ({grouped}) WHERE s > 0 AND of_arrays(s) > 0 GROUP BY tenth(s)",
    )
    run(shop, spark=spark, once=True)
    assert rows(shop, "sums", "w", "louder", "h") == [("A!", "A!!", 105), ("C!", "C!!", 107)]
    assert rows(shop, "counts", "t", "k") == [(1, 1), (2, 1)]
    append(shop, b'{"id": 5, "n": -4, "w": "a"}', b'{"id": 6, "n": 9, "w": "b"}')
    run(shop, spark=spark, once=True)
    assert rows(shop, "sums", "w", "louder", "h") == [("A!", "A!!", 101), ("B!", "B!!", 109), ("C!", "C!!", 107)]
    assert rows(shop, "counts", "t", "k") == [(1, 2), (10, 1)]
    assert verify(shop, spark=spark).equal


def test_a_record_on_which_a_function_fails_is_a_dead_letter_and_a_value_of_another_type_is_a_failure(
    shop: Pipeline, spark: SparkSession, codec: str
) -> None:
    append(shop, *(json.dumps(each).encode() for each in VALUES))
    shop.udf.register("half", lambda n: n / 2 if n else n, "int")
    numbers = numbers_of(shop, codec)
    shop.view("each", numbers.select("id", "tenth(n) AS q", "half(n) AS h"))
    done = run(shop, spark=spark, once=True)
    assert (done.admitted, done.malformed) == (0, 4)
    with open_reader(shop.to) as store:
        letters = store.dead_letters(shop.name).sort_by("offset").to_pylist()
    assert [(each["offset"], each["reason"]) for each in letters] == [(at, "failed") for at in range(4)]
    assert "half(n)" in letters[2]["detail"] or codec == "text"
    assert verify(shop, spark=spark).equal


def test_a_function_that_fails_over_a_group_stops_the_pipeline_and_is_named(
    shop: Pipeline, spark: SparkSession
) -> None:
    append(shop, *(json.dumps(each).encode() for each in VALUES))
    shop.stream("numbers", "id int, n int, w string")
    shop.view(
        "counts",
        sql="SELECT tenth(s) AS t, count(*) AS k FROM (SELECT w, sum(n) AS s FROM numbers GROUP BY w) GROUP BY tenth(s)",
    )
    with pytest.raises(ExpressionFailed, match=r"tenth\(s\)` failed between two kernels, .*: tenth: ZeroDivisionError"):
        run(shop, spark=spark, once=True)


def test_a_changed_function_is_another_definition_and_a_rebuild_takes_it(
    shop: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    append(shop, *(json.dumps(each).encode() for each in VALUES))
    shop.udf.register("plus", lambda n: n and n + 1, "int")
    shop.view("each", numbers_of(shop, "json").select("id", "plus(n) AS q"))
    run(shop, spark=spark, once=True)
    other = made(tmp_path)
    other.udf.register("plus", lambda n: n and n + 2, "int")
    other.view("each", numbers_of(other, "json").select("id", "plus(n) AS q"))
    with pytest.raises(CheckpointMismatch):
        run(other, spark=spark, once=True)
    rebuild(other, spark=spark)
    assert rows(other, "each", "id", "q") == [(0, 7), (1, 0), (2, 4), (3, None)]


def test_the_functions_of_two_pipelines_in_one_session_are_their_own(spark: SparkSession, tmp_path: Path) -> None:
    for step in (1, 2):
        folder = tmp_path / str(step)
        folder.mkdir()
        pipeline = made(folder)
        append(pipeline, *(json.dumps(each).encode() for each in VALUES))
        pipeline.udf.register("plus", lambda n, step=step: n and n + step, "int")
        pipeline.view("each", numbers_of(pipeline, "text").select("id", "plus(n) AS q"))
        run(pipeline, spark=spark, once=True)
        assert rows(pipeline, "each", "id", "q") == [(0, 5 + step), (1, 0), (2, 2 + step), (3, None)]


def test_a_series_function_between_groups_takes_spark_and_is_refused_at_its_place(shop: Pipeline) -> None:
    shop.stream("numbers", "id int, n int, w string")
    sums = "SELECT w, sum(n) AS s FROM numbers GROUP BY w"
    with pytest.raises(PlanError, match=r"test_functions.py:\d+: .*of_series\(s\)` lies between two kernels"):
        shop.view("counts", sql=f"SELECT of_series(s) AS t, count(*) AS k FROM ({sums}) GROUP BY of_series(s)")


def test_the_names_of_sparks_functions_are_all_known(spark: SparkSession) -> None:
    names = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in names if name.isidentifier()} == SPARK_FUNCTIONS


def both(batches):  # type: ignore[no-untyped-def]
    for batch in batches:
        rows = [
            {"n": each, "w": row["w"]}
            for row in batch.to_pylist()
            for each in ((row["n"], -row["n"]) if row["n"] else ())
        ]
        yield pa.RecordBatch.from_pylist(rows, pa.schema([("n", pa.int64()), ("w", pa.string())]))


def test_a_function_over_batches_is_that_of_map_in_arrow(shop: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    append(shop, *(json.dumps(each).encode() for each in VALUES))
    numbers = shop.stream("numbers", "id int, n int, w string")
    shop.view("both", numbers.map_batches(both, "n long, w string"))
    largest = numbers.group_by("w").agg(n="max(n)").map_batches(both, "n long, w string")
    shop.view("largest", largest.group_by("w").agg(k="count(*)", n="max(n)"))
    run(shop, spark=spark, once=True)
    append(shop, b'{"id": 4, "n": 9, "w": "a"}', b'{"id": 5, "n": 1, "w": "b"}')
    run(shop, spark=spark, once=True)
    there = [(5, "a"), (-5, "a"), (2, None), (-2, None), (9, "a"), (-9, "a"), (1, "b"), (-1, "b")]
    assert sorted(kept(shop, "both", "n", "w"), key=str) == sorted(there, key=str)
    assert sorted(kept(shop, "largest", "w", "k", "n"), key=str) == sorted(
        [("a", 2, 9), ("b", 2, 1), (None, 2, 2)], key=str
    )
    assert verify(shop, spark=spark).equal
    assert run_batch(shop, spark=spark, out=tmp_path / "out").views["both"].num_rows == 8
    records = spark.createDataFrame([(each["n"], each["w"]) for each in VALUES], "n int, w string")
    assert sorted(map(tuple, records.mapInArrow(both, "n long, w string").collect()), key=str) == sorted(
        there[:4], key=str
    )
