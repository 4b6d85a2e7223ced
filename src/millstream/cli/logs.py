"""``--log-level`` and ``--log-format``: where the lines of the logger ``millstream`` go while a command runs.

Without ``--log-level`` a command shows its progress as it always does, and warnings that are about no progress. With it the log's lines stand on
stderr in the place of progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import click

from millstream.cli.output import json_line
from millstream.printable import printable

F = TypeVar("F", bound=Callable[..., Any])
_chosen = False


def logging_options(function: F) -> F:
    """Add ``--log-level`` and ``--log-format``, and let them hold while the command runs."""

    @wraps(function)
    def begun(*args: Any, log_level: str | None, log_format: str, **given: Any) -> Any:
        with _logging(log_level, log_format):
            return function(*args, **given)

    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        metavar="LEVEL",
        help="Log to stderr, in the place of progress: debug, info, warning or error.",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        metavar="FORMAT",
        help="How log lines are written: text or json.  [default: text]",
    )
    return level(form(begun))  # type: ignore[return-value]


def is_logging() -> bool:
    """Whether the lines of the log stand in the place of progress."""
    return _chosen


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname.lower()} {printable(record.getMessage())}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        return json_line({**said, "message": record.getMessage(), **getattr(record, "facts", {})})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            click.echo(self.format(record), err=True)
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)


@contextmanager
def _logging(level: str | None, form: str) -> Iterator[None]:
    """Lines of a level and above on stderr; without a level none of the progress, which is shown otherwise."""
    global _chosen
    logger = logging.getLogger("millstream" if level else "millstream.run")
    before = logger.level, logger.propagate, _chosen
    handler: logging.Handler = _Stderr() if level else logging.NullHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger.addHandler(handler)
    logger.propagate, _chosen = False, level is not None
    if level:
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        level_before, logger.propagate, _chosen = before
        logger.setLevel(level_before)
