"""What PySpark keeps of its JVM in this process, and does to it: read, undone and silenced."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def forget() -> None:
    """Let PySpark forget a session whose JVM is gone, or shall be: to stop it, it would ask the JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if (server := getattr(SparkContext._active_spark_context, "_accumulatorServer", None)) is not None:
        server.shutdown()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = None
    if (process := getattr(SparkContext._gateway, "proc", None)) is not None:
        process.kill()


@contextmanager
def own_signals() -> Iterator[None]:
    """Leave SIGINT to whom it belongs: PySpark takes it for itself, cancels all jobs and raises amid whatever it is about.

    To give it back afterwards would be too late: a session is not ready for half a second after PySpark has taken it.
    """
    from pyspark.core import context

    context.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        context.signal = signal  # type: ignore[attr-defined]


def hush(session: SparkSession) -> None:
    """Keep stacks off the terminal, PySpark's, and Py4J's when the JVM is gone: what failed is raised as well."""
    for name in (
        "DataFrameQueryContextLogger",
        "SQLQueryContextLogger",
    ):  # a line of JSON, stack included, for what is raised as well
        logging.getLogger(name).disabled = True
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_py4j)
    if (server := getattr(session.sparkContext, "_accumulatorServer", None)) is not None:
        server.handle_error = lambda *_: None


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts
