"""What the Kafka modules share: the client, its errors as ours, and topic settings under Kafka's names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millstream.errors import (
    BadEvent,
    ConfigError,
    GenerationFenced,
    LogUnavailable,
    MachineError,
    NotAllowed,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
)
from millstream.log.contract import TopicSettings

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

try:
    import confluent_kafka
    import confluent_kafka.admin
except ImportError as error:  # pragma: no cover
    raise MachineError("a kafka:// log needs the Kafka client", hint="pip install 'millstream[kafka]'") from error

# The client's types describe half of what it takes and gives; its errors are checked by the tests against a broker.
ck: Any = confluent_kafka
ck_admin: Any = confluent_kafka.admin

TIMEOUT = 10.0
OVERHEAD = 1024  # what Kafka adds to a record and its batch
_MILLISECOND = timedelta(milliseconds=1)
GONE = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"}
MOVING = {
    "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
    "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "UNSTABLE_OFFSET_COMMIT",
    "OFFSET_NOT_AVAILABLE",  # of a leader that is new
    "_NOENT",  # librdkafka's word for partitions without a leader
}  # fmt: skip
_FENCES = {
    "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_ASSIGNMENT_LOST", "_MAX_POLL_EXCEEDED",
    "FENCED_INSTANCE_ID", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH", "NON_EMPTY_GROUP", "_STATE",
}  # fmt: skip


class _Silence:
    """A logger for librdkafka: what matters comes back as an error of a call; the rest must not reach the terminal."""

    def log(self, *_: object, **__: object) -> None:
        pass


silent = _Silence()


_log = logging.getLogger("millstream")


class Errors:
    """A context manager, because the same few errors come out of every call."""

    def __init__(self, log: KafkaLog, topic: str) -> None:
        self.log, self.topic = log, topic

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ours: Exception
        if error is None:
            self.log.connection.listen()
            return
        if (said := kafkas_own(error)) is not None:
            ours = translate(said.args[0], self.log.url, self.topic, self.log.connection.why())
        elif isinstance(error, TimeoutError):  # of a future, which was not settled in time
            ours = LogUnavailable(
                f"{self.log.url}: no answer within {TIMEOUT:.0f} s", hint="is the broker up? `millstream doctor` looks"
            )
        else:
            return
        if isinstance(ours, LogUnavailable):
            self.log.renew_admin()
        raise ours from error


def kafkas_own(error: BaseException | None) -> Any:
    """The error of Kafka's that a call raised, or None if it is another.

    A fatal one, as of a producer that was fenced, is raised in the middle of the call, before callbacks of ours that
    still come: Python makes it the cause of a SystemError then.
    """
    while isinstance(error, SystemError):
        error = error.__cause__
    return error if isinstance(error, ck.KafkaException) else None


def translate(error: Any, url: str, topic: str = "", why: str = "") -> Exception:
    """Our error for one of Kafka's; ``why`` is what the client said aside of a connection that failed."""
    name, text = error.name(), error.str()
    if name in GONE:
        return UnknownTopic(
            f"no topic {topic} at {url}", hint=f"`millstream topics create {topic}`, or `millstream topics list`"
        )
    if name in ("GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID"):
        return UnknownGroup(f"{url}: no such group", hint="`millstream groups list`")
    if name == "TOPIC_ALREADY_EXISTS":
        return TopicExists(f"topic {topic} exists already", hint=f"`millstream topics describe {topic}` shows it")
    if name.endswith("_AUTHORIZATION_FAILED"):
        return NotAllowed(
            f"{f'topic {topic} at ' if topic else ''}{url}: {text} ({name})",
            hint="ask who runs the broker for the right; a pipeline needs READ and DESCRIBE on its topics, and none to write",
        )
    if name in _FENCES:
        return GenerationFenced(f"{url}: {text}", hint="the group has moved on: poll again")
    if name in ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP"):
        return BadEvent(f"topic {topic} at {url}: {text}; nothing was appended")
    if name in (
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_REQUEST",
        "INVALID_SESSION_TIMEOUT",
    ):
        return ConfigError(f"{url}: {text}")
    return LogUnavailable(
        f"{url}: {text} ({name}){why and f': {why}'}",
        hint="is the broker up, are its address and kafka.security.protocol right? `millstream doctor` looks",
    )


def to_configs(settings: TopicSettings) -> dict[str, str]:
    """Kafka's names for our settings."""
    if settings.archive:
        raise ConfigError(
            "archive: Kafka deletes expired records itself and cannot be told to archive them first",
            hint="run `millstream topics archive TOPIC` more often than the topic's retention",
        )
    if settings.indexed:
        raise ConfigError(
            "indexed: Kafka finds records by their offset alone",
            hint="keep what you need of each key while you read its partition, as a member of a group",
        )
    configs = {
        "cleanup.policy": settings.cleanup,
        "retention.ms": str(-1 if settings.retention is None else settings.retention // _MILLISECOND),
        "retention.bytes": str(-1 if settings.retention_bytes is None else settings.retention_bytes),
        "delete.retention.ms": str(settings.tombstone_retention // _MILLISECOND),
        "min.compaction.lag.ms": str(settings.compaction_lag // _MILLISECOND),
        "max.message.bytes": str(settings.max_record_bytes + OVERHEAD),
        "message.timestamp.type": "LogAppendTime",
    }
    if settings.compacts:
        # Kafka cleans closed segments only: close them often enough for tombstones to go about when they should.
        configs["segment.ms"] = str(min(7 * 86_400_000, max(1000, settings.tombstone_retention // _MILLISECOND // 10)))
    return configs


def from_configs(entries: Mapping[str, Any]) -> TopicSettings:
    """The inverse; what Kafka has no word for is our default."""
    values = {name: entry.value for name, entry in entries.items()}
    cleanup: Any = ",".join(sorted(values["cleanup.policy"].split(",")))
    retention, size = int(values["retention.ms"]), int(values["retention.bytes"])
    return TopicSettings(
        cleanup=cleanup if cleanup in ("delete", "compact", "compact,delete") else "delete",
        retention=None if retention < 0 else retention * _MILLISECOND,
        retention_bytes=None if size < 0 else size,
        tombstone_retention=int(values["delete.retention.ms"]) * _MILLISECOND,
        compaction_lag=int(values["min.compaction.lag.ms"]) * _MILLISECOND,
        max_record_bytes=max(1, int(values["max.message.bytes"]) - OVERHEAD),
    )


class Hidden:
    """Topics whose settings we may not read: who may read the records need not be allowed to."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._topics: set[str] = set()

    def settings(self, topic: str, asked: Any, errors: Callable[[str], Errors]) -> TopicSettings:
        """What a broker says of a topic's settings; where it does not, it is told once, and they are taken for the defaults."""
        try:
            with errors(topic):
                return from_configs(asked.result())
        except NotAllowed as error:
            if topic not in self._topics:
                _log.warning(
                    "its settings are unknown, so nobody checks that it keeps what is needed: %s", error.message
                )
            self._topics.add(topic)
            return TopicSettings()

    def check(self, topic: str) -> None:
        """Refuse to change settings that are not known: what is not named would be lost."""
        if topic in self._topics:
            raise NotAllowed(
                f"topic {topic} at {self._url}: its settings cannot be read, so they cannot be changed",
                hint="ask who runs the broker for DESCRIBE_CONFIGS on the topic",
            )
