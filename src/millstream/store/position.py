"""Waiting until a pipeline has come to a position of the log, by what its ledger has of each partition."""

from __future__ import annotations

import time

from millstream.errors import ViewBehind, ViewError
from millstream.store.contract import Offsets, StoreReader


def wait_for(store: StoreReader, pipeline: str, position: Offsets, timeout: float) -> None:
    """Return when a pipeline has committed a batch that reaches a position; ViewBehind if it has not in so many seconds.

    A position in a topic that the pipeline does not read would be waited for in vain: ViewError, at once.
    """
    deadline, pause = time.monotonic() + timeout, 0.002
    while True:
        entry = store.last(pipeline)
        offsets: Offsets = {} if entry is None else entry.offsets
        if entry is not None and (strange := [topic for topic in position if topic not in offsets]):
            raise ViewError(
                f"pipeline {pipeline} does not read topic {', '.join(strange)}; it reads {', '.join(sorted(offsets))}",
                hint="give at_least a position of a topic that the view's pipeline reads",
            )
        behind = {
            f"{topic}/{partition}": (offsets.get(topic, {}).get(partition, 0), offset)
            for topic, partitions in position.items()
            for partition, offset in partitions.items()
            if offsets.get(topic, {}).get(partition, 0) < offset
        }
        if not behind:
            return
        if (left := deadline - time.monotonic()) <= 0:
            lag = ", ".join(f"{place} at {at:,} of {of:,} ({of - at:,} behind)" for place, (at, of) in behind.items())
            raise ViewBehind(
                f"pipeline {pipeline} has not come to the position asked for within {timeout:g} s: {lag}",
                hint="is it running, and does it keep up? `millstream lag`",
            )
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, 0.05)
