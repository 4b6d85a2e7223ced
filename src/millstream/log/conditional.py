"""What is appended on a condition: that nobody has appended to certain keys since their last records were seen.

Invariant: units are joined in order, so that the acknowledgement of each can be cut out of that of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.event import Event
from millstream.log.ack import Ack


class Conditional(NamedTuple):
    """Events of several topics that go in together, if ``last`` still has the last offset of each (topic, key); None is for no record."""

    batches: Mapping[str, Sequence[Event]]
    last: Mapping[tuple[str, bytes], int | None]


def topics_of(units: Sequence[Conditional]) -> list[str]:
    """Every topic that units append to or look at."""
    appended = [topic for unit in units for topic in unit.batches]
    return list(dict.fromkeys([*appended, *(topic for unit in units for topic, _ in unit.last)]))


def joined(units: Sequence[Conditional], held: Sequence[bool]) -> dict[str, list[Event]]:
    """What all units that hold append to each topic."""
    found: dict[str, list[Event]] = {}
    for unit, holds in zip(units, held, strict=True):
        for topic, events in unit.batches.items() if holds else ():
            if events:
                found.setdefault(topic, []).extend(events)
    return found


def parted(units: Sequence[Conditional], held: Sequence[bool], acks: Mapping[str, Ack]) -> list[dict[str, Ack] | None]:
    """The acknowledgements of each unit, out of those of the joined batches; None for a unit that did not hold."""
    begun = dict.fromkeys(acks, 0)
    found: list[dict[str, Ack] | None] = []
    for unit, holds in zip(units, held, strict=True):
        if not holds:
            found.append(None)
            continue
        own = {}
        for topic, events in unit.batches.items():
            first = begun.get(topic, 0)
            begun[topic] = past = first + len(events)
            ack = acks.get(topic, Ack([], []))
            own[topic] = Ack(ack.partitions[first:past], ack.offsets[first:past])
        found.append(own)
    return found
