"""Heartbeats: that nothing before a time is expected in a partition any more, from an offset on.

A pipeline keeps its heartbeats in the ledger of its stores (:class:`Beat`) and writes into nobody's topic. Earlier versions appended
them to the topic, as a record of exactly one form, which is still understood: the key is ``millstream.heartbeat.`` and a number, the
value ``{"time":TIME,"pipeline":"NAME"}``, without spaces; ``time`` null is the end of all time, ``pipeline`` null is everybody. Nothing
else is a heartbeat, whatever its key: it is a record like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

PREFIX = b"millstream.heartbeat."
"""How the keys of heartbeats in a topic begin. Users do not append such keys."""
VALUE_PREFIX = b'{"time":'
"""How their values begin."""

Ends: TypeAlias = Mapping[str, Mapping[str, int]]
"""Topic → partition, as text → the next offset to read."""

# What Python's regular expressions and Java's read alike.
_KEY = r"millstream\.heartbeat\.[0-9]{1,18}"
_NAME = r'"([A-Za-z0-9_~-]{1,99})"'
_VALUE = rf'\{{"time":(?:(-?[0-9]{{1,18}}),"pipeline":(?:null|{_NAME})|null,"pipeline":{_NAME})\}}'
_KEY_BYTES, _VALUE_BYTES = re.compile(_KEY.encode()), re.compile(_VALUE.encode())


class Beat(NamedTuple):
    """A heartbeat of a pipeline: nothing before ``time`` (µs) is expected in a partition, from the record at ``offset`` on.

    ``appended`` (µs) is the newest append before it, of all topics, and ``ends`` is how far they had been read. One that no batch has had
    yet has no append time: it comes at the end of the first batch that reaches its offset, and these ends if it has some.
    """

    topic: str
    partition: int
    offset: int
    time: int
    appended: int | None = None
    ends: Ends | None = None
    topic_id: str = ""
    """The id of the topic that the offset is of, where it is known."""

    def reached(self, ends: Ends) -> bool:
        """Whether it comes in a batch with these ends: with all that was read before it, or at the latest with the next record."""
        found = ends.get(self.topic, {}).get(str(self.partition))
        if found is None or found < self.offset:
            return False
        if self.ends is None or (found > self.offset and self.appended is not None):
            return True
        return all(
            ends[topic].get(p, at) >= at for topic, each in self.ends.items() if topic in ends for p, at in each.items()
        )


class Heartbeat(NamedTuple):
    """What a record that is a heartbeat says: a time in microseconds or None for the end, and to whom; None is everybody."""

    time: int | None
    pipeline: str | None


def read_heartbeat(key: bytes | None, value: bytes | None) -> Heartbeat | None:
    """What a record says, if it is a heartbeat.

    >>> read_heartbeat(b"millstream.heartbeat.3", b'{"time":null,"pipeline":"shop"}')
    Heartbeat(time=None, pipeline='shop')
    >>> read_heartbeat(b"millstream.heartbeat.report", b'{"time":null,"pipeline":"shop"}')
    """
    if key is None or value is None or not key.startswith(PREFIX) or not _KEY_BYTES.fullmatch(key):
        return None
    said = _VALUE_BYTES.fullmatch(value)
    if said is None:
        return None
    time, name, name_at_the_end = said.groups()
    name = name or name_at_the_end
    return Heartbeat(None if time is None else int(time), None if name is None else name.decode())


def heartbeat_sql(pipeline: str, *, ended: int, ignored: int) -> str:
    """:func:`read_heartbeat` in Spark SQL, over ``key`` and ``value``: a heartbeat's time, or null for other records.

    It is ``ended`` for the end, and ``ignored`` if it is meant for another pipeline.
    """
    value, key_form, form = "cast(value AS string)", _literal(_KEY), _literal(_VALUE)
    prefixed = f"startswith(key, cast('{PREFIX.decode()}' AS binary))"
    is_one = f"{prefixed} AND cast(key AS string) RLIKE {key_form} AND {value} RLIKE {form}"
    name = f"concat(regexp_extract({value}, {form}, 2), regexp_extract({value}, {form}, 3))"
    time = f"coalesce(try_cast(regexp_extract({value}, {form}, 1) AS bigint), {ended})"
    return f"CASE WHEN {is_one} THEN CASE WHEN {name} IN ('', '{pipeline}') THEN {time} ELSE {ignored} END END"


def _literal(pattern: str) -> str:
    """A pattern for all of a text."""
    return "'" + rf"\A{pattern}\z".replace("\\", "\\\\") + "'"
