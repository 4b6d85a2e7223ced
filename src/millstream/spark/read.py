"""One function for a DataFrame over a topic, whichever engine keeps it, as a stream or as a batch.

The embedded log is read by our own data source, a Kafka log by Spark's. Columns are the same: key, value, topic,
partition, offset, timestamp, headers. A streaming query's progress shows as a consumer group of the log: the embedded
source commits it itself; for Kafka, Spark tells a listener how far a query is, and that commits it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.streaming.listener import StreamingQueryListener

from millstream.address import LogAddress, parse_log
from millstream.errors import ConfigError, LogError, OffsetOutOfRange
from millstream.event import TopicPartition
from millstream.log import open_log
from millstream.log.archive import Archive
from millstream.log.checks import start_offsets
from millstream.log.contract import TIME_HEADER, Log, Start
from millstream.log.kafka.names import is_kerberos, java_settings
from millstream.spark.source import MillstreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OTHER_HEADERS = f"filter(headers, h -> h.key != '{TIME_HEADER}')"
"""Headers without the one that holds the time of an event."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")

_SENT = f"cast(get(filter(headers, h -> h.key = '{TIME_HEADER}'), 0).value AS string)"
EVENT_TIME = f"coalesce(timestamp_millis(try_cast({_SENT} AS bigint)), timestamp)"
"""The time of an event on Kafka, as Spark SQL: what its header says (see ``log/kafka/engine.py``), else the record's timestamp."""


def read_stream(
    spark: SparkSession,
    log: str,
    topics: str | Sequence[str],
    *,
    start: Start = "earliest",
    group: str | None = None,
    limit: int | None = None,
    archive: str | Path | None = None,
    kafka: Mapping[str, str] | None = None,
) -> DataFrame:
    """A streaming DataFrame over topics of the log at the address ``log``.

    ``group`` names the consumer group that shows the progress (``spark-TOPIC`` unless named); ``limit`` bounds the
    records of a micro-batch; ``archive`` lets a replay begin before the live log does (embedded log only).

    :param spark: the Spark session
    :param log: the address of the log
    :param topics: a topic or several
    :param start: ``"earliest"``, ``"latest"``, a time or offsets
    :param group: the consumer group
    :param limit: how many records a micro-batch has at most
    :param archive: the folder of archives
    :param kafka: settings of the Kafka client
    :raises ConfigError: if these do not go together
    """
    address, names = parse_log(log), [topics] if isinstance(topics, str) else list(topics)
    reader = spark.readStream.options(**_start(log, names, start, kafka))
    if limit is not None:
        reader = reader.option("maxOffsetsPerTrigger", limit)
    if address.embedded:
        check_local(spark, address)
        spark.dataSource.register(MillstreamSource)
        reader = reader.format("millstream").options(log=str(address.absolute()), subscribe=",".join(names))
        if archive is not None:
            reader = reader.option("archive", str(Path(archive).absolute()))
        return reader.option("group", group or "").load()
    if archive is not None:
        raise ConfigError(
            "archive: Spark's Kafka source cannot begin in an archive",
            hint="read the whole with read_batch(…, archive=…), or begin the stream where the live log does",
        )
    if not is_kerberos(kafka or {}):  # Spark's client has it, and the one that commits has not
        _Progress.watch(spark, log, names, group or f"spark-{'-'.join(names)}", kafka or {})
    return _columns(_kafka(reader.format("kafka"), address, names, kafka or {}).load())


def read_batch(
    spark: SparkSession,
    log: str,
    topics: str | Sequence[str],
    *,
    start: Start = "earliest",
    archive: str | Path | None = None,
    kafka: Mapping[str, str] | None = None,
) -> DataFrame:
    """A DataFrame over what topics of the log hold now; with ``archive``, over what they have held before, too.

    :param spark: the Spark session
    :param log: the address of the log
    :param topics: a topic or several
    :param start: ``"earliest"``, ``"latest"``, a time or offsets
    :param archive: the folder of archives
    :param kafka: settings of the Kafka client
    :raises ConfigError: if these do not go together
    """
    address, names = parse_log(log), [topics] if isinstance(topics, str) else list(topics)
    reader = spark.read.options(**_start(log, names, start, kafka))
    if address.embedded:
        check_local(spark, address)
        spark.dataSource.register(MillstreamSource)
        reader = reader.format("millstream").options(log=str(address.absolute()), subscribe=",".join(names))
        return (reader if archive is None else reader.option("archive", str(Path(archive).absolute()))).load()
    if archive is None:
        return _columns(_kafka(reader.format("kafka"), address, names, kafka or {}).load())
    if start != "earliest":
        raise ConfigError("archive: goes with start='earliest'", hint="filter on offset or timestamp instead")
    with open_log(log, kafka=kafka) as opened:
        frames = [_kafka_with_archive(spark, opened, name, Path(archive), kafka or {}) for name in names]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _kafka_with_archive(
    spark: SparkSession, log: Log, topic: str, archive: Path, kafka: Mapping[str, str]
) -> DataFrame:
    """What is archived from the archive, and the live log from where the archive ends."""
    store = Archive(archive.absolute(), topic)
    paths: list[str] = []
    starts: dict[int, int] = {}
    for partition, bounds in log.bounds(topic).items():
        span = store.span(partition)
        if span and span[1] < bounds.start:
            raise OffsetOutOfRange(
                f"topic {topic} partition {partition}: offsets {span[1]} to {bounds.start - 1} are neither archived nor live",
                missing=(span[1], bounds.start),
                hint="archive more often than the topic's retention",
            )
        starts[partition] = span[1] if span else bounds.start
        paths += [str(piece.path) for piece in store.pieces(partition)]
    reader = spark.read.format("kafka").option("startingOffsets", to_json({topic: starts}))
    live = _columns(_kafka(reader, parse_log(log.url), [topic], kafka).load())
    return spark.read.parquet(*paths).select(*COLUMNS).unionByName(live) if paths else live


def _columns(frame: DataFrame) -> DataFrame:
    """Kafka's columns, with the event's time, which is no header of it then, as the timestamp."""
    return frame.selectExpr(
        *COLUMNS[:5],
        f"{EVENT_TIME} AS timestamp",
        f"if(size({OTHER_HEADERS}) > 0, {OTHER_HEADERS}, null) AS headers",
    )


def _start(log: str, topics: Sequence[str], start: Start, kafka: Mapping[str, str] | None) -> dict[str, str]:
    """The option ``startingOffsets`` of either source; offsets and times are looked up in the log, now."""
    if start in ("earliest", "latest"):
        return {"startingOffsets": str(start)}
    with open_log(log, create=False, kafka=kafka) as opened:
        return {"startingOffsets": to_json({topic: start_offsets(opened, topic, start) for topic in topics})}


def to_json(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Offsets as Spark's Kafka source, and ours, take them."""
    return json.dumps({topic: {str(p): offset for p, offset in found.items()} for topic, found in offsets.items()})


def check_local(spark: SparkSession, log: LogAddress) -> None:
    """Refuse an embedded log on a cluster: its file is on this machine."""
    master = spark.conf.get("spark.master", "local")
    if master and not master.startswith("local"):
        raise ConfigError(
            f"{log} is a file of this machine, and Spark runs on {master}", hint="use a kafka:// log on a cluster"
        )


def kafka_options(log: LogAddress, settings: Mapping[str, str]) -> dict[str, str]:
    """Options of Spark's Kafka source, without the topics."""
    options = {
        "kafka.bootstrap.servers": log.place,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
    return options | {f"kafka.{name}": value for name, value in java_settings(settings).items()}


def _kafka(reader: Any, log: LogAddress, topics: Sequence[str], settings: Mapping[str, str]) -> Any:
    return reader.options(subscribe=",".join(topics), **kafka_options(log, settings))


class _Progress(StreamingQueryListener):
    """Commits what queries over Kafka have finished, under the group that was named for their topics.

    Spark does not say which DataFrame a query came from, only its topics: two queries over the same topics need a group
    each, named like the query (``queryName``).
    """

    _listening: ClassVar[dict[int, _Progress]] = {}

    def __init__(self) -> None:
        self._groups: dict[frozenset[str], list[tuple[str, str, Mapping[str, str]]]] = {}

    @classmethod
    def watch(cls, spark: SparkSession, log: str, topics: Sequence[str], group: str, kafka: Mapping[str, str]) -> None:
        """Begin to show the progress of queries over these topics as this group."""
        listener = cls._listening.get(id(spark.sparkContext))
        if listener is None:
            listener = cls._listening[id(spark.sparkContext)] = cls()
            spark.streams.addListener(listener)
        known = listener._groups.setdefault(frozenset(topics), [])
        if (log, group, kafka) not in known:
            known.append((log, group, kafka))

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is finished yet."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """What is finished has been committed."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Commit the end offsets of a finished micro-batch."""
        for source in event.progress.sources:
            try:
                ends: dict[str, dict[str, int]] = json.loads(source.endOffset or "{}")
                known = self._groups.get(frozenset(ends), [])
            except (ValueError, TypeError):
                continue
            named = [entry for entry in known if entry[1] == event.progress.name] or known[-1:]
            for log, group, kafka in named if source.description.startswith("KafkaV2") else []:
                places = {TopicPartition(t, int(p)): offset for t, found in ends.items() for p, offset in found.items()}
                try:
                    with open_log(log, kafka=kafka) as opened:
                        opened.commit_group(group, places)
                except LogError:
                    pass  # a view of the progress, not the progress: the next batch brings it up to date
