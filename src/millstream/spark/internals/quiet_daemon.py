"""Spark's daemon of Python workers, without the stacks of workers whose query was stopped.

Such a worker finds its socket closed. Spark's daemon prints the stack of that error between the output of the user's program.
"""

from __future__ import annotations

import importlib.util
import inspect
import socket

from pyspark import daemon as spark_daemon

from millstream.spark.internals.registry import Internal, expect

DAEMON_SETTING = "spark.python.daemon.module"
_LOADED = (
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.streaming.proto.StateMessage_pb2",
)
"""What :mod:`millstream.spark.internals.daemon` loads of PySpark."""

_worker = spark_daemon.worker


def _end_quietly(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return 1


def manager() -> None:
    """Run the daemon: it forks a worker for each request, until its input ends."""
    if QUIET_DAEMON.works(tell=False):  # whoever started Spark has told of it
        spark_daemon.worker = _end_quietly
    spark_daemon.manager()


def _test_quiet() -> None:
    expect(
        list(inspect.signature(_worker).parameters) == ["sock", "authenticated"],
        "pyspark.daemon.worker takes other arguments",
    )
    expect("worker" in spark_daemon.manager.__code__.co_names, "pyspark.daemon.manager does not call worker")


def _test_daemon() -> None:
    expect(not inspect.signature(spark_daemon.manager).parameters, "pyspark.daemon.manager takes arguments")
    for name in _LOADED:
        expect(importlib.util.find_spec(name), f"there is no module {name}")


QUIET_DAEMON = Internal("quiet_daemon", "a worker whose query was stopped prints its stack", _test_quiet)
DAEMON = Internal("daemon", "each Python worker loads everything for itself", _test_daemon)
