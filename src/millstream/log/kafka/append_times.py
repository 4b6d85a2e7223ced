"""Which offsets of Kafka partitions lie before a time, by the brokers' own index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.event import TopicPartition
from millstream.log.kafka.client import ck_admin
from millstream.log.kafka.offsets import of_partitions

if TYPE_CHECKING:
    from millstream.log.embedded.scan import Part
    from millstream.log.kafka.engine import KafkaLog


class AppendTimes:
    """Where the records of some ranges lie in time.

    Brokers find the first record of a partition that is not older than a time. Where they stamp records themselves, the ones
    before it are older. Where producers do (``CreateTime``), one that is older may stand behind it: such a record counts as
    being of the time of the newest before it.
    """

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._reached = 0

    def cut(self, ranges: Sequence[Part], limit: int) -> list[int]:
        """How far to go in each range, at most ``limit`` records together: to the latest time that all of them can reach.

        If more than that are of one time, as many of them as may be, in the order of the ranges.
        """
        low = self._reached
        high = max([low, *self._ask(ranges, ck_admin.OffsetSpec.max_timestamp(), times=True)])
        if _count(ranges, self._before(ranges, low)) > limit:
            low = 0  # a range has begun anew
        while low < high:  # the latest time up to which there are no more than the limit
            middle = (low + high + 1) // 2
            if _count(ranges, self._before(ranges, middle)) <= limit:
                low = middle
            else:
                high = middle - 1
        self._reached = low
        reached = self._before(ranges, low)
        if _count(ranges, reached):
            return reached
        left = limit
        for number, (part, upto) in enumerate(zip(ranges, self._before(ranges, low + 1), strict=True)):
            reached[number] = min(upto, part.start + left)
            left -= reached[number] - part.start
        return reached

    def _before(self, ranges: Sequence[Part], millis: int) -> list[int]:
        """For each range the first offset of a record that came after a time, or its end."""
        found = self._ask(ranges, ck_admin.OffsetSpec.for_timestamp(millis + 1))
        return [
            part.end if offset < 0 else min(max(offset, part.start), part.end)
            for part, offset in zip(ranges, found, strict=True)
        ]

    def _ask(self, ranges: Sequence[Part], spec: Any, *, times: bool = False) -> list[int]:
        places = [TopicPartition(part.topic, part.partition) for part in ranges]
        found = of_partitions(self._log, places, spec)
        return [found[place].timestamp if times else found[place].offset for place in places]


def _count(ranges: Sequence[Part], reached: Sequence[int]) -> int:
    return sum(offset - part.start for part, offset in zip(ranges, reached, strict=True))
