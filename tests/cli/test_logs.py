"""The log of a run: which lines there are, at which level, and how commands write them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from millstream import Pipeline, Progress
from millstream.cli.logs import is_logging, logging_options
from millstream.errors import PipelineError
from millstream.runtime.progress_report import logged, logs, run_logged


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_batches_and_waits_are_told_once_and_the_report_still_gets_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millstream")
    seen: list[Progress] = []
    report = logged(seen.append)
    first, away = Progress("shop", 0, records=3, seconds=0.5), "log: it is away"
    given = [
        first,
        Progress("shop", 0, records=3, waiting=away),
        Progress("shop", 0, records=3, waiting=away),
        first,
        Progress("shop", 1, records=5, seconds=1.0, lag=2),
    ]
    for each in given:
        report(each)
    assert seen == given
    assert told(caplog) == [
        ("INFO", "shop: batch 0 in 0.5 s, records in this run 3, lag 0"),
        ("WARNING", "shop: waits for log: it is away"),
        ("INFO", "shop: goes on"),
        ("INFO", "shop: batch 1 in 1.0 s, records in this run 5, lag 2"),
    ]
    assert caplog.records[-1].facts["lag"] == 2  # type: ignore[attr-defined]


def test_a_fault_is_told_with_its_kind_and_raised_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millstream")

    @logs("a batch")
    def compute(_: Pipeline) -> None:
        raise PipelineError("no such thing")

    with pytest.raises(PipelineError):
        compute(Pipeline("shop"))
    assert told(caplog) == [
        ("INFO", "shop: a batch begins"),
        ("ERROR", "shop: a batch failed: PipelineError: no such thing"),
    ]


def test_the_library_adds_no_handler() -> None:
    assert logging.getLogger("millstream").handlers == logging.getLogger("millstream.run").handlers == []


def ran(*options: str) -> tuple[str, list[bool]]:
    """What a command with the options writes to stderr, and whether the log stood in the place of progress."""
    chosen = []

    @click.command()
    @logging_options
    def command() -> None:
        chosen.append(is_logging())
        with run_logged("shop", "a run"):
            logged(lambda _: None)(Progress("shop", 7, waiting="log: away\x1b[2J"))
        logging.getLogger("millstream").debug("small")

    result = CliRunner().invoke(command, options)
    assert result.exit_code == 0
    assert result.stdout == ""
    return result.stderr, chosen


def test_a_command_writes_the_lines_of_a_level_and_above() -> None:
    text, chosen = ran("--log-level", "info")
    assert chosen == [True]
    assert [line.split(" ", 1)[1] for line in text.splitlines()] == [
        "info shop: a run begins",
        "warning shop: waits for log: away\\x1b[2J",
        "info shop: a run has ended",
    ]
    assert len(ran("--log-level", "warning")[0].splitlines()) == 1
    assert len(ran("--log-level", "debug")[0].splitlines()) == 4


def test_a_line_of_json_has_the_facts_as_fields() -> None:
    text, _ = ran("--log-level", "warning", "--log-format", "json")
    line: dict[str, Any] = json.loads(text)
    assert (line["level"], line["logger"], line["pipeline"], line["batch"]) == ("warning", "millstream.run", "shop", 7)


def test_without_a_level_progress_is_shown_and_not_logged() -> None:
    assert ran() == ("", [False])
    assert not is_logging()
    assert logging.getLogger("millstream").propagate


def test_a_wrong_level_is_refused() -> None:
    command: Callable[..., Any] = click.command()(logging_options(lambda: None))
    assert CliRunner().invoke(command, ["--log-level", "loud"]).exit_code == 2  # type: ignore[arg-type]
