"""Private parts of PySpark in the driver: its context, its gateway to the JVM, its signal handler and its loggers."""

from __future__ import annotations

import inspect
import logging
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from millstream.errors import SparkError
from millstream.spark.internals.registry import Internal, expect

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession


def active_context() -> SparkContext | None:
    """The context that is active in this process, if there is one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if ACTIVE_CONTEXT.works():
        return SparkContext._active_spark_context
    session = SparkSession.getActiveSession()
    return None if session is None else session.sparkContext


def jvm_process() -> subprocess.Popen[bytes] | None:
    """The process of the JVM that PySpark speaks to, if PySpark started it."""
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None) if JVM_PROCESS.works() else None


def has_jvm() -> bool:
    """Whether PySpark speaks to a JVM already, which the next session will be made in."""
    from pyspark import SparkContext

    return JVM_PROCESS.works() and SparkContext._gateway is not None


def start_jvm(conf: SparkConf, hidden: set[str]) -> None:
    """Start the JVM with these settings on its command line: what comes later goes to it by a socket.

    Without, PySpark would put all settings there; so there must be none that is to be ``hidden``.
    """
    from pyspark import SparkContext

    if COMMAND_LINE.works():
        SparkContext._ensure_initialized(conf=conf)
    elif hidden:
        raise SparkError(
            f"{min(hidden)} refers to a secret, which would stand on the command line of Spark's JVM",
            hint="this needs command_line of Spark's inside; `millstream doctor` says why it is not used",
        )


def end_jvm() -> int | None:
    """End the JVM, let PySpark forget it, and give its exit code; None if that cannot be done: it ends with this process then."""
    from pyspark import SparkContext

    process, gateway = jvm_process(), SparkContext._gateway
    if process is None or process.stdin is None or gateway is None:
        return None
    with suppress(Exception):  # it may be dead already
        gateway.shutdown()
    process.stdin.close()  # the JVM ends when its input does
    code = process.wait()
    SparkContext._gateway = SparkContext._jvm = None
    return code


def forget(session: SparkSession) -> None:
    """Let PySpark forget a session whose JVM is gone, or shall be: to stop it, it would ask the JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = jvm_process()
    if process is None:
        session.stop()
        return
    if (server := getattr(SparkContext._active_spark_context, "_accumulatorServer", None)) is not None:
        server.shutdown()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = None
    process.kill()


@contextmanager
def own_signals() -> Iterator[None]:
    """Leave SIGINT to whom it belongs: PySpark takes it for itself, cancels all jobs and raises amid whatever it is about.

    To give it back afterwards would be too late: a session is not ready for half a second after PySpark has taken it.
    """
    if not SIGNALS.works():
        yield
        return
    from pyspark.core import context

    context.signal = SimpleNamespace(**{**vars(signal), "signal": lambda *_: None})  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        context.signal = signal  # type: ignore[attr-defined]


def hush(session: SparkSession) -> None:
    """Keep stacks off the terminal, PySpark's, and Py4J's when the JVM is gone: what failed is raised as well."""
    if not QUIET_DRIVER.works():
        return
    for name in _LOGGERS:
        logging.getLogger(name).disabled = True
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_not_py4j)
    if (server := getattr(session.sparkContext, "_accumulatorServer", None)) is not None:
        server.handle_error = lambda *_: None


_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Of PySpark: a line of JSON, stack included, for what is raised as well."""


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _test_active_context() -> None:
    from pyspark import SparkContext

    expect(hasattr(SparkContext, "_active_spark_context"), "SparkContext has no _active_spark_context")


def _test_jvm_process() -> None:
    from pyspark import SparkContext, java_gateway
    from pyspark.sql import SparkSession

    for owner, names in (
        (SparkContext, ("_gateway", "_jvm", "_active_spark_context")),
        (SparkSession, ("_instantiatedSession", "_activeSession")),
    ):
        for name in names:
            expect(hasattr(owner, name), f"{owner.__name__} has no {name}")
    expect("proc" in java_gateway.launch_gateway.__code__.co_names, "its gateway does not keep the JVM's process")


def _test_command_line() -> None:
    from pyspark import SparkContext

    start = getattr(SparkContext, "_ensure_initialized", None)
    expect(start, "SparkContext has no _ensure_initialized")
    expect("conf" in inspect.signature(start).parameters, "its start of a JVM takes no settings")  # type: ignore[arg-type]


def _test_signals() -> None:
    from pyspark.core import context

    expect(getattr(context, "signal", None) is signal, "pyspark.core.context has no module signal")


def _test_quiet_driver() -> None:
    from pyspark.accumulators import AccumulatorTCPServer

    expect(
        callable(getattr(AccumulatorTCPServer, "handle_error", None)), "its server of accumulators has no handle_error"
    )


ACTIVE_CONTEXT = Internal("active_context", "a session is seen only from the thread that made it", _test_active_context)
JVM_PROCESS = Internal(
    "jvm_process", "the JVM lives until this process ends, and nobody can say how it ended", _test_jvm_process
)
COMMAND_LINE = Internal(
    "command_line", "all settings are on the JVM's command line, and those with a secret refused", _test_command_line
)
SIGNALS = Internal("signals", "a Ctrl-C while Spark starts is PySpark's", _test_signals)
QUIET_DRIVER = Internal("quiet_driver", "PySpark and Py4J print stacks of what is raised as well", _test_quiet_driver)
