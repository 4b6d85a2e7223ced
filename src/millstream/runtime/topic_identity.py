"""The topics that views are made from: whether they are the same ones still, and hold all that the views were made from.

A name is not a topic: one that was deleted and made again begins anew, under the same name and the same offsets. So the id of each
topic is kept with the position, in the checkpoint and in the ledger. Positions of before topics had ids are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.errors import CheckpointMismatch, OffsetOutOfRange
from millstream.log import Log
from millstream.log.archive import whole_bounds
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


def check_past(log: Log, pipeline: str, position: Position, *, forget: bool = False) -> None:
    """Refuse to compute anew what the log, its archives included, no longer has, or has otherwise; ``forget`` allows the former."""
    check_same(pipeline, position.topics, ids_of(log, position.start))
    bounds = {topic: whole_bounds(log, topic) for topic in position.start}
    check_ends(pipeline, position.offsets, bounds)
    if not forget:
        check_start(pipeline, position.start, bounds)


def check_start(
    pipeline: str, start: Mapping[str, Mapping[int, int]], bounds: Mapping[str, Mapping[int, Bounds]]
) -> None:
    """Refuse if records that views were made from are gone: what is computed now would lack them."""
    for topic, found in bounds.items():
        for partition, bound in found.items():
            offset = start.get(topic, {}).get(partition, bound.start)
            if offset < bound.start:
                raise OffsetOutOfRange(
                    f"topic {topic} partition {partition}: offsets {offset} to {bound.start - 1} are gone; the views of {pipeline}"
                    " were made from them, and computed anew they would lack them",
                    missing=(offset, bound.start),
                    hint="give the topic an archive or a longer retention next time; --forget-history computes the views from what"
                    " is left (`run --rebuild`, `run --batch` and `rebuild` take it)",
                )
