"""The settings of a Spark session of our own: what differs from Spark's defaults, by the master that it runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from millstream.errors import ConfigError
from millstream.secret import NAMES, REFERENCE, check_settings
from millstream.spark import java, private_folder
from millstream.spark.distribute_code import python_path
from millstream.spark.internals.classes import CHECKPOINT_CLASS, CHECKPOINT_FILES, CHECKPOINT_SETTING
from millstream.spark.internals.quiet_daemon import DAEMON, DAEMON_SETTING, QUIET_DAEMON
from millstream.spark.internals.registry import SWITCH

SETTINGS = {
    "spark.driver.maxResultSize": "0",  # what a batch changes goes to the driver, however much; --rate-limit bounds it
    DAEMON_SETTING: "millstream.spark.internals.daemon",
    "spark.python.authenticate.socketTimeout": "60s",  # a worker that starts on a busy machine may need more than 15 s
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.redaction.regex": f"(?i){NAMES}",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Workers of different environments have daemons of their own, and only some kinds of workers have this in theirs.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # What a text in quotes is, here and where expressions are computed without Spark.
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.session.timeZone": "UTC",
    # Hadoop's local file system has checksums of its own, and every file of a checkpoint costs the start of a chmod.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # The one that Spark takes by itself starts eight processes more for each file, to ask whether it is a link.
    CHECKPOINT_SETTING: CHECKPOINT_CLASS,
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Every write would first read what is there. What is kept, our kernels count themselves.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What differs from Spark's own defaults, whatever the master; :func:`usable` leaves out what this Spark cannot take."""


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


def usable() -> dict[str, str]:
    """Those of :data:`SETTINGS` that go with this Spark."""
    QUIET_DAEMON.works()  # the daemon itself says nothing
    left_out = {
        name
        for name, internal in ((DAEMON_SETTING, DAEMON), (CHECKPOINT_SETTING, CHECKPOINT_FILES))
        if not internal.works()
    }
    return {name: value for name, value in SETTINGS.items() if name not in left_out}


def settings_for(master: str, chosen: Mapping[str, str], added: list[Path]) -> dict[str, str]:
    """Our settings for this master, overridden by those that were chosen; ``added`` are jars."""
    settings = usable()
    if is_local(master):
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.local.dir"] = str(private_folder.folder("spark"))
        settings["spark.python.unix.domain.socket.dir"] = str(private_folder.folder("py"))
    if is_one_process(master):
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
        settings["spark.driver.memory"] = f"{_heap()}m"
    else:
        settings["spark.executorEnv.POLARS_MAX_THREADS"] = "1"
        if without := os.environ.get(SWITCH):
            settings[f"spark.executorEnv.{SWITCH}"] = without
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


def hidden_in(settings: Mapping[str, str]) -> set[str]:
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
