"""Real Kafka brokers: each one Java process, broker and controller at once; one alone, or several as a cluster.

For tests each is small and starts quickly, and retention, compaction, new groups and expired transactions, which take minutes with
Kafka's defaults, take about a second. For measurements it is an ordinary one: Kafka's defaults, and the JVM as Kafka's own script has it.
"""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.errors import ConfigError
from millstream.spark.jars import kafka_broker_classpath
from millstream.spark.java import find_java
from millstream.testing.process import Server, free_ports
from millstream.testing.secured import Secured

_ALL = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",  # as in the settings that come with Kafka
    "log.retention.ms": "-1",  # or events with a time long ago are gone before anybody reads them
}
_AT_ONCE = {
    # 50 partitions each by default: files to make at the first use, and to load at every restart
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    # seconds instead of minutes
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "2000",  # a killed broker is let in again only after this
    "group.coordinator.append.linger.ms": "0",
    "share.coordinator.append.linger.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
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

_SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What kafka-server-start.sh gives to the JVM.
_ORDINARY = (
    "-Xmx1g",
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)

# The last line that a broker logs when it starts.
_STARTED = "Kafka Server started"


@dataclass(frozen=True)
class Seat:
    """A broker's place among those of its cluster: the cluster's name, the ports of all controllers, and which it is."""

    cluster: str
    controllers: tuple[int, ...]
    node: int = 1

    @classmethod
    def alone(cls) -> Seat:
        """The only one."""
        return cls(_cluster_name(), tuple(free_ports(1)))

    @property
    def settings(self) -> dict[str, str]:
        """As many copies as there are brokers, at most three; one of them may be away."""
        voters = [f"{node}@127.0.0.1:{port}" for node, port in enumerate(self.controllers, 1)]
        copies = min(3, len(voters))
        topics = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        here = {f"{name}.replication.factor": str(copies) for name in ("default", *topics)}
        here |= {f"{name}.min.isr": str(max(1, copies - 1)) for name in topics[1:]}
        here["min.insync.replicas"] = str(max(1, copies - 1))
        return here | {"node.id": str(self.node), "controller.quorum.voters": ",".join(voters)}


def _cluster_name() -> str:
    # a leading "-" would be an option
    return "M" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


class KafkaBroker(Server):
    """A Kafka broker for tests, as a context manager; needs the network the first time, for its jars.

    ``settings`` are further broker settings, which win over ours. An ``ordinary`` one is for measurements. A ``secured`` one lets
    clients in by SASL over TLS only, as :attr:`secured` says. ``seat`` is for the brokers of a :class:`KafkaCluster`.
    """

    name = "Kafka broker"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        patience: timedelta = timedelta(seconds=60),
        ordinary: bool = False,
        secured: bool = False,
        seat: Seat | None = None,
    ) -> None:
        super().__init__(patience)
        self._seat = seat or Seat.alone()
        self._port, inner = free_ports(2)
        self._secured = Secured(self._folder, self._port, inner) if secured else None
        heap = () if seat is None else ("-Xmx256m",)  # the last one counts
        java = [str(find_java().executable), *(_ORDINARY if ordinary else _SMALL), *heap]
        java += [f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"]
        java += self._secured.options if self._secured else []
        self._java = [*java, "-cp", ":".join(map(str, kafka_broker_classpath()))]
        open_to = self._secured.settings if self._secured else {"listeners": f"PLAINTEXT://{self.bootstrap}"}
        here = {**self._seat.settings, **open_to, "log.dirs": str(self._folder / "data")}
        here["listeners"] += f",CONTROLLER://127.0.0.1:{self._seat.controllers[self._seat.node - 1]}"
        values = {**_ALL, **({} if ordinary else _AT_ONCE), **here, **(settings or {})}
        lines = [f"{name}={value}\n" for name, value in values.items()]
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
    def secured(self) -> Secured:
        """Who may come in, and how; for a broker that was made ``secured``."""
        if self._secured is None:
            raise ConfigError("this broker is open to everybody", hint="KafkaBroker(secured=True)")
        return self._secured

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    def _prepare(self) -> None:
        users = self._secured.prepare() if self._secured else []
        format_ = ["kafka.tools.StorageTool", "format", "--cluster-id", self._seat.cluster]
        self._do([*self._java, *format_, "--config", str(self._settings), *users])

    def _command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._settings)]

    def _ready(self, log: str) -> bool:
        return _STARTED in log


class KafkaCluster:
    """Several brokers as one cluster, as a context manager: topics have a copy on three of them, and one may be away.

    ``settings`` are those of every broker. Each is a :class:`KafkaBroker`, to be killed and started again.
    """

    def __init__(self, count: int = 3, *, settings: Mapping[str, str] | None = None) -> None:
        name, ports = _cluster_name(), tuple(free_ports(count))
        seats = [Seat(name, ports, node) for node in range(1, count + 1)]
        self.brokers = [KafkaBroker(settings=settings, seat=seat) for seat in seats]
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack, ThreadPoolExecutor(len(self.brokers)) as threads:
            for broker in self.brokers:
                stack.callback(broker.close)
            list(threads.map(KafkaBroker.start, self.brokers))  # none is ready before most are there
            self._running = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def bootstrap(self) -> str:
        """The address of all of them, as Kafka clients want it."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    @property
    def url(self) -> str:
        """The address that Millstream wants."""
        return f"kafka://{self.bootstrap}"
