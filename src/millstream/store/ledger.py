"""What a ledger of batches says, whichever engine keeps it: how many it keeps, and which batch may come again.

Invariant: a batch is in the ledger exactly if its changes are in the views. The ledger keeps the newest batches, and always
the last one of every checkpoint, because only that one may come again; the admission counts of older batches
are summed into one row per partition (batch −1), and rows that were refused are counted when their dead letters go, so totals
never lose anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from millstream.errors import CheckpointMismatch, PipelineError
from millstream.store.contract import COUNTS, REJECTS, Batch, Offsets

KEPT = 1000
"""Batches of a pipeline that the ledger keeps."""
SUMMED = -1
"""The number under which the admission counts of batches that are no longer kept stand together."""
PLANNED = "planned"
"""Where the state of a batch may say at which offsets it was planned to end: a log with gaps has no records up to there."""

LETTERS = pa.schema([("pipeline", pa.string()), ("batch", pa.int64()), *REJECTS])
ADMITTED = pa.schema([("pipeline", pa.string()), *COUNTS])


def offsets_to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as JSON can say them."""
    return {topic: {str(partition): at for partition, at in each.items()} for topic, each in offsets.items()}


def offsets_from_json(stored: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of :func:`offsets_to_json`."""
    return {topic: {int(partition): at for partition, at in each.items()} for topic, each in stored.items()}


def is_there(
    pipeline: str, batch: Batch, newest: int, offsets: Mapping[str, Mapping[str, int]], state: Mapping[str, Any]
) -> bool:
    """Whether a batch is there, given what the ledger has of the newest one of its checkpoint.

    Spark runs its last batch again as it was planned, so only the newest can come again, and it must end where the stored one
    does. Anything else was planned anew, from a checkpoint that is not the one of these views: its records are not in them.
    """
    what = f"pipeline {pipeline!r}: batch {batch.batch} of checkpoint {batch.checkpoint}"
    if batch.batch == newest + 1:
        return False
    if batch.batch > newest:
        raise PipelineError(
            f"pipeline {pipeline!r}: found batch {batch.batch} of checkpoint {batch.checkpoint}, expected {newest + 1};"
            " nothing was written",
            hint="the views have lost batches, as a standby has that was promoted before it had them all: restore them, or"
            " `millstream run --rebuild` computes them anew from the log",
        )
    hint = "`millstream run --rebuild` computes the views anew from the log, or restore the checkpoint that belongs to them"
    if batch.batch < newest:
        raise CheckpointMismatch(
            f"{what} comes again, but batch {newest} is stored already: the checkpoint is older than the views; nothing was written",
            hint=hint,
        )
    for stored, found in (
        (offsets, offsets_to_json(batch.offsets)),
        (state.get(PLANNED, {}), batch.state.get(PLANNED, {})),
    ):
        for topic, each in stored.items():
            for p, at in each.items():
                if found and (other := found.get(topic, {}).get(p)) != at:
                    raise CheckpointMismatch(
                        f"{what} ends at {topic}/{p} offset {other}; the stored one at {at}: it was planned anew, from a"
                        " checkpoint that is not the one of these views; nothing was written",
                        hint=hint,
                    )
    return True
