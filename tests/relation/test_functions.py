"""Functions of a pipeline, as they are registered and where they are called; none of this runs Spark."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream import Pipeline
from millstream.errors import NeedsSpark, PlanError
from millstream.plan.state_layout import kernels
from millstream.relation.functions import given_as
from millstream.runtime.setup import chain_of
from millstream.testing import Trial


@pytest.fixture
def shop() -> Pipeline:
    made = Pipeline("shop")
    made.stream("clicks", "page string, n int")
    return made


def tenth(n: Any) -> Any:
    """Ten by a number; nothing else will do."""
    if n is None:
        raise ValueError("called with nothing")
    return 10 // n


def test_a_function_has_a_name_of_its_own(shop: Pipeline) -> None:
    shop.udf.register("tenth", tenth, "int")
    for name in ("upper", "SUM", "case", "date", "of words", ""):
        with pytest.raises(PlanError, match=r"test_functions.py:\d+: function"):
            shop.udf.register(name, tenth, "int")
    with pytest.raises(
        PlanError, match=r"function TENTH: there is one of that name already, registered at .*test_functions.py:\d+"
    ):
        shop.udf.register("TENTH", tenth, "int")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"returns": "text"}, "Spark calls it string"),
        ({"returns": "map<string, int>"}, "only plain types and arrays"),
        ({"returns": None}, "expected the type of its values"),
        ({"returns": "int", "kind": "numpy"}, "expected kind to be one of python, pandas, arrow"),
        ({"returns": "int", "function": 1}, "expected a function"),
    ],
)
def test_what_a_function_gives_is_declared(shop: Pipeline, given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        shop.udf.register("own", given.pop("function", tenth), **given)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_a_function_of_pyspark_brings_its_type_and_its_kind_and_must_be_deterministic(shop: Pipeline) -> None:
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, IntegerType, LongType

    shop.udf.register("plain", functions.udf(lambda n: n, IntegerType()))
    shop.udf.register("arrays", functions.arrow_udf(lambda n: n, LongType()))  # type: ignore[attr-defined]
    shop.udf.register("series", functions.pandas_udf(lambda n: n, ArrayType(LongType())))  # type: ignore[attr-defined]
    assert [(each.name, each.returns, each.kind) for each in shop.udf.all] == [
        ("plain", "int", "python"), ("arrays", "bigint", "arrow"), ("series", "array<bigint>", "pandas"),
    ]  # fmt: skip
    with pytest.raises(PlanError, match="not deterministic"):
        shop.udf.register("drawn", functions.udf(lambda n: n, IntegerType()).asNondeterministic())
    with pytest.raises(PlanError, match="has a type and a kind already"):
        shop.udf.register("twice", functions.udf(lambda n: n, IntegerType()), "int")


def test_two_lambdas_of_one_line_cannot_be_told_apart_by_their_text(shop: Pipeline) -> None:
    one, other = lambda n: n, lambda n: n + 1
    with pytest.raises(PlanError, match="another lambda in it"):
        shop.udf.register("one", one, "int")
    with pytest.raises(PlanError, match="another lambda in it"):
        shop.udf.register("other", other, "int")
    shop.udf.register("largest", lambda n: max([n, 0], key=lambda each: -each), "int")


def test_a_name_that_nobody_registered_is_refused_where_it_is_said(shop: Pipeline) -> None:
    shop.udf.register("tenth", tenth, "int")
    clicks = shop.streams["clicks"]
    with pytest.raises(
        PlanError, match=r"test_functions.py:\d+: view a: `tent\(n\)`: there is no function tent"
    ) as caught:
        shop.view("a", clicks.select("tent(n) AS q"))
    assert caught.value.hint == "did you mean tenth?"
    with pytest.raises(PlanError, match="there is no function zzz"):
        shop.view("b", sql="SELECT zzz(n) AS q FROM clicks")
    with pytest.raises(PlanError, match="there is no function zzz"):
        shop.define("c", clicks.where("upper(page) = 'A' AND zzz(n)"))
    shop.view("d", sql="SELECT Tenth(n) AS q FROM clicks WHERE page IN ('a', 'b') AND struct(n, page) IS NOT NULL")
    assert Pipeline("other").stream("clicks", "n int").select("of_the_session(n) AS q").columns == ("q",)


def test_the_declared_type_is_checked_where_a_view_is_defined(shop: Pipeline) -> None:
    shop.udf.register("shout", lambda text: text, "string")
    shop.udf.register("series", lambda text: text, "string", kind="pandas")
    clicks = shop.streams["clicks"]
    for name in ("shout", "series"):
        with pytest.raises(PlanError, match="sum"):
            shop.view("a", clicks.group_by("n").agg(s=f"sum({name}(page))"))
        with pytest.raises(PlanError, match="column q is string in one relation and int in another"):
            shop.view("b", clicks.select(f"{name}(page) AS q").union(clicks.select("n AS q")))


def test_the_text_of_a_function_is_part_of_the_fingerprint_of_who_calls_it() -> None:
    def prints(body: Any, returns: str = "int") -> tuple[str, str, str]:
        made = Pipeline("shop")
        clicks = made.stream("clicks", "page string, n int")
        made.udf.register("own", body, returns)
        made.view("calls", clicks.select("own(n) AS q"))
        made.view("does_not", clicks.select("n"))
        return made.fingerprint(), made.view_fingerprint("calls"), made.view_fingerprint("does_not")

    one = prints(lambda n: n)
    other = prints(lambda n: n and n + 1)
    wider = prints(lambda n: n, "bigint")
    plain = Pipeline("shop")
    plain.view("does_not", plain.stream("clicks", "page string, n int").select("n"))
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[1] != wider[1]
    assert one[2] == other[2] == plain.view_fingerprint("does_not")


def test_a_kernel_that_is_fed_by_a_changed_function_is_another_one() -> None:
    def prints(body: Any) -> set[str]:
        made = Pipeline("shop")
        clicks = made.stream("clicks", "page string, n int")
        made.udf.register("own", body, "int")
        made.view("sums", clicks.group_by("page").agg(s="sum(own(n))"))
        made.view("counts", clicks.group_by("page").agg(k="count(*)"))
        return set(kernels(chain_of(made)))

    one = prints(lambda n: n)
    other = prints(lambda n: n and n + 1)
    assert len(one & other) == 1
    assert len(one) == len(other) == 2


def test_a_trial_calls_functions_for_the_rows_that_count(shop: Pipeline) -> None:
    asked: list[Any] = []

    @shop.udf("int")
    def noted(n: Any) -> Any:
        asked.append(n)
        return tenth(n)

    @shop.udf("bigint", kind="arrow")
    def doubled(numbers: Any) -> Any:
        assert isinstance(numbers, pa.Array)
        assert numbers.null_count == 0
        return pc.multiply(pc.cast(numbers, pa.int64()), 2)

    clicks = shop.streams["clicks"]
    shop.view(
        "each", clicks.where("n > 0 AND noted(n) > 1").select("page", "CASE WHEN n > 1 THEN noted(n + 1) END AS q")
    )
    shop.view(
        "sums",
        clicks.where("n <> 0")
        .group_by("page")
        .agg(s="sum(doubled(n))")
        .where("noted(s) < 5")
        .select("page", "noted(s) AS t"),
    )
    with Trial(shop) as trial:
        trial.feed(
            "clicks", [{"page": "a", "n": 5}, {"page": "b", "n": 0}, {"page": "c"}, {"page": "d", "n": 1}, b"nonsense"]
        )
        assert sorted((row["page"], row["q"]) for row in trial.rows("each")) == [("a", 1), ("d", None)]
        assert trial.rows("sums") == [{"page": "a", "t": 1}]
    assert None not in asked
    assert asked.count(6) == 1


def test_a_trial_says_what_takes_spark(shop: Pipeline) -> None:
    shop.udf.register("series", lambda text: text, "string", kind="pandas")
    shop.view("a", shop.streams["clicks"].select("series(page) AS q"))
    with pytest.raises(NeedsSpark, match=r"series\(page\) is not computed without Spark"), Trial(shop):
        pass


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (1.0, "int"), (True, "int"), (2**31, "int"), (128, "tinyint"), (1, "string"), ("1", "double"), (1, "boolean"), ("a", "binary"),
        (datetime.datetime(2026, 1, 1), "date"), (datetime.date(2026, 1, 1), "timestamp"), (1.5, "decimal(3,1)"), ([1, "a"], "array<int>"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_none(value: Any, declared: str) -> None:
    with pytest.raises(TypeError, match="expected a value of type"):
        given_as(value, declared)


@pytest.mark.parametrize(
    ("value", "declared", "made"),
    [
        (None, "int", None), (np.int64(3), "int", 3), (2, "double", 2.0), (Decimal("1.5"), "decimal(3,1)", Decimal("1.5")),
        ((1, None), "array<int>", [1, None]), (b"a", "binary", b"a"), (datetime.date(2026, 1, 1), "date", datetime.date(2026, 1, 1)),
    ],
)  # fmt: skip
def test_a_value_of_its_type_is_taken(value: Any, declared: str, made: Any) -> None:
    assert given_as(value, declared) == made
