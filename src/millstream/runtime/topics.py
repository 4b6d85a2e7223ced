"""The topics that views are made from: whether they are the same ones still, and hold all that the views were made from.

A name is not a topic: one that was deleted and made again begins anew, under the same name and the same offsets. So the id of each
topic is kept with the position, in the checkpoint and in the ledger. Positions of before topics had ids are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.errors import CheckpointMismatch, OffsetOutOfRange
from millstream.log import Log
from millstream.log.contract import Bounds
from millstream.runtime.delivery import Position

_ANEW = "`millstream run --rebuild` computes the views anew from what the log holds now"


def ids_of(log: Log, topics: Iterable[str]) -> dict[str, str]:
    """The id of each topic that has one."""
    return {topic: found for topic in topics if (found := log.topic_id(topic))}


def check_same(pipeline: str, known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Refuse a topic whose id is not the one that is known of it."""
    for topic, wanted in known.items():
        if found.get(topic, wanted) != wanted:
            raise CheckpointMismatch(
                f"pipeline {pipeline}: topic {topic} was deleted and made again: it has the id {found[topic]}, and the views were made"
                f" from one with the id {wanted}",
                hint=_ANEW,
            )


def check_ends(
    pipeline: str, offsets: Mapping[str, Mapping[int, int]], bounds: Mapping[str, Mapping[int, Bounds]]
) -> None:
    """Refuse a log that ends before what was read of it: it was restored from an older copy, and will give other records there."""
    for topic, found in offsets.items():
        for partition, offset in found.items():
            bound = bounds.get(topic, {}).get(partition)
            if topic in bounds and (bound is None or bound.end < offset):
                end = 0 if bound is None else bound.end
                raise CheckpointMismatch(
                    f"pipeline {pipeline}: the log is older than the views: topic {topic} partition {partition} ends at offset {end},"
                    f" and the views have read up to {offset}",
                    hint=f"restore a log that is as new as the views; or {_ANEW}",
                )


def check_past(log: Log, pipeline: str, position: Position) -> None:
    """Refuse to compute anew what the log no longer has, or has otherwise."""
    check_same(pipeline, position.topics, ids_of(log, position.start))
    bounds = {topic: log.bounds(topic) for topic in position.start}
    check_ends(pipeline, position.offsets, bounds)
    for topic, found in position.start.items():
        for partition, offset in found.items():
            first = bounds[topic][partition].start
            if offset < first:
                raise OffsetOutOfRange(
                    f"topic {topic} partition {partition}: offsets {offset} to {first - 1} are gone; the views of {pipeline} were"
                    " made from them",
                    missing=(offset, first),
                    hint="views older than the log cannot be computed anew; lengthen the topic's retention",
                )
