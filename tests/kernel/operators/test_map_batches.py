"""A function over Arrow batches: of each row any number of rows, taken back with it; its faults are told with its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from millstream import Pipeline, window
from millstream.errors import PipelineError, PlanError
from millstream.kernel.operators import map_batches as batches
from millstream.kernel.operators.map_batches import BatchesKernel
from millstream.kernel.zset import WEIGHT
from millstream.plan.spec import Batches
from millstream.relation.nodes import Column
from millstream.testing import Trial


def words(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each word of each line."""
    for batch in given:
        rows = [{"word": word, "at": row["at"]} for row in batch.to_pylist() for word in (row["line"] or "").split()]
        yield pa.RecordBatch.from_pylist(rows, pa.schema([("word", pa.string()), ("at", pa.timestamp("us", "UTC"))]))


def same(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from given


@pytest.fixture
def shop() -> Pipeline:
    made = Pipeline("shop")
    made.stream("lines", "line string, at timestamp", time="at", delay="10 seconds")
    made.table("users", "id long, n long", key="id")
    return made


def test_each_row_becomes_any_number_of_rows_and_keeps_its_time(shop: Pipeline) -> None:
    made = shop.streams["lines"].map_batches(words, "word string, at timestamp")
    shop.view("words", made.group_by("word", window.tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")
    with Trial(shop) as trial:
        at = "2026-01-31T12:00:05Z"
        trial.feed(
            "lines",
            [{"line": "a b a", "at": at}, {"line": "", "at": at}, {"line": None, "at": at}, {"line": "b", "at": at}],
        )
        trial.advance("2 minutes")
        assert sorted((row["word"], row["n"]) for row in trial.rows("words")) == [("a", 2), ("b", 2)]


def test_what_was_made_of_a_row_is_taken_back_with_it(shop: Pipeline) -> None:
    shop.view("sums", shop.tables["users"].map_batches(same, "id long, n long").group_by("n").agg(k="count(*)"))
    with Trial(shop) as trial:
        trial.feed("users", [{"id": 1, "n": 5}, {"id": 2, "n": 5}])
        trial.feed("users", [{"id": 1, "n": 6}])
        assert [(row["n"], row["k"]) for row in trial.rows("sums")] == [(5, 1), (6, 1)]
        trial.delete("users", [{"id": 2}])
        assert [(row["n"], row["k"]) for row in trial.rows("sums")] == [(6, 1)]


def test_rows_that_appear_and_rows_that_disappear_are_given_apart_as_often_as_they_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[Any]] = []

    def noted(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            assert batch.schema.field("s").type == pa.string()
            seen.append(batch["n"].to_pylist())
            yield batch

    monkeypatch.setattr(batches, "_ROWS", 2)
    kernel = BatchesKernel(Batches(("n", "s"), (Column("n", "long"), Column("s", "string")), noted))
    rows = pl.DataFrame({"n": [1, 2, 3], "s": ["a", None, "c"], WEIGHT: [2, -2, 1]})
    made = kernel.through(rows)
    assert seen == [[2, 2], [1, 1], [3]]
    assert made.group_by("n").agg(pl.col(WEIGHT).sum()).sort("n").rows() == [(1, 2), (2, -2), (3, 1)]
    seen.clear()
    assert kernel.through(rows.clear()).height == 0
    assert seen == []


def raises(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ZeroDivisionError("nothing to divide")
    yield from given


def other_columns(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (batch.select(["at"]) for batch in given)


def no_batches(given: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    yield from (batch.to_pylist() for batch in given)


def totals(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in given:
        yield pa.RecordBatch.from_pylist([{"line": str(batch.num_rows), "at": batch["at"][0].as_py()}], batch.schema)


def later(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in given:
        at = pa.array([each.as_py().replace(year=2030) for each in batch["at"]], batch.schema.field("at").type)
        yield pa.RecordBatch.from_arrays([batch["line"], at], schema=batch.schema)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises, "map_batches with raises: ZeroDivisionError: nothing to divide"),
        (other_columns, "expected Arrow batches with columns line, at; found columns at"),
        (no_batches, "expected Arrow batches with columns line, at; found 'list'"),
        (totals, "depends on other rows, or differs from call to call"),
        (later, "gives a at that none of its rows has"),
    ],
)
def test_what_goes_wrong_in_a_function_is_told_with_the_line_that_says_it(
    shop: Pipeline, function: Any, said: str
) -> None:
    shop.view("v", shop.streams["lines"].map_batches(function, "line string, at timestamp"))
    with Trial(shop) as trial, pytest.raises(PipelineError, match=r"test_map_batches.py:\d+: ") as caught:
        trial.feed("lines", [{"line": "a", "at": f"2026-01-31T12:00:0{n}Z"} for n in range(2)])
    assert said in caught.value.message


def test_a_type_that_does_not_fit_is_told(shop: Pipeline) -> None:
    shop.view("v", shop.streams["lines"].map_batches(same, "line long, at timestamp"))
    with Trial(shop) as trial, pytest.raises(PipelineError, match="do not fit the declared types"):
        trial.feed("lines", [{"line": "a", "at": "2026-01-31T12:00:00Z"}])


def test_what_is_said_of_it_is_checked_where_it_is_said(shop: Pipeline) -> None:
    lines = shop.streams["lines"]
    wrong: list[tuple[Any, str, str]] = [
        (1, "n long", "expected a function of Arrow batches"),
        (same, "m map<string, int>", "only plain types"),
    ]
    for given, schema, said in wrong:
        with pytest.raises(PlanError, match=rf"test_map_batches.py:\d+: map_batches: .*{said}"):
            lines.map_batches(given, schema)
    with pytest.raises(PlanError, match="sum"):
        shop.view("v", lines.map_batches(same, "line string, at timestamp").group_by("at").agg(s="sum(line)"))
    with pytest.raises(AttributeError, match=r"it is map_batches\(f, schema\) here"):
        getattr(lines, "mapInArrow")  # noqa: B009
    assert str(lines.map_batches(words, "word string")).endswith("map batches: words")
