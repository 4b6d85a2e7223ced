"""What Spark's analyser refuses is a PlanError with the view, the place and Spark's sentence, at every door, before a record is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream import Event, Pipeline, open_log
from millstream.errors import PlanError
from millstream.runtime.batch import run_batch
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.sink.files import committed_files
from millstream.testing import Trial

HERE = Path(__file__).name
UNKNOWN = "Cannot resolve routine `uper`"


def defined(folder: Path, define: Callable[[Any], Any]) -> tuple[Pipeline, str]:
    """A pipeline with one view, on a log with one record; and where that was said."""
    log = f"sqlite:{folder / 'log.db'}"
    pipeline = Pipeline("p", log=log, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "checkpoint"))
    stream = pipeline.stream("s", "page string, n int, tags map<string, int>")
    pipeline.view("v", define(stream))
    with open_log(log, create=True) as opened:
        opened.create_topic("s", 1)
        opened.append("s", [Event(b'{"page": "a", "n": 1}')])
    return pipeline, f"{HERE}:{inspect.getsourcelines(define)[1]}: view v: "


def doors(spark: SparkSession) -> dict[str, Callable[[Pipeline], Any]]:
    return {
        "run": lambda pipeline: run(pipeline, spark=spark, once=True),
        "batch": lambda pipeline: run_batch(pipeline, spark=spark),
        "trial": lambda pipeline: Trial(pipeline, spark=spark),
    }


def test_a_function_that_spark_does_not_know_is_named_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    for name, door in doors(spark).items():
        (tmp_path / name).mkdir()
        pipeline, place = defined(tmp_path / name, lambda s: s.where("n > 0").select("upper(uper(page)) AS x"))
        with pytest.raises(PlanError) as caught:
            door(pipeline)
        assert place in caught.value.message, name
        assert f"`upper(uper(page))`: {UNKNOWN}" in caught.value.message
        assert caught.value.hint == "did you mean upper?"
        assert caught.value.__suppress_context__, "50 lines of Spark's Python"


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda s: s.select("substring(page) AS x"), "`substring(page)`: The `substring` requires"),
        (lambda s: s.select("tags + n AS x"), "`tags + n`: Cannot resolve"),
        (lambda s: s.group_by("n").agg(k="count(*)").select("n", "uper(k) AS x"), f"`uper(k)`: {UNKNOWN}"),
        (lambda s: s.group_by("n").agg(k="sum(uper(page))"), f"`uper(page)`: {UNKNOWN}"),
        (
            lambda s: s.group_by("n").agg(k="sum(soundex(page))"),
            "`sum(soundex(page))`: expected a number; found string",
        ),
        (
            lambda s: s.group_by("n").agg(k="sum(make_dt_interval(n))"),
            "`sum(make_dt_interval(n))`: expected a number; found interval day to second",
        ),
        (lambda s: s.select("page").union(s.select("length(soundex(page)) AS page")), "union: column page is string"),
    ],
)
def test_wrong_arguments_are_named_with_their_line(
    define: Callable[[Any], Any], said: str, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline, place = defined(tmp_path, define)
    with pytest.raises(PlanError) as caught:
        Trial(pipeline, spark=spark)
    assert said in caught.value.message
    assert place.removesuffix("view v: ") in caught.value.message


def test_a_definition_that_is_refused_takes_nothing_away_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    wrong, _ = defined(tmp_path, lambda s: s.group_by("page").agg(n="max(uper(n))"))

    def mended(text: str = "max(n)") -> Pipeline:
        made = Pipeline("p", log=wrong.log, to=wrong.to, checkpoint=wrong.checkpoint)
        view = made.view("v", made.stream("s", "page string, n int").group_by("page").agg(n=text))
        made.sink("out", view, f"files:{tmp_path / 'files'}?format=json")
        return made

    with pytest.raises(PlanError, match="uper"):
        run(wrong, spark=spark, once=True)
    assert not (tmp_path / "checkpoint").exists()
    run(mended(), spark=spark, once=True)
    assert mended().views["v"].to_polars().rows() == [("a", 1)]
    sent = committed_files(tmp_path / "files")
    for text in ("max(uper(n))", "sum(soundex(page))"):
        with pytest.raises(PlanError):
            run(mended(text), spark=spark, once=True, rebuild=True)
        assert mended().views["v"].to_polars().rows() == [("a", 1)]
        assert committed_files(tmp_path / "files") == sent
    with open_log(wrong.log) as log:
        log.append("s", [Event(b'{"page": "a", "n": 2}')])
    run(mended(), spark=spark, once=True)
    assert mended().views["v"].to_polars().rows() == [("a", 2)]


def test_verify_names_what_spark_does_not_know_any_more(spark: SparkSession, tmp_path: Path) -> None:
    spark.udf.register("twice_of_mine", lambda n: n * 2, "int")
    pipeline, place = defined(tmp_path, lambda s: s.select("twice_of_mine(n) AS x"))
    run(pipeline, spark=spark, once=True)
    assert pipeline.views["v"].to_polars()["x"].to_list() == [2]
    spark.sql("DROP TEMPORARY FUNCTION twice_of_mine")
    with pytest.raises(PlanError) as caught:
        verify(pipeline, spark=spark)
    assert f"{place}`twice_of_mine(n)`: Cannot resolve routine `twice_of_mine`" in caught.value.message
