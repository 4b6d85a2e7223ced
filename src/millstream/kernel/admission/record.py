"""What a record must have, for admission to judge it, and what is said of one that has it not. Whoever decodes goes by this.

A stream's record has a value, which decodes, and a time; a table's a key, and its value, if there is one, decodes. Rows come with these columns besides the feed's expressions: ``_o`` offset, ``_a`` append time, ``_t`` event time (both in
microseconds), ``_bad`` why it cannot be used, ``_wild`` whether its clock was far off, ``_beat`` the time of a heartbeat,
``_who`` and ``_nth`` producer and sequence, ``_deleted`` whether it is a tombstone.
"""

from __future__ import annotations

from millstream.kernel.state.store import FOREVER, NEVER
from millstream.log.heartbeat import Heartbeat
from millstream.plan.build import Feed
from millstream.relation.nodes import Source

COLUMNS = ("_o", "_a", "_t", "_bad", "_beat", "_wild", "_who", "_nth", "_deleted")
"""What the first step gets of every record besides the feed's expressions."""

NO_VALUE = "no value"
"""Why a stream's record without a value cannot be used."""

SHOWN = 200
"""So many characters are shown of a value that does not decode."""

FAILED = "failed: "
"""How the reason begins why a record cannot be used on which an expression failed. It is counted as malformed."""

IGNORED = NEVER
"""The time of a heartbeat that is meant for another pipeline."""


def placed_by(source: Source) -> tuple[str, ...]:
    """The columns in which a record must have a value: a stream's time, a table's key."""
    if source.time is not None:
        return (source.time.column,)
    return source.key if source.kind == "table" else ()


def lacks(column: str) -> str:
    """Why a record cannot be used that has no value in a column that it is placed by."""
    return f"no value in column {column}"


def undecoded(source: Source) -> str:
    """How the reason begins why a record cannot be used whose value does not decode; what it is follows."""
    match source.codec:
        case "json":
            return "not JSON with the declared columns: "
        case "debezium" | "debezium-avro":
            return "not an envelope of Debezium with the declared columns (rows by themselves are codec json): "
        case "confluent-json":
            return "not framed JSON with the declared columns: "
        case "avro":
            return "not Avro of the declared schema: "
        case "confluent-avro":
            return "not framed Avro of the declared schema: "
        case "text":
            return "not text: "


def column_of(feed: Feed, name: str) -> str:
    """The name of a feed's expression among those of all feeds."""
    return f"_f{feed.number}{name}"


def is_used(feed: Feed, name: str) -> bool:
    """Whether admission of this feed looks at one of :data:`COLUMNS`."""
    source = feed.source
    match name:
        case "_t":
            return source.time is not None
        case "_wild":
            return source.time is not None and source.time.sent is not None
        case "_who" | "_nth":
            return source.sequence is not None
        case "_deleted":
            return source.kind == "table"
        case _:
            return True


def beat_of(said: Heartbeat, pipeline: str) -> int:
    """The time of a heartbeat, as admission takes it."""
    if said.pipeline not in (None, pipeline):
        return IGNORED
    return FOREVER if said.time is None else said.time
