"""What went wrong, in our words: the cause, the place, and what to do; never a Java stack.

When a user's expression fails, Spark says how but not where. The records of the failed batch are then decoded again,
half by half, until the one record and the one expression are found.
"""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from pyspark.errors import PySparkException

from millstream import errors
from millstream.errors import (
    CheckpointMismatch,
    DiskFull,
    ExpressionFailed,
    MillstreamError,
    OffsetOutOfRange,
    SparkError,
)
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain, Feed
from millstream.plan.prune_columns import reads_headers
from millstream.runtime.delivery import Position
from millstream.spark.internals.driver_process import active_context
from millstream.spark.lowering import decode
from millstream.spark.records import batch_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")

_OURS = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+millstream\.errors\.(\w+): (.+)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.+)")
_OF_THE_DATA = re.compile(r"SQLSTATE: (22|38|39|P0)")
"""Spark's states for values that an expression cannot take, and for functions of the user's that raise."""
_GONE = re.compile(r"offsets (\d+) to (\d+) are gone")
_BEYOND = re.compile(r"offset (\d+) is beyond the end; the next one is (\d+)")
_VALUE = re.compile(r"SQLSTATE: 22")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded|\bos error (28|122)\b")
_RAISED = re.compile(r"^(\w[\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
_CAUSED = re.compile(r"^(?:Caused by)?: (\w[\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE)
"""What Python says last of what was raised, and what Java does."""
_STREAM = re.compile(r"^\[STREAM_FAILED\] Query .* terminated with exception: (.+?)(?: SQLSTATE: \w+)?$")
_WORKER = re.compile(
    r"worker exited unexpectedly \(crashed\)|terminated with exception: (?:Broken pipe|Connection reset)\b"
)
"""What Spark says when a Python process of its own is gone: of a worker, and of the one that workers are forked from."""
_HINT = "nothing of the batch was written; run it with --debug for Spark's own account"


def explain(
    error: BaseException, spark: SparkSession, pipeline: Pipeline, chain: Chain, position: Position
) -> MillstreamError:
    """Turn the end of a query into one of our errors."""
    if isinstance(error, MillstreamError):
        return error
    text = str(error) or type(error).__name__
    if _NO_ROOM.search(text) and not _VALUE.search(text):
        return _no_room(pipeline)
    if ours := ours_in(text):
        kind, message = ours
        message = f"pipeline {pipeline.name}: {message}"
        hint = getattr(kind, "advice", _HINT)
        return _out_of_range(message) if kind is OffsetOutOfRange else kind(message, hint=hint)
    if "[CANNOT_LOAD_STATE_STORE" in text:
        return CheckpointMismatch(
            f"pipeline {pipeline.name}: the state in its checkpoint {pipeline.checkpoint} cannot be read: {cause_of(text)}",
            hint="`millstream run --rebuild` computes the views anew from the log, or restore the checkpoint from a backup that is as new"
            " as the views",
        )
    if _WORKER.search(text) and not _VALUE.search(text):
        return SparkError(
            f"pipeline {pipeline.name} stopped: a Python process of Spark's was killed, or crashed; the batch at hand was not finished",
            hint="run it again: what was done before stays. If memory was short (see the system's log), give it less at once:"
            " --rate-limit N",
        )
    if _OF_THE_DATA.search(text):
        found = _culprit(spark, pipeline, chain, position)
        if found is not None:
            return found
    return SparkError(
        f"pipeline {pipeline.name} stopped: {cause_of(text)}",
        hint=_HINT,
    )


@contextmanager
def room_told(pipeline: Pipeline) -> Iterator[None]:
    """Turn a full disk under our own files into one of our errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_room(pipeline) from error


def tells_room(compute: Callable[Concatenate[Pipeline, P], T]) -> Callable[Concatenate[Pipeline, P], T]:
    """The same for a function of a pipeline."""

    @wraps(compute)
    def told(pipeline: Pipeline, /, *args: P.args, **settings: P.kwargs) -> T:
        with room_told(pipeline):
            return compute(pipeline, *args, **settings)

    return told


def _no_room(pipeline: Pipeline) -> DiskFull:
    """The error for a full disk, with the room that there is where a run writes."""
    context = active_context()
    temporary = context and context.getConf().get("spark.local.dir")
    folders = {"its checkpoint": pipeline.checkpoint, "Spark's temporary files": temporary or tempfile.gettempdir()}
    rooms = []
    for what, folder in folders.items():
        with suppress(OSError):
            rooms.append(f"{what} in {folder}: {shutil.disk_usage(_there(Path(folder))).free >> 10:,} KB free")
    return DiskFull(
        f"pipeline {pipeline.name}: a disk is full; {', '.join(rooms)}",
        hint="nothing of the batch was written; free space there and run again: it goes on where the views are",
    )


def _there(folder: Path) -> Path:
    """A folder, or what it would be made in."""
    return folder if folder.exists() else _there(folder.parent)


def ours_in(text: str) -> tuple[type[MillstreamError], str] | None:
    """The error of ours that a Python process of Spark's raised, and its message.

    Values of records stand in such texts too. So it counts only as the line after the frames of a stack, never in what Spark says
    of a value; and its hint, which is to be followed, is not taken from there.
    """
    for name, message in _OURS.findall(text) if not _VALUE.search(text) else ():
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, MillstreamError):
            return kind, message
    return None


def _out_of_range(message: str) -> OffsetOutOfRange:
    """That error wants the range, too, which its message names."""
    gone, beyond = _GONE.search(message), _BEYOND.search(message)
    missing = (0, 0)
    if gone:
        missing = int(gone[1]), int(gone[2]) + 1
    elif beyond:
        missing = int(beyond[2]), int(beyond[1])
    hint = "these records are lost to the views; `millstream run --rebuild` computes them anew from what the log has"
    return OffsetOutOfRange(message, missing=missing, hint=hint)


def cause_of(text: str) -> str:
    """The line of Spark's account that says why."""
    conditions = [found for found in _CONDITION.findall(text) if found[0] != "STREAM_FAILED"]
    if conditions:
        return f"{conditions[-1][1].split(' SQLSTATE')[0]} ({conditions[-1][0]})"
    raised = _RAISED.findall(text) or _CAUSED.findall(text)
    if raised:
        return f"{raised[-1][0].rsplit('.', 1)[-1]}: {raised[-1][1]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _STREAM.sub(r"\1", lines[0]) if lines else "no reason given"


def _culprit(spark: SparkSession, pipeline: Pipeline, chain: Chain, position: Position) -> ExpressionFailed | None:
    """Find the record and the expression that fail, beginning where the views are."""
    with open_log(pipeline.log, create=False, kafka=pipeline.kafka) as log:
        ends = {feed.source.topic: {p: b.end for p, b in log.bounds(feed.source.topic).items()} for feed in chain.feeds}

    def failing(feed: Feed, partition: int, low: int, high: int) -> str | None:
        topic = feed.source.topic
        records = batch_records(
            spark,
            pipeline.log,
            {topic: {partition: low}},
            {topic: {partition: high}},
            kafka=pipeline.kafka or {},
            headers=reads_headers([feed]),
        )
        frame = decode(records, replace(chain, feeds=(feed,)), pipeline.name)
        try:
            frame.write.format("noop").mode("overwrite").save()
        except PySparkException as error:
            return cause_of(str(error))
        return None

    for feed in chain.feeds:
        for partition, high in ends[feed.source.topic].items():
            low = position.offsets[feed.source.topic].get(partition, 0)
            if low >= high or failing(feed, partition, low, high) is None:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if failing(feed, partition, low, middle) else (middle, high)
            for each in feed.expressions:
                why = failing(replace(feed, expressions=(each,)), partition, low, high)
                if why is not None:
                    views = ", ".join(dict.fromkeys(chain.readers(feed.ports, each.name)))
                    return ExpressionFailed(
                        f"{_place(pipeline, views)}view {views}: {each.written} fails on {feed.source.topic}/{partition}"
                        f" offset {low}: {why}",
                        hint="use a form that gives null instead (try_cast, try_divide, …), keep such records out with where(),"
                        f' or define {feed.source.kind} {feed.source.name} with failed="dead_letter"; `millstream consume`'
                        " shows the record; then run again",
                    )
    return None


def _place(pipeline: Pipeline, views: str) -> str:
    """The place where the first of the views was defined, as the beginning of a message."""
    view = pipeline.views.get(views.split(", ")[0])
    return f"{view.place}: " if view is not None else ""
