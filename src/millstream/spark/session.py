"""The Spark session: the one that is there, or one of our own with the settings that streaming needs.

A session that someone else made is used as it is: never given other settings, never stopped. One that we make is
local unless a master is named, listens on loopback only, works in UTC, keeps state in RocksDB, and says nothing
on the terminal but errors, one line each.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError, MachineError, MillstreamError, SparkError
from millstream.secret import NAMES, REFERENCE, check_settings, resolve
from millstream.spark import java, private_folder
from millstream.spark.distribute_code import python_path, ship
from millstream.spark.internals.preload import Preload
from millstream.spark.jars import spark_avro_jars, spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.maxResultSize": "0",  # what a batch changes goes to the driver, however much; --rate-limit bounds it
    "spark.python.daemon.module": "millstream.spark.internals.daemon",
    "spark.python.authenticate.socketTimeout": "60s",  # a worker that starts on a busy machine may need more than 15 s
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.redaction.regex": f"(?i){NAMES}",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Workers of different environments have daemons of their own, and only some kinds of workers have this in theirs.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Hadoop's local file system has checksums of its own, and every file of a checkpoint costs the start of a chmod.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The one that Spark takes by itself starts eight processes more for each file, to ask whether it is a link.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Every write would first read what is there. What is kept, our kernels count themselves.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What differs from Spark's own defaults, whatever the master."""

# One line for each error: what follows in the message and in the stack is for whoever asks for it (spark.log.level).
_LOG4J = r"""
status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# Spark prints a notice when this logger, its shell's, differs from the root.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %replace{%m}{[\\r\\n][\\s\\S]*}{}%n%ex{0}
"""

_QUICK = "-XX:TieredStopAtLevel=1"
"""The JVM's second compiler takes one of two cores for minutes. Nearly all the work of a pipeline is in Python's processes and in
native code, so it never earns that back: batches were 20 % slower with it. Not on a cluster, whose executors are not ours."""

_KAFKA = ("Kafka connector", "kafka", "org.apache.spark.sql.kafka010.KafkaSourceProvider")
_AVRO = ("Avro", "avro", "org.apache.spark.sql.avro.AvroDataToCatalyst")
"""What Spark's wheel lacks: its name, what it is called here, and a class of it."""

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
    global _own, _own_jvm, _preload
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    hidden = _hidden(settings or {})
    if SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None:
        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        require(session, kafka=kafka, avro=avro)
        return session

    added = [*(spark_kafka_jars() if kafka else ()), *(spark_avro_jars() if avro else ())]
    master = master or (settings or {}).get("spark.master") or "local[*]"
    chosen = _settings(master, {name: resolve(value) for name, value in (settings or {}).items()}, added)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    plain = SparkConf(loadDefaults=False).setAppName(app_name).setMaster(master)
    plain.setAll([(name, value) for name, value in chosen.items() if name not in hidden])
    found = java.find_java()
    _own_jvm = _own_jvm or SparkContext._gateway is None
    try:
        with _variables(java.environment(found), master):
            if is_one_process(master) and (_preload := _preload or Preload.start(java.cache_folder())):
                os.environ["PYSPARK_PYTHON"] = str(_preload.python)
            with _held():
                SparkContext._ensure_initialized(conf=plain)  # these stand on a command line, the rest goes by a socket
                with _interrupts():
                    _own = builder.getOrCreate()
                _hush(_own)
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


def stop_session(*, kill: bool = False) -> bool:
    """Stop the session that :func:`spark_session` started, and its JVM; return False if there is none.

    The JVM goes too because the next session may want other jars or another heap, which a running JVM cannot take. With ``kill``
    nothing is waited for.
    """
    global _own
    from pyspark import SparkContext

    own, _own = _own, None
    if own is not None and (kill or jvm_end() is not None):
        _forget()
    elif own is not None:
        own.stop()
    if SparkContext._active_spark_context is None:
        _end_jvm()
    return own is not None


def jvm_end() -> str | None:
    """How the JVM that we started has ended, if it has."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if not _own_jvm or process is None:
        return None
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)  # its sockets close a moment before it is gone
        return f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    return None


@contextmanager
def jvm_told() -> Iterator[None]:
    """If Spark's JVM ends within the block, whatever fails then is one error that says so."""
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


def _forget() -> None:
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
def _held() -> Iterator[None]:
    """Hold back a SIGINT or SIGTERM until Spark is up: PySpark would lose a JVM that is half started, and it would stay when we are gone.

    A second one goes through.
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


@contextmanager
def _interrupts() -> Iterator[None]:
    """Leave SIGINT to whom it belongs: PySpark takes it for itself, cancels all jobs and raises amid whatever it is about.

    To give it back afterwards would be too late: a session is not ready for half a second after PySpark has taken it.
    """
    from pyspark.core import context

    context.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)  # type: ignore[attr-defined, assignment]
    try:
        yield
    finally:
        context.signal = signal  # type: ignore[attr-defined]


def _hush(session: SparkSession) -> None:
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


def _end_jvm() -> int | None:
    """End the JVM that we started, if any, and return its exit code."""
    global _own_jvm, _preload
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if not _own_jvm or gateway is None:
        return None
    process = gateway.proc
    with suppress(Exception):  # it may be dead already
        gateway.shutdown()
    process.stdin.close()  # the JVM ends when its input does
    code: int = process.wait()
    SparkContext._gateway = SparkContext._jvm = None
    _own_jvm = False
    if _preload is not None:
        _preload.close()
        _preload = None
    return code


def train() -> None:
    """Make the class-data archive for later starts: run what pipelines run, once, and let the JVM write it down."""
    os.setsid()  # a Ctrl-C in the terminal that started us is not meant for us
    os.nice(19)
    with java.new_archive(java.find_java()) as wanted:
        if not wanted:
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                session = spark_session()
                _exercise(session, Path(folder))
                session.stop()
        finally:
            code = _end_jvm()
        if code != 0:
            raise SparkError(f"the JVM ended with {code}, so what it wrote may not be complete")


def _settings(master: str, chosen: Mapping[str, str], added: list[Path]) -> dict[str, str]:
    settings = dict(SETTINGS)
    if is_local(master):
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.local.dir"] = str(private_folder.folder("spark"))
        settings["spark.python.unix.domain.socket.dir"] = str(private_folder.folder("py"))
    if is_one_process(master):
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        settings["spark.driver.memory"] = f"{_heap()}m"
    else:
        settings["spark.executorEnv.POLARS_MAX_THREADS"] = "1"
    settings.update(chosen)
    if not is_one_process(master):  # the daemon of the workers' Python is ours, and looks for us before any task does
        name = "spark.executorEnv.PYTHONPATH"
        settings[name] = python_path(settings.get(name, ""))
    if added:
        jars = [*filter(None, settings.get("spark.jars", "").split(",")), *map(str, added)]
        settings["spark.jars"] = ",".join(jars)
    options = [
        f"-Dlog4j2.configurationFile={_log_settings().as_uri()}",
        f'"-Djava.io.tmpdir={private_folder.folder("java")}"',
    ]
    if is_one_process(master):
        options.append(_QUICK)
    options.append(settings.get("spark.driver.extraJavaOptions", ""))  # the last word on an option counts
    settings["spark.driver.extraJavaOptions"] = " ".join(options).strip()
    return settings


def _hidden(settings: Mapping[str, str]) -> set[str]:
    """The settings that must not stand on a command line, which everybody on the machine can read; refuses those that would."""
    check_settings(settings)
    hidden = {name for name, value in settings.items() if REFERENCE.search(value)}
    if options := next((name for name in hidden if name.endswith("JavaOptions")), None):
        raise ConfigError(
            f"{options}: found a reference to a secret, which would stand on the command line of a JVM",
            hint="use the setting of Spark or Hadoop that takes it, such as spark.hadoop.NAME",
        )
    return hidden


def _heap() -> int:
    """How much the JVM may take (MiB): what a batch gives to its store passes through it, and Spark's 1 GiB is soon full."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return max(1024, min(4096, machine // 4))


def is_local(master: str | None) -> bool:
    """Whether this master runs everything on this machine."""
    return master is None or master.startswith("local")


def is_one_process(master: str | None) -> bool:
    """Whether this master has no executors but the driver: a ``local-cluster[…]`` has, though on this machine."""
    return is_local(master) and not (master or "").startswith("local-cluster")


def _log_settings() -> Path:
    path = java.cache_folder() / "log4j2.properties"
    if not path.exists() or path.read_text() != _LOG4J:
        java.write_whole(path, _LOG4J)
    return path


@contextmanager
def _variables(wanted: Mapping[str, str], master: str) -> Iterator[None]:
    """Set environment variables for the start of the JVM only: they are not the business of the user's other programs.

    On a cluster the path of Python is another one, so there a ``PYSPARK_PYTHON`` that is set stays; and Spark's Python, which
    our ``SPARK_HOME`` is without, is shipped to it.
    """
    before = dict(os.environ)
    if not is_one_process(master):
        wanted = {name: value for name, value in wanted.items() if name == "JAVA_HOME" or name not in before}
        wanted.pop("SPARK_HOME", None)
        if is_local(master):
            wanted |= {"SPARK_HOME": str(java.cluster_home())}
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
    jvm = getattr(session, "_jvm", None)  # a Spark Connect client cannot look, and its server is not ours
    for wanted, (name, option, its_class) in ((kafka, _KAFKA), (avro, _AVRO)):
        if wanted and jvm is not None and not jvm.org.apache.spark.util.Utils.classIsLoadable(its_class):
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


def _exercise(session: SparkSession, folder: Path) -> None:
    """Run a small query through every part of Spark that a pipeline uses."""
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802
            return {"at": 1}

        def partitions(self, *_: object) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, *_: object) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"id": [1, 2, 3], "text": ["a", "b", "c"]})

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "millstream_training"

        def schema(self) -> str:
            return "id long, text string"

        def streamReader(self, schema: object) -> Reader:  # noqa: N802, ARG002
            return Reader()

    class Last(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.last = handle.getMapState("last", "id long", "bytes binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
            for frame in rows:
                self.last.updateValue((key[0],), (b"seen",))
                yield frame

        def close(self) -> None:
            pass

    session.dataSource.register(Numbers)
    session.range(100).selectExpr("id % 7 AS k", "id").groupBy("k").count().collect()
    (
        session.readStream.format("millstream_training")
        .load()
        .selectExpr("id", "from_json('{\"a\": 1}', 'a long').a AS a")
        .mapInArrow(lambda batches: batches, "id long, a long")
        .groupBy("id")
        .transformWithStateInPandas(Last(), "id long, a long", "append", "none")
        .writeStream.foreachBatch(lambda frame, _: frame.write.format("noop").mode("append").save())
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
