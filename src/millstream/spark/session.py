"""The Spark session: the one that is there, or one of our own with the settings that streaming needs.

A session that someone else made is used as it is: its settings are not changed, and it is never stopped. A session of our own is
local unless a master is named, listens on loopback only, works in UTC, keeps state in RocksDB, and prints nothing
on the terminal but errors, one line each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from millstream.errors import MachineError, MillstreamError, SparkError
from millstream.secret import resolve
from millstream.spark import java
from millstream.spark.distribute_code import ship
from millstream.spark.internals.classes import lacks_class
from millstream.spark.internals.driver_process import (
    active_context,
    end_jvm,
    forget,
    has_jvm,
    hush,
    jvm_process,
    own_signals,
    start_jvm,
)
from millstream.spark.internals.preload import Preload
from millstream.spark.internals.spark_home import cluster_home
from millstream.spark.jars import spark_avro_jars, spark_kafka_jars
from millstream.spark.settings import hidden_in, is_local, is_one_process, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA = ("Kafka connector", "kafka", "org.apache.spark.sql.kafka010.KafkaSourceProvider")
_AVRO = ("Avro", "avro", "org.apache.spark.sql.avro.AvroDataToCatalyst")
"""What Spark's wheel lacks: its name, what it is called here, and a class of it."""

_ALWAYS = ("JAVA_HOME", "MILLSTREAM_CLASS_ARCHIVE")
"""Variables that are ours on a cluster too."""

_own: SparkSession | None = None
_own_jvm = False
_preload: Preload | None = None


def spark_session(
    app_name: str = "millstream",
    *,
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
    kafka: bool = False,
    avro: bool = False,
) -> SparkSession:
    """Return the session that is active, as it is, or start one.

    ``settings`` come after ours and win. ``kafka`` adds Spark's Kafka connector and ``avro`` its Avro, which Spark can take
    only when it starts: if a session is active without what is asked for, that is an error.

    :param app_name: what Spark calls it
    :param settings: settings of Spark
    :param master: ``"local[*]"`` unless said, here or in the settings
    :param kafka: whether Spark's Kafka connector is needed
    :param avro: whether Spark's Avro is needed
    :raises SparkError: if Spark does not start, or the active session lacks something
    """
    global _own, _own_jvm
    from pyspark.sql import SparkSession

    hidden = hidden_in(settings or {})
    if active_context() is not None or SparkSession.getActiveSession() is not None:
        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        require(session, kafka=kafka, avro=avro)
        return session

    added = [*(spark_kafka_jars() if kafka else ()), *(spark_avro_jars() if avro else ())]
    master = master or (settings or {}).get("spark.master") or "local[*]"
    chosen = settings_for(master, {name: resolve(value) for name, value in (settings or {}).items()}, added)
    found = java.find_java()
    _own_jvm = _own_jvm or not has_jvm()
    try:
        _own = _started(app_name, master, chosen, hidden, found)
    except Exception as error:
        stop_session()
        raise SparkError(f"Spark did not start: {_cause(error)}", hint="run: millstream doctor") from error
    java.archive_later(found)
    require(_own, kafka=kafka, avro=avro)  # a JVM that is left of an earlier session has only the jars of that one
    if not is_one_process(master):
        try:
            ship(_own)
        except MachineError:
            stop_session()
            raise
    return _own


def _started(app_name: str, master: str, chosen: Mapping[str, str], hidden: set[str], found: java.Java) -> SparkSession:
    """A new session: its JVM started with the settings that need not be hidden, the session made in it with all."""
    global _preload
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    plain = SparkConf(loadDefaults=False).setAppName(app_name).setMaster(master)
    plain.setAll([(name, value) for name, value in chosen.items() if name not in hidden])
    with _variables(java.environment(found), master):
        if is_one_process(master) and (_preload := _preload or Preload.start(java.cache_folder())):
            os.environ["PYSPARK_PYTHON"] = str(_preload.python)
        with _held():
            start_jvm(plain, hidden)
            with own_signals():
                made = builder.getOrCreate()
            hush(made)
    return made


def stop_session(*, kill: bool = False) -> bool:
    """Stop the session that :func:`spark_session` started, and its JVM; return False if there is none.

    The JVM goes too because the next session may want other jars or another heap, which a running JVM cannot take. With ``kill``
    nothing is waited for.
    """
    global _own
    own, _own = _own, None
    if own is not None and (kill or jvm_end() is not None):
        forget(own)
    elif own is not None:
        own.stop()
    if active_context() is None:
        end_own_jvm()
    return own is not None


def jvm_end() -> str | None:
    """How the JVM that we started has ended, if it has."""
    process = jvm_process() if _own_jvm else None
    if process is None:
        return None
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)  # its sockets close a moment before it is gone
        return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    return None


@contextmanager
def jvm_told() -> Iterator[None]:
    """Turn what fails in the block into one error, if the cause is that Spark's JVM has ended."""
    try:
        yield
    except Exception as error:
        ended = jvm_end() if isinstance(error, SparkError) or not isinstance(error, MillstreamError) else None
        if ended is None:
            raise
        raise SparkError(
            f"Spark's JVM ended {ended}; the batch at hand was not finished",
            hint="run it again: what was done before stays. If memory was short (see the system's log), give it less at once:"
            " --rate-limit N, or --conf spark.driver.memory=SIZE",
        ) from error


@contextmanager
def _held() -> Iterator[None]:
    """Hold back a SIGINT or SIGTERM until Spark is up: PySpark would lose a JVM that is half started, and that JVM would outlive us.

    A second signal goes through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    known = {number: handler for number, handler in before.items() if handler is not None}

    def pass_on() -> None:
        for number, handler in known.items():
            signal.signal(number, handler)
        while came:
            signal.raise_signal(came.pop(0))

    def hold(number: int, _: object) -> None:
        came.append(number)
        if len(came) > 1:
            pass_on()

    for number in known:
        signal.signal(number, hold)
    try:
        yield
    finally:
        pass_on()


def end_own_jvm() -> int | None:
    """End the JVM that we started, if any, and return its exit code."""
    global _own_jvm, _preload
    code = end_jvm() if _own_jvm else None
    if code is not None:
        _own_jvm = False
        if _preload is not None:
            _preload.close()
            _preload = None
    return code


@contextmanager
def _variables(wanted: Mapping[str, str], master: str) -> Iterator[None]:
    """Set environment variables for the start of the JVM only: other programs of the user must not see them.

    On a cluster Python has another path, so a ``PYSPARK_PYTHON`` that is set stays. Spark's Python is shipped to a cluster, so
    ``SPARK_HOME`` is not ours there, which has none.
    """
    before = dict(os.environ)
    if not is_one_process(master):
        wanted = {name: value for name, value in wanted.items() if name in _ALWAYS or name not in before}
        wanted.pop("SPARK_HOME", None)
        if is_local(master):
            wanted |= {"SPARK_HOME": str(cluster_home())}
    if is_local(master):
        wanted = {**wanted, "SPARK_LOCAL_IP": before.get("SPARK_LOCAL_IP", "127.0.0.1")}
    changed = dict(wanted)
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def require(session: SparkSession, *, kafka: bool, avro: bool) -> None:
    """Refuse a session that lacks what it should have."""
    for wanted, (name, option, its_class) in ((kafka, _KAFKA), (avro, _AVRO)):
        if wanted and lacks_class(session, its_class):
            raise SparkError(
                f"the active Spark session has no {name}, and a running one cannot take it",
                hint=f"call spark_session({option}=True) before any other session is made, or stop that one first;"
                f" in a session of your own, put the jars of millstream.spark.jars.spark_{option}_jars() into spark.jars",
            )


def _cause(error: Exception) -> str:
    """Return the line of a failure that says why; the rest is stack."""
    lines = [line.strip() for line in str(error).splitlines()]
    # py4j: "An error occurred while calling ...", then ": the.Exception: why"
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else type(error).__name__)
