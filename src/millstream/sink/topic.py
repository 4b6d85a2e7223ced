"""A topic as an sink: the embedded log, or Kafka by transactions with the batch's number inside.

The number is the producer's sequence of the log's contract, which both engines keep in the transaction that appends. After an
outcome that is unknown the log throws its client away, the next one of that name settles what was left open, and the
sequence says whether the batch is there.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from millstream.capture.reading import records_of
from millstream.errors import UnknownTopic
from millstream.event import Event
from millstream.log.contract import Log, TopicSettings
from millstream.sink import json_rows
from millstream.sink.contract import ChangeSet, Packed, Sink, check_remembered
from millstream.store.contract import Refusal

_ROOM = 100
"""Bytes of a record beside its key and value, generously."""


class TopicSink(Sink):
    """Records whose keys are the keys of rows: order holds for each key, and a compacted topic keeps the newest row."""

    def __init__(self, log: Log, topic: str, producer: str, key: tuple[str, ...]) -> None:
        self._log, self._topic, self._producer, self._key = log, topic, producer, list(key)
        try:
            found = log.topic(topic)
        except UnknownTopic:
            found = log.create_topic(topic, settings=TopicSettings(cleanup="compact" if key else "delete"))
        self._most = found.settings.max_record_bytes

    def last(self) -> int | None:
        """The producer's sequence."""
        return self._log.last_sequence(self._topic, self._producer)

    def pack(self, change_set: ChangeSet) -> Packed:
        """Rows as events; a key that is gone is a tombstone."""
        rows, refused = json_rows.writable(change_set.rows)
        keys = _bytes(json_rows.documents(rows.select(self._key))) if self._key else [None] * rows.height
        values = _bytes(json_rows.documents(rows))
        events = []
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            if len(key or b"") + len(value or b"") + _ROOM > self._most:
                why = f"{len(key or b'') + len(value or b'')} bytes, topic {self._topic} takes up to {self._most}"
                refused += json_rows.refusals(rows[at], why)
            else:
                events.append(Event(value, key))
        gone, _ = json_rows.writable(change_set.gone)  # what was refused when it came is not there
        events += [
            Event(None, key) for key in _bytes(json_rows.documents(gone)) if len(key or b"") + _ROOM <= self._most
        ]
        return Packed(events, refused)

    def send(self, payload: list[Event], sequence: int, *, marked: bool, after: int | None = None) -> list[Refusal]:
        """Append, in one transaction."""
        if payload:
            if after is not None:
                check_remembered(f"topic {self._topic}", self.last(), after)
            if marked:
                self._log.append(self._topic, payload, producer=self._producer, sequence=sequence, own=True)
            else:
                self._log.append(self._topic, payload, own=True)
        return []

    def held(self) -> Iterator[tuple[str, str]] | None:
        """The newest record of each key, unless that is a tombstone."""
        return self._newest() if self._key else None

    def _newest(self) -> Iterator[tuple[str, str]]:
        newest: dict[bytes, bytes | None] = {}
        for record in records_of(self._log, self._topic):
            newest[record.key or b""] = record.value
        for key, value in newest.items():
            if value is not None:
                yield key.decode(errors="replace"), value.decode(errors="replace")

    def anew(self) -> bool:
        """Whether the topic is empty, or only its number is gone and new rows replace those that are there."""
        empty = all(bound.end == 0 for bound in self._log.bounds(self._topic).values())
        return self.last() is None and (empty or bool(self._key))

    def seal(self, sequence: int, *, after: int | None) -> bool:
        """Renumber the producer."""
        renumbered = self._log.renumber(self._topic, self._producer, sequence, after=after)
        return renumbered or self.last() == sequence

    def place(self) -> str:
        """The id of the topic, on Kafka: numbers are a group's offsets, which expire."""
        return self._log.topic_id(self._topic) if self._log.capabilities.sequences_expire else ""

    def restore(self, place: str, sequence: int) -> bool:
        """Renumber the producer of a topic that holds something still, or did."""
        if place != self.place() or all(bound.end == 0 for bound in self._log.bounds(self._topic).values()):
            return False
        return self.seal(sequence, after=None)

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _bytes(documents: pl.Series) -> list[bytes | None]:
    found: list[bytes | None] = documents.cast(pl.Binary).to_list()
    return found
