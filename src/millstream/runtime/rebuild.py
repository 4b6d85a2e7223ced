"""Rebuild: a new version of a pipeline's views is computed from the log beside the old one, and takes its place when it has caught up.

The old version is read, and may go on running, until then; afterwards it is kept, and can be exchanged again.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from millstream.errors import PipelineError
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.checkpoint import folder_for, folder_of, read_checkpoint, renumber, versions
from millstream.runtime.delivery import Position
from millstream.runtime.diff import last_of
from millstream.runtime.ownership import claim_stores, exchange, open_sinks, refuse_beside
from millstream.runtime.run import Progress, run
from millstream.runtime.setup import chain_of
from millstream.runtime.sink_dispatch import IMPATIENT, epoch_after
from millstream.runtime.topic_identity import check_past
from millstream.store import StoreWriter
from millstream.store.versioned import NEXT, OLD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    takeover: bool = False,
    rate_limit: int | None = None,
    forget_history: bool = False,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> Progress:
    """Compute all views anew beside the stored ones, then let them take their place; give the last progress.

    One that was interrupted goes on where it was. Raises AlreadyRunning if the old version still runs when the new one has caught
    up, unless ``takeover``: that one then ends; PipelineError if a view with a sink is kept nowhere; OffsetOutOfRange if the log has
    lost what the stored version was made from, unless ``forget_history``.

    :param pipeline: the pipeline
    :param spark: the session to compute in; one is started if there is none
    :param takeover: whether the old version, if it runs, is ended
    :param rate_limit: how many records a batch has at most
    :param forget_history: whether views may lack what the log has lost
    :param progress: called after every batch
    :param stop: ends it when set
    """
    refuse_beside(pipeline)
    check_history(pipeline, forget=forget_history)
    stop = stop or threading.Event()

    def catch_up() -> Progress:
        return run(pipeline, spark=spark, once=True, beside=True, rate_limit=rate_limit, progress=progress, stop=stop)

    done = catch_up()
    if not stop.is_set():
        _exchange(pipeline, NEXT, OLD, takeover=takeover, meanwhile=catch_up)
    return done


def check_history(pipeline: Pipeline, *, forget: bool) -> None:
    """Refuse a rebuild where the log has not what the stored version was made from: the new one would lack it."""
    last = last_of(pipeline)
    if last is not None:
        topics = {feed.source.topic for feed in chain_of(pipeline).feeds}
        with open_log(pipeline.log, create=False, kafka=pipeline.kafka) as log:
            position = Position.restore({}, last.offsets, last.state).only(topics)
            check_past(log, pipeline.name, position, forget=forget)


def roll_back(pipeline: Pipeline, *, takeover: bool = False) -> None:
    """Let the version before the last rebuild take its place again; the newer one is kept beside it.

    :param pipeline: the pipeline
    :param takeover: whether a run of it is ended
    :raises AlreadyRunning: if the pipeline runs, unless ``takeover``
    :raises PipelineError: if there is no version before

    >>> from tempfile import TemporaryDirectory
    >>> from millstream import Pipeline
    >>> with TemporaryDirectory() as folder:
    ...     shop = Pipeline("shop", to=f"sqlite:{folder}/views.db")
    ...     _ = shop.view("all", shop.stream("clicks", "page string").group_by().agg(n="count(*)"))
    ...     try:
    ...         roll_back(shop)
    ...     except PipelineError as error:
    ...         print(error.message)
    pipeline shop: there is no version shop~old to take its place
    """
    refuse_beside(pipeline)
    _exchange(pipeline, OLD, NEXT, takeover=takeover)


def _exchange(
    pipeline: Pipeline, coming: str, going: str, *, takeover: bool, meanwhile: Callable[[], object] = lambda: None
) -> None:
    with ExitStack() as stack:
        addresses = {output.to for output in chain_of(pipeline).outputs}
        writers = claim_stores(stack, pipeline.name, addresses, takeover=takeover)
        meanwhile()  # reads what the old version had read by the time it ended
        sinks = open_sinks(stack, pipeline)
        stores = {address: writer for address, (writer, _) in writers.items()}
        last = next(filter(None, (writer.last(pipeline.name + coming) for writer in stores.values())), None)
        if last is None:
            raise PipelineError(
                f"pipeline {pipeline.name}: there is no version {pipeline.name + coming} to take its place",
                hint="`millstream rebuild` makes one, and keeps the one before it",
            )
        fence = max(fence for _, fence in writers.values())
        renumber(folder_for(folder_of(pipeline), last), epoch_after(fence, sinks, IMPATIENT))
        exchange(pipeline.name, stores, coming, going)
        tidy(pipeline, stores)


def tidy(pipeline: Pipeline, stores: Mapping[str, StoreWriter]) -> None:
    """Remove checkpoints of versions that are no more."""
    names = [pipeline.name + version for version in ("", NEXT, OLD)]
    known = {last.checkpoint for writer in stores.values() for name in names if (last := writer.last(name)) is not None}
    for folder in versions(folder_of(pipeline)):
        found = read_checkpoint(folder)
        if found is not None and found.id not in known:
            shutil.rmtree(folder, ignore_errors=True)
