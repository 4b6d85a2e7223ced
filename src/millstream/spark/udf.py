"""Python functions that the user registered in the session, called for the records that an expression is for, and no others.

Spark computes them before the expression that they stand in, for every row: of all topics, and also where a filter or a CASE
keeps the row out. So another function stands in for each: its first argument says whether the row counts, and it calls the user's only then. What
that raises comes back as a value, and fails the expression for this record alone. A pandas function gets many rows at once: it
is given those that count, and if it raises, the pipeline stops.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.errors import PlanError
from millstream.relation.case import outer_cases, read_case
from millstream.relation.expression import replace_calls
from millstream.relation.functions import Function, given_as
from millstream.relation.predicate import parts, unbracketed, without_null

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# pyspark's numbers for functions of a row, whose values come by pickle or by Arrow, and for those of columns.
_BY_PICKLE, _BY_ARROW, _PANDAS, _ARROW = 100, 101, 200, 250
STANDS_IN = "millstream_"
"""How the names of functions begin that stand in for others."""
_KINDS = {"python": _BY_ARROW, "pandas": _PANDAS, "arrow": _ARROW}


Find: TypeAlias = Callable[[str], Any]
"""Finds a Python function of the session by its name: Spark's expression for it, or None."""


def guarded(
    spark: SparkSession,
    find: Find,
    expression: str,
    rows: str,
    guard: str = "",
    functions: Iterable[Function] = (),
) -> str:
    """An expression for records where ``rows`` and ``guard`` are true; its Python functions are called there alone.

    ``functions`` are those of the pipeline; a name that is none of theirs may be one that ``find`` knows.
    """
    calls = _Calls(spark, find, rows, {each.name.lower(): each for each in functions})
    condition = calls.condition(guard, final=True) if guard else ""
    if guard:
        calls.rows = f"{rows} AND ({condition})"
    made = f"({calls.condition(expression, final=False)})"
    made = f"CASE WHEN {condition} THEN {made} END" if guard else made
    if not calls.failures:
        return made
    # The message of a failure stands outside of the calls: what raises inside of their arguments is not caught.
    why = f"coalesce({', '.join(calls.failures)})"
    return f"CASE WHEN {why} IS NOT NULL THEN raise_error({why}) ELSE {made} END"


class _Calls:
    """Stand-ins put in the place of Python functions, which count for ``rows``; ``failures`` are what they say of failures."""

    def __init__(self, spark: SparkSession, find: Find, rows: str, functions: Mapping[str, Function]) -> None:
        self.spark, self.find, self.rows, self.functions = spark, find, rows, functions
        self.failures: list[str] = []
        self._cases: dict[str, str] = {}

    def condition(self, sql: str, *, final: bool) -> str:
        """Let conditions before AND guard a function behind it; ``final`` says that null counts as false."""
        inner = without_null(sql)
        if inner != sql:
            return f"coalesce(({self.condition(inner, final=True)}), false)"
        pieces = parts(unbracketed(sql))
        if len(pieces) < 2:
            return self._expression(sql)
        made = []
        for piece in pieces:
            made.append(f"({self.condition(piece, final=final)})")
            self.rows += f" AND {made[-1]}" if final else f" AND coalesce({made[-1]}, true)"
        return " AND ".join(made)

    def _expression(self, sql: str) -> str:
        """An expression that AND does not cut: each CASE in it by itself, under a name while the calls around it are replaced."""
        pieces, done = [], 0
        for start, end in outer_cases(sql):
            name = f"millstream_case_{len(self._cases)}"
            self._cases[name] = ""  # so that those inside have other names
            self._cases[name] = self._case(sql[start:end])
            pieces += [sql[done:start], name]
            done = end
        return self._whole(replace_calls("".join((*pieces, sql[done:])), self._stand_in))

    def _case(self, sql: str) -> str:
        """A CASE: its branches keep rows from the functions in each other."""
        subject, branches, otherwise = read_case(sql)
        before, made = self.rows, f"CASE {subject and self.condition(subject, final=False)}"
        for when, then in branches:
            rows, asked = self.rows, self.condition(when, final=not subject)
            chosen = (
                f"coalesce(({self.condition(subject, final=False)}) = ({asked}), false)"
                if subject
                else f"coalesce(({asked}), false)"
            )
            self.rows = f"{rows} AND {chosen}"
            made += f" WHEN {asked} THEN {self.condition(then, final=False)}"
            self.rows = f"{rows} AND NOT {chosen}"
        made += f" ELSE {self.condition(otherwise, final=False)}" if otherwise else ""
        self.rows = before
        return f"{made} END"

    def _whole(self, sql: str) -> str:
        """The text with each CASE in its place again."""
        return re.sub(r"millstream_case_\d+", lambda found: f"({self._cases[found[0]]})", sql) if self._cases else sql

    def _stand_in(self, name: str, arguments: str) -> str | None:
        found = _stand_in(self.spark, self.find, name, self.functions.get(name.lower()))
        if found is None:
            return None
        registered, returns_failures = found
        call = f"{registered}({', '.join(filter(str.strip, [self.rows, self._whole(arguments)]))})"
        if returns_failures:
            self.failures.append(f"{call}.why")
        return f"{call}.value" if returns_failures else call


def _stand_in(spark: SparkSession, find: Find, name: str, own: Function | None) -> tuple[str, bool] | None:
    """The name of the function in the place of a Python function, and whether it returns failures; None for Spark's own functions."""
    from pyspark import cloudpickle
    from pyspark.serializers import CPickleSerializer
    from pyspark.sql import functions
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    if own is not None:
        kind, repeats, returns = _KINDS[own.kind], True, DataType.fromDDL(own.returns)
        called = _checked(own.function, own.returns) if kind == _BY_ARROW else own.function
        command = cloudpickle.dumps((own.function, own.returns))  # type: ignore[no-untyped-call]
    else:
        function = find(name)
        if function is None:
            return None
        kind, repeats, command = (
            function.evalType(),
            function.udfDeterministic(),
            bytes(function.func().command().unsafeArray()),
        )
        if kind not in (_BY_PICKLE, *_KINDS.values()):
            raise PlanError(
                f"{name} is neither a Python function of a row nor a pandas or Arrow function of columns",
                hint="register it with spark.udf.register(NAME, FUNCTION, TYPE)",
            )
        called, returns = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    stands_in = f"{STANDS_IN}{name}_{hashlib.sha256(command).hexdigest()[:12]}"
    if find(stands_in) is None:
        made: Any
        if kind == _PANDAS:
            made = functions.pandas_udf(_of_columns(called), returns)  # type: ignore[attr-defined]
        elif kind == _ARROW:
            made = functions.arrow_udf(_of_arrays(called), returns)  # type: ignore[attr-defined]
        else:
            told = StructType([StructField("value", returns), StructField("why", StringType())])
            made = functions.udf(_of_a_row(name, called), told, useArrow=kind == _BY_ARROW)
        spark.udf.register(stands_in, made if repeats else made.asNondeterministic())
    return stands_in, kind not in (_PANDAS, _ARROW)


def _checked(called: Callable[..., Any], returns: str) -> Callable[..., Any]:
    """A function that gives values of its declared type or raises: Spark would make null of others."""

    def checked(*arguments):  # type: ignore[no-untyped-def]
        return given_as(called(*arguments), returns)

    return checked


def _of_a_row(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(counts, *arguments):  # type: ignore[no-untyped-def]  # pyspark would take it for another kind by its types
        try:
            return (called(*arguments), None) if counts else (None, None)
        except Exception as error:
            return None, f"{name}: {type(error).__name__}: {error}"

    return stand_in


def _of_columns(called: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(counts, *columns):  # type: ignore[no-untyped-def]
        chosen = counts.fillna(False).astype(bool)
        if not chosen.any():
            return counts.astype(object).where(False, None)
        found = called(*(column[chosen].reset_index(drop=True) for column in columns)).astype(object)
        found.index = chosen.index[chosen]
        return found.reindex(chosen.index)

    return stand_in


def _of_arrays(called: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(counts, *columns):  # type: ignore[no-untyped-def]
        import pyarrow as pa
        import pyarrow.compute as pc

        chosen = pc.fill_null(counts, False)
        height = pc.sum(chosen).as_py() or 0
        if not height:
            return pa.nulls(len(counts))
        found = called(*(column.filter(chosen) for column in columns))
        if len(found) != height:
            raise ValueError(f"expected {height} values of the function; found {len(found)}")
        places = pc.subtract(pc.cumulative_sum(pc.cast(chosen, pa.int64())), 1)
        return found.take(pc.if_else(chosen, places, pa.scalar(None, pa.int64())))

    return stand_in
