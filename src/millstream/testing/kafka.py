"""A real Kafka broker that lives as long as the test.

:class:`KafkaBroker` is one Java process, broker and controller at once, on loopback and in a temporary folder. It
ends when its owner ends, however that happens, and ``kill`` and ``restart`` let a test see what a crash does: the
data and the port stay.

Retention, compaction, new groups and expired transactions, which take minutes with Kafka's defaults, take about a second.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.errors import MachineError
from millstream.spark.jars import kafka_broker_classpath
from millstream.spark.java import find_java

_SERVER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    # one broker cannot keep three copies
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # 50 partitions each by default: files to make at the first use, and to load at every restart
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    # seconds instead of minutes
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "2000",  # a killed broker is let in again only after this
    "group.initial.rebalance.delay.ms": "0",
    "group.coordinator.append.linger.ms": "0",
    "share.coordinator.append.linger.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.retention.ms": "-1",  # or events with a time long ago are gone before the test reads them
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.dedupe.buffer.size": "4194304",
    # a member hears of its partitions at a heartbeat
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "200",
    # the least that a group may ask for
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
}

_LOG4J = """
status = off
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %p %m%n
"""

# The last line that a broker logs when it starts.
_STARTED = "Kafka Server started"


class KafkaBroker:
    """A Kafka broker for tests, as a context manager; needs the network the first time, for its jars.

    ``settings`` are further broker settings, which win over ours.
    """

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, patience: timedelta = timedelta(seconds=60)
    ) -> None:
        self._patience = patience.total_seconds()
        self._folder = Path(tempfile.mkdtemp(prefix="millstream-kafka-"))
        self._port, controller = _free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._starts = 0
        java = [str(find_java().executable), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += [f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"]
        self._java = [*java, "-cp", ":".join(map(str, kafka_broker_classpath()))]
        here = {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self._folder / "data"),
        }
        lines = [f"{name}={value}\n" for name, value in {**_SERVER, **here, **(settings or {})}.items()]
        self._settings.write_text("".join(lines))
        (self._folder / "log4j2.properties").write_text(_LOG4J)

    @property
    def bootstrap(self) -> str:
        """The address that Kafka clients want."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """The address that Millstream wants."""
        return f"kafka://{self.bootstrap}"

    @property
    def pid(self) -> int | None:
        """The process of the broker, while it runs."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        if self._process is not None:
            return
        if self._starts == 0:
            self._format()
        self._starts += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for the test, which then stops the broker itself
            )
        # Holds a pipe to us. If we end in any way, even by SIGKILL, the pipe closes and it kills the broker; a line
        # on the pipe lets it go. Not the kernel's "signal at the parent's death": that is the death of the
        # parent's *thread*, and Linux only.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'read -r _ || { kill -9 "$0"; sleep 1; rm -rf "$1"; }', str(self._process.pid), self._folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._wait()

    def stop(self) -> None:
        """Stop the broker in good order; the data stays for :meth:`start`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, as a crash would; the data stays for :meth:`start`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop, and start with the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the broker and delete its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    @property
    def _log(self) -> Path:
        return self._folder / f"broker-{self._starts}.log"

    def _format(self) -> None:
        cluster = (
            "M" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        )  # a leading "-" would be an option
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(self._settings)]
        done = subprocess.run([*self._java, *tool], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MachineError(f"Kafka's storage could not be prepared: {_tail(done.stdout + done.stderr)}")

    def _wait(self) -> None:
        deadline = time.monotonic() + self._patience
        while (text := self._log.read_text(errors="replace")).find(_STARTED) < 0:
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                what = "ended" if ended else f"was not ready after {self._patience:.0f} s"
                raise MachineError(f"the Kafka broker {what}; its log ends with\n{_tail(text)}")
            time.sleep(0.05)

    def _end(self, how: signal.Signals) -> None:
        process, watchdog = self._process, self._watchdog
        self._process = self._watchdog = None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(self._patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if watchdog is not None:
            # after the wait: should we die before it, the watchdog must still be there
            with suppress(BrokenPipeError):
                watchdog.communicate(b"\n")


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now; all are held until the last is known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
