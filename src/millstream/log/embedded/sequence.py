"""Idempotent producers of the embedded log: which (producer, sequence) is there already, and at which offsets.

The last :data:`REMEMBERED` numbers of a producer in a topic are kept with the first offset of each partition. Placing
events is deterministic, so that and the number of partitions at the time are enough to give a repeat its first
acknowledgement again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.database import Db
from millstream.errors import BadEvent, SequenceTooOld
from millstream.event import Event
from millstream.log.contract import Ack
from millstream.log.embedded.batch import place

if TYPE_CHECKING:
    from millstream.log.embedded.topic import TopicRow

REMEMBERED = 1024


def last_sequence(db: Db, topic: int, producer: str) -> Any:
    """The highest number, or None."""
    return db.execute("SELECT max(sequence) FROM sequence WHERE producer = ? AND topic = ?", (producer, topic)).get


def repeat(db: Db, row: TopicRow, events: Sequence[Event], producer: str, sequence: int) -> Ack | None:
    """The acknowledgement this batch got the first time, if it is a repeat."""
    last = last_sequence(db, row.id, producer)
    if last is None or sequence > last:
        return None
    found = db.execute(
        "SELECT partitions, events, firsts FROM sequence WHERE producer = ? AND topic = ? AND sequence = ?",
        (producer, row.id, sequence),
    ).fetchone()
    if found is None:
        raise SequenceTooOld(
            f"producer {producer} sends sequence {sequence} to topic {row.topic.name} after {last}; nothing was added",
            hint="sequence numbers must grow; ask last_sequence() where to go on",
        )
    partitions, count, firsts = found
    if count != len(events):
        raise BadEvent(
            f"producer {producer} repeats sequence {sequence} with {len(events)} events; the first time it had {count}"
        )
    offsets = {int(partition): itertools.count(first) for partition, first in json.loads(firsts).items()}
    places = place([event.key for event in events], partitions, sequence)
    if offsets.keys() != set(places):
        raise BadEvent(f"producer {producer} repeats sequence {sequence} with other keys than the first time")
    return Ack(places, [next(offsets[partition]) for partition in places], duplicate=True)


def remember(db: Db, row: TopicRow, ack: Ack, producer: str, sequence: int) -> None:
    """Store an acknowledgement, and forget one that is old enough."""
    firsts: dict[int, int] = {}
    for partition, offset in zip(ack.partitions, ack.offsets, strict=True):
        firsts.setdefault(partition, offset)
    db.execute(
        "INSERT INTO sequence VALUES (?, ?, ?, ?, ?, ?)",
        (producer, row.id, sequence, row.topic.partitions, len(ack.offsets), json.dumps(firsts)),
    )
    db.execute(
        "DELETE FROM sequence WHERE producer = ? AND topic = ? AND sequence <= ?",
        (producer, row.id, sequence - REMEMBERED),
    )
