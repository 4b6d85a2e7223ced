"""The options of the data source ``millstream``, read and checked once; see :mod:`millstream.spark.source` for what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.address import LogAddress, parse_log
from millstream.errors import ConfigError
from millstream.log.archive import SCHEMA
from millstream.log.heartbeat import Beat

WATERMARKS, BEATS = "", "~"
"""Where offsets keep watermarks and heartbeats: no topic has such a name."""

Offsets = dict[str, dict[str, int]]
"""Topic → partition (as text, for JSON) → the next offset to read; as in Spark's Kafka source."""


def places_of(offsets: Mapping[str, Any]) -> Offsets:
    """Offsets without the watermarks and heartbeats that may be with them."""
    return {topic: found for topic, found in offsets.items() if topic not in (WATERMARKS, BEATS)}


def beats_of(offsets: Mapping[str, Any]) -> list[Beat]:
    """The heartbeats that are with offsets."""
    return msgspec.convert(offsets.get(BEATS, []), list[Beat])


def beats_beside(watermarks: str) -> str:
    """The file with heartbeats that no batch has yet, beside the one with watermarks."""
    return f"{watermarks}.beats"


@dataclass(frozen=True)
class Options:
    """The options, read and checked once."""

    log: LogAddress
    topics: tuple[str, ...]
    starting: str
    ending: str
    starting_timestamp: int | None
    limit: int | None
    min_partitions: int
    group: str
    archive: str | None
    append_time: bool
    assign: str = ""
    whole_appends: bool = False
    headers: bool = True
    decoder: str = ""
    watermarks: str = ""
    max_bytes: int | None = None
    kafka: str = ""
    patience: float = 60.0
    archives: bool = False
    ending_timestamp: int | None = None

    @property
    def columns(self) -> list[str]:
        """The columns to give, in order."""
        wanted = {"headers": self.headers, "append_time": self.append_time}
        return [name for name in SCHEMA.names if wanted.get(name, True)]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Read what Spark hands over; its keys ignore case."""
        low = {name.lower(): value for name, value in options.items()}
        log, topics = low.get("log", ""), low.get("subscribe") or low.get("topic") or ""
        address = parse_log(log, "option log")
        if not topics:
            raise ConfigError(
                "option subscribe is missing", hint="name the topics: .option('subscribe', 'clicks,orders')"
            )
        names = tuple(name.strip() for name in topics.split(","))
        timestamp = low.get("startingtimestamp")
        return cls(
            log=address.absolute(),
            topics=names,
            starting=low.get("startingoffsets", ""),
            ending=low.get("endingoffsets", "latest"),
            starting_timestamp=_number("startingTimestamp", timestamp) if timestamp else None,
            limit=_number("maxOffsetsPerTrigger", low["maxoffsetspertrigger"])
            if low.get("maxoffsetspertrigger")
            else None,
            min_partitions=_number("minPartitions", low.get("minpartitions", "0")),
            group=low.get("group") or f"spark-{'-'.join(names)}",
            archive=low.get("archive"),
            append_time=low.get("includeappendtime", "false").lower() == "true",
            assign=low.get("assign", ""),
            whole_appends=low.get("wholeappends", "false").lower() == "true",
            headers=low.get("includeheaders", "true").lower() == "true",
            decoder=low.get("decoder", ""),
            watermarks=low.get("watermarks", ""),
            max_bytes=_number("maxBytesPerTrigger", low["maxbytespertrigger"])
            if low.get("maxbytespertrigger")
            else None,
            kafka=low.get("kafka", ""),
            patience=float(low.get("patience", "60")),
            archives=low.get("archives", "false").lower() == "true",
            ending_timestamp=_number("endingTimestamp", low["endingtimestamp"]) if low.get("endingtimestamp") else None,
        )


def _number(name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ConfigError(f"option {name}: found {text!r}, expected a whole number")
    return value
