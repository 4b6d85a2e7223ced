"""Replay: views computed anew from the log, as they were after a batch that the ledger knows.

Nothing is written: whoever asks compares them with what is stored, or wants to see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import CheckpointMismatch, PipelineError
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain
from millstream.runtime.batch import Computed, compute
from millstream.runtime.delivery import Position, accepted
from millstream.runtime.setup import session_for
from millstream.store import Entry, open_reader, open_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the log gives: all of it, and for each view the changes that its store takes."""

    computed: Computed
    taken: Mapping[str, pa.Table]


def replay(pipeline: Pipeline, chain: Chain, entry: Entry, position: Position, given: SparkSession | None) -> Replayed:
    """Compute all views of a pipeline up to the position of an entry; ``given`` is a session to use, if there is one."""
    spark, closed = session_for(pipeline, chain, given), bool(entry.state.get("closed", False))
    with open_writer(chain.outputs[0].to) as writer:
        told = writer.heartbeats(pipeline.name)
    beats = [beat for checkpoint, batch, beat in told if checkpoint == entry.checkpoint and batch <= entry.batch]
    computed = compute(spark, pipeline, position.start, position.offsets, beats=beats, close=closed)
    taken, _ = accepted(chain, computed.targets, computed.changes, anew=True)
    return Replayed(computed, taken)


def entries_of(pipeline: Pipeline, address: str, limit: int = 1000) -> list[Entry]:
    """The newest entries of a ledger, newest first, at least one."""
    with open_reader(address):  # says what to do if there is none; opening a sink would make one
        pass
    with open_writer(address) as writer:
        entries = writer.entries(pipeline.name, limit)
    if not entries:
        raise PipelineError(f"pipeline {pipeline.name} has not run yet", hint="`millstream run FILE --once`")
    return entries


def position_of(entry: Entry) -> Position:
    """Where the pipeline began and where it was, as the ledger has it."""
    start: Mapping[str, Mapping[str, int]] = entry.state.get("start", {})
    if not start:
        raise CheckpointMismatch("the ledger does not say where the pipeline began", hint="`millstream run --rebuild`")
    began = {topic: {int(p): offset for p, offset in found.items()} for topic, found in start.items()}
    return Position.restore(began, entry.offsets, entry.state)
