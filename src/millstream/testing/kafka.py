"""A real Kafka broker: one Java process, broker and controller at once.

For tests it is small and starts quickly, and retention, compaction, new groups and expired transactions, which take minutes with
Kafka's defaults, take about a second. For measurements it is an ordinary one: Kafka's defaults, and the JVM as Kafka's own script has it.
"""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from millstream.spark.jars import kafka_broker_classpath
from millstream.spark.java import find_java
from millstream.testing.process import Server, free_ports

_ONE_BROKER = {
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


class KafkaBroker(Server):
    """A Kafka broker for tests, as a context manager; needs the network the first time, for its jars.

    ``settings`` are further broker settings, which win over ours. An ``ordinary`` one is for measurements.
    """

    name = "Kafka broker"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        patience: timedelta = timedelta(seconds=60),
        ordinary: bool = False,
    ) -> None:
        super().__init__(patience)
        self._port, controller = free_ports(2)
        java = [str(find_java().executable), *(_ORDINARY if ordinary else _SMALL)]
        java += [f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"]
        self._java = [*java, "-cp", ":".join(map(str, kafka_broker_classpath()))]
        here = {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self._folder / "data"),
        }
        values = {**_ONE_BROKER, **({} if ordinary else _AT_ONCE), **here, **(settings or {})}
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
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    def _prepare(self) -> None:
        cluster = (
            "M" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        )  # a leading "-" would be an option
        self._do(
            [*self._java, "kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(self._settings)]
        )

    def _command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._settings)]

    def _ready(self, log: str) -> bool:
        return _STARTED in log
