"""What Spark refuses of a view's expressions, in our words: the view, the place in the user's file, Spark's sentence.

That is what its analyser does not know, and what fails above the last kernel, where Spark computes over a batch's changes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.errors import ExpressionFailed, PlanError
from millstream.plan.chain import Output
from millstream.relation.nodes import Node, Place, Source, Union, inputs_of
from millstream.view import View

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.sql import SparkSession

_SENTENCE = re.compile(r"(?:\[([A-Z0-9_.]+)\] )?(.+?)(?: SQLSTATE: |\n|$)", re.DOTALL)
_QUOTED = re.compile(r"`([^`]+)`")


@contextmanager
def analysed(spark: SparkSession | None, views: Iterable[View]) -> Iterator[None]:
    """Turn what the analyser says inside into a :class:`~millstream.errors.PlanError` at the place that it is about."""
    if spark is None:
        yield
        return
    from pyspark.errors import AnalysisException
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    told, logger.disabled = logger.disabled, True  # Spark's Python would log all of its stack first
    try:
        yield
    except AnalysisException as error:
        raise _refused(error, spark, list(views)) from None
    finally:
        logger.disabled = told


def failed_above(error: PySparkException, output: Output, view: View | None) -> ExpressionFailed:
    """The error for an expression above the last kernel that Spark fails to compute, at its place if its view is known."""
    texts = [*output.where, *(each.expression for each in output.select if each.expression not in output.columns)]
    place = ""
    if view is not None:
        fragments = [each.fragment() for each in error.getQueryContext() or ()]
        _, found, text = _where(fragments or texts[:1], [view])
        place, texts = f"{found}: ", [text] if fragments else texts
    return ExpressionFailed(
        f"{place}view {output.name}: {'; '.join(texts)}: {str(error).splitlines()[0]}",
        hint="use a form that gives null instead (try_cast, try_divide, …), then run again",
    )


def _refused(error: AnalysisException, spark: SparkSession, views: list[View]) -> PlanError:
    found = _SENTENCE.match(str(error))
    condition, sentence = (found[1] or "", found[2].strip()) if found else ("", str(error))
    fragments = [each.fragment() for each in error.getQueryContext()]
    view, place, text = _where(fragments, views)
    about = f"`{text}`: " if text else ""
    return PlanError(f"{place}: view {view}: {about}{sentence}", hint=_hint(condition, sentence, spark))


def _where(fragments: list[str], views: list[View]) -> tuple[str, Place, str]:
    """The view, the place and the text of the expression that a piece of SQL is from, or that it was made of."""
    said = [(view.name, place, text) for view in views for text, place in _said(view.node)]
    for fragment in fragments:
        having = [each for each in said if fragment in each[2]] or [each for each in said if each[2] in fragment]
        if having:  # the longest, where it was put together of several
            return having[0] if fragment in having[0][2] else max(having, key=lambda each: len(each[2]))
    return ", ".join(view.name for view in views), views[0].place, "".join(fragments[:1])


def _said(node: Node) -> Iterator[tuple[str, Place]]:
    for each in inputs_of(node):
        yield from _said(each)
    if not isinstance(node, Union | Source):
        yield from ((text, node.place) for text in node.expressions())


def _hint(condition: str, sentence: str, spark: SparkSession) -> str:
    """The function that was meant, if one is near."""
    name = _QUOTED.search(sentence)
    if condition != "UNRESOLVED_ROUTINE" or name is None:
        return "Spark SQL's functions: https://spark.apache.org/docs/latest/api/sql/"
    known = [row[0] for row in spark.sql("SHOW FUNCTIONS").collect()]
    close = difflib.get_close_matches(name[1].lower(), known, 1)
    return f"did you mean {close[0]}?" if close else "register a function of your own in the session before the run"
