"""How many bytes ranges of Kafka partitions have, by samples: a broker tells offsets and times, and no sizes.

Records are read at some places of each range, and at more of them unless these say that there is room for several times as much. They count as they are, and
stand for what follows them up to the next place. A place that gave no answer counts as what the others gave.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millstream.errors import LogUnavailable
from millstream.log.embedded.scan import Part, paced, step_of
from millstream.log.kafka.client import ck, silent
from millstream.log.kafka.read import COMMON

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

_STEPS, _ROOM = 8, 4
"""A range is looked at in so many places; in every other one, if they say that so many times as much may be."""
_ENOUGH, _ENOUGH_BYTES = 32, 1 << 18
_LARGEST = 1 << 20  # the largest record that brokers accept by default
_SETTINGS = {
    **COMMON,
    "group.id": "__millstream.sizes",  # the client wants a name; it never joins
    "reconnect.backoff.max.ms": "1000",
    "fetch.wait.max.ms": "1",
    "max.partition.fetch.bytes": str(1 << 16),  # it is a producer's batch at the least
    "queued.min.messages": "1000",
    "fetch.queue.backoff.ms": "0",  # else the client rests for a second when it has so many
}


class Sizes:
    """What records have in bytes, with a consumer that is kept."""

    def __init__(self, log: KafkaLog, patience: float = 3.0) -> None:
        self._log, self._patience = log, patience
        self._consumer: Any = None
        self._largest = _LARGEST

    def within(self, ranges: Sequence[Part], most: int) -> int:
        """How many records, each range going on at the same pace, have about ``most`` bytes together; at least one.

        So few that they fit, whatever they are, need no look.
        """
        waiting = sum(part.end - part.start for part in ranges)
        if waiting * self._largest <= most:
            return max(1, waiting)
        found = {(part.topic, part.partition): _Seen() for part in ranges}
        deadline = time.monotonic() + self._patience
        steps = [[step_of(part, step, _STEPS) for part in ranges] for step in range(_STEPS)]
        last = [part._replace(start=max(part.start, part.end - _ENOUGH)) for part in ranges]
        for parts in (*steps[::2], last):
            self._look(parts, found, deadline)
        if self._paced(ranges, most // _ROOM, found) >= waiting:
            return waiting
        for parts in steps[1::2]:
            self._look(parts, found, deadline)
        return self._paced(ranges, most, found)

    def _paced(self, ranges: Sequence[Part], most: int, found: Mapping[tuple[str, int], _Seen]) -> int:
        """The same, by what was seen."""
        sizes = [size for seen in found.values() for run in seen.runs for size in run.sizes]
        if not sizes and not all(run.reached > run.start for seen in found.values() for run in seen.runs):
            raise LogUnavailable(
                f"{self._log.url}: no answer for {self._patience:.0f} s, looking how large records are"
            )
        self._largest = max(self._largest, max(sizes, default=0))
        usual = sum(sizes) / max(1, len(sizes))
        return paced(ranges, most, _STEPS, lambda part: found[part.topic, part.partition].about(part, usual))

    def close(self) -> None:
        """Let go of the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _look(self, parts: Sequence[Part], found: dict[tuple[str, int], _Seen], deadline: float) -> None:
        """Read the first records of some parts, all at once."""
        left: dict[tuple[str, int], tuple[_Run, int]] = {}
        for part in parts:
            if (begun := found[place := (part.topic, part.partition)].begin(part)) is not None:
                left[place] = begun
        if not left:
            return
        if self._consumer is None:
            self._consumer = ck.Consumer({**self._log.client, **_SETTINGS}, logger=silent)
        self._consumer.assign([ck.TopicPartition(*place, run.start) for place, (run, _) in left.items()])
        while left and time.monotonic() < deadline:
            for message in self._consumer.consume(_ENOUGH, 0.1):
                place = message.topic(), message.partition()
                if place in left and left[place][0].take(message, left[place][1]):
                    del left[place]
                    self._consumer.incremental_unassign([ck.TopicPartition(*place)])  # what was fetched of it is let go
        self._consumer.unassign()


class _Run:
    """Records that were read one after the other: from an offset up to another."""

    def __init__(self, start: int) -> None:
        self.start = self.reached = start
        self.offsets: list[int] = []
        self.sizes: list[int] = []

    @property
    def mean(self) -> float | None:
        """What they have, if there are any."""
        return sum(self.sizes) / len(self.sizes) if self.sizes else None

    def take(self, message: Any, end: int) -> bool:
        """Take a message; whether no more are needed up to an end."""
        if (error := message.error()) is not None:
            if error.name() == "_PARTITION_EOF":
                self.reached = max(self.reached, end)
            return error.name() in ("_PARTITION_EOF", "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
        self.offsets.append(message.offset())
        self.sizes.append(size_of(message))
        self.reached = message.offset() + 1
        return self.reached >= end or len(self.sizes) >= _ENOUGH or sum(self.sizes) >= _ENOUGH_BYTES

    def between(self, low: int, high: int) -> int:
        """The bytes of those with such offsets."""
        return sum(self.sizes[bisect_left(self.offsets, low) : bisect_left(self.offsets, high)])


class _Seen:
    """What was seen of one range: runs, in the order of their offsets."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []

    def begin(self, part: Part) -> tuple[_Run, int] | None:
        """Begin a run, and say where it has to end; None if what was read before has all of the part."""
        place = bisect_right(self.runs, part.start, key=lambda run: run.start)
        start = max([part.start, *(run.reached for run in self.runs[:place])])
        end = min([part.end, *(run.start for run in self.runs[place:])])
        if start >= end:
            return None
        self.runs.insert(place, run := _Run(start))
        return run, end

    def about(self, part: Part, usual: float) -> float:
        """About how many bytes a part has: what was seen of it, and between two runs what they have, half and half."""
        total = 0.0
        for run, following in zip(self.runs, [*self.runs[1:], None], strict=True):
            total += run.between(part.start, part.end)
            means = [mean for each in (run, following) if each is not None and (mean := each.mean) is not None]
            low, high = max(run.reached, part.start), min(following.start if following else part.end, part.end)
            total += max(0, high - low) * (sum(means) / len(means) if means else usual)
        return total


def size_of(message: Any) -> int:
    """The bytes of a message's key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in message.headers() or ())
    return len(message) + len(message.key() or b"") + headers
