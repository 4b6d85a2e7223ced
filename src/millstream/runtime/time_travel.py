"""Time travel: a view as it was after an earlier batch, computed anew from the log at the offsets that the ledger has of it.

Nothing is kept for it but what is there anyway: the log and the ledger. So it reaches back as far as both do, and costs what
computing the view over that much of the log costs.
"""

from __future__ import annotations

from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import ConfigError, UnknownView
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.batch import rows_made
from millstream.runtime.failure import tells_room
from millstream.runtime.replay import entries_of, position_of, replay
from millstream.runtime.setup import chain_of
from millstream.runtime.topic_identity import check_past
from millstream.spark.session import jvm_told
from millstream.store import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


@jvm_told()
@tells_room
def as_of(pipeline: Pipeline, view: str, at: int | datetime, *, spark: SparkSession | None = None) -> pa.Table:
    """All rows of a view as they were after a batch, or at a time: after the last batch that was committed by then.

    Raises ConfigError if the ledger has no such batch any more, OffsetOutOfRange where the log has not all of its records.

    :param pipeline: the pipeline
    :param view: the name of one of its views
    :param at: the number of a batch, or an aware datetime
    :param spark: the session to compute in; one is started if there is none
    """
    if view not in pipeline.views:
        raise UnknownView(f"no view {view} in pipeline {pipeline.name}; there are {', '.join(pipeline.views)}")
    pipeline.views[view].refuse_unkept()
    entry = _entry(pipeline, entries_of(pipeline, pipeline.views[view].to), at)
    alone = copy(pipeline)
    alone.views, alone.sinks = {view: pipeline.views[view]}, {}
    chain = chain_of(alone)
    topics = {feed.source.topic for feed in chain.feeds}
    position = position_of(entry).only(topics)
    with open_log(pipeline.log, create=False, kafka=pipeline.kafka) as log:
        check_past(log, pipeline.name, position)
    replayed = replay(alone, chain, entry, position, spark)
    return rows_made(replayed.computed.targets[view], replayed.taken[view])


def _entry(pipeline: Pipeline, entries: Sequence[Entry], at: int | datetime) -> Entry:
    for entry in entries:
        if entry.batch == at if isinstance(at, int) else entry.committed_at <= at:
            return entry
    newest, oldest = entries[0], entries[-1]
    wanted = f"batch {at}" if isinstance(at, int) else f"batch before {at:%Y-%m-%d %H:%M:%S}"
    raise ConfigError(
        f"pipeline {pipeline.name}: the ledger has no {wanted}",
        hint=f"it has batches {oldest.batch} ({oldest.committed_at:%Y-%m-%d %H:%M:%S}) to {newest.batch}"
        f" ({newest.committed_at:%Y-%m-%d %H:%M:%S})",
    )
