"""What Spark has planned and finished, by the files of its checkpoint: ``offsets/N`` comes before batch N, ``commits/N`` after it.

Spark's local files are not synced, so a power cut may take the newest of them while the views are safe. :func:`secure` syncs ``offsets/N``
before anything of batch N is written elsewhere: what the views have was planned for sure, and a batch that comes again is the same
one. Nothing else of the folder needs it: a folder that lacks more does not fit to the views, and is refused here or by Spark.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from millstream.durable import sync
from millstream.errors import CheckpointMismatch
from millstream.log.heartbeat import Beat
from millstream.spark.options import beats_of, places_of
from millstream.store import Entry

Offsets = dict[str, dict[str, int]]
"""Topic → partition, as text → the next offset to read."""

_REBUILD = "`millstream run --rebuild` computes the views anew from the log"


def newest_planned(folder: Path) -> int | None:
    """The newest batch that Spark has planned."""
    return _newest(folder / "offsets")


def newest_finished(folder: Path) -> int | None:
    """The newest batch that Spark has finished: every store and sink has it."""
    return _newest(folder / "commits")


class Plan(NamedTuple):
    """Where a batch was planned to end, and the heartbeats in it."""

    ends: Offsets
    beats: list[Beat]


def secure(folder: Path, batch: int) -> Plan:
    """Let a batch be planned for good; give its plan."""
    for path in (folder / "offsets" / str(batch), folder / "offsets"):
        sync(path)
    return plan_of(folder, batch)


def plan_of(folder: Path, batch: int) -> Plan:
    """The plan of a batch; CheckpointMismatch if its file is not what Spark has written."""
    path = folder / "offsets" / str(batch)
    try:
        _, _, *sources = path.read_text(encoding="utf-8").splitlines()
        found: dict[str, Any] = {}
        for line in sources:
            found |= json.loads(line) if line != "-" else {}  # which is how Spark says that a source has none
        ends = {topic: {p: int(at) for p, at in each.items()} for topic, each in places_of(found).items()}
        return Plan(ends, beats_of(found))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointMismatch(
            f"{path}: cannot be read: {error}", hint=f"{_REBUILD}, or restore {folder} from a backup"
        ) from error


def check_progress(folder: Path, pipeline: str, lasts: Mapping[str, Entry | None]) -> None:
    """Refuse a checkpoint that is older than the views in their stores (by address), newer than them, or has lost a part."""
    planned, finished = newest_planned(folder), newest_finished(folder)
    at = {address: last.batch if last else -1 for address, last in lasts.items()}
    newest, oldest = max(at.values(), default=-1), min(at.values(), default=-1)
    whole = f"{_REBUILD}, or restore {folder} from a backup that is as new as the views"
    if planned is None and (newest >= 0 or finished is not None):
        raise CheckpointMismatch(f"pipeline {pipeline}: {folder / 'offsets'} is gone, or empty", hint=whole)
    if planned is None:
        return
    if planned < newest:
        raise CheckpointMismatch(
            f"pipeline {pipeline}: the checkpoint {folder} is older than the views: it ends at batch {planned}, they are at"
            f" batch {newest}, {newest - planned} later; what came since would be lost",
            hint=whole,
        )
    if finished is not None and finished > oldest:
        where = next(address for address, batch in at.items() if batch == oldest)
        has = f"at batch {oldest}" if oldest >= 0 else "empty"
        raise CheckpointMismatch(
            f"pipeline {pipeline}: the views in {where} are older than the checkpoint: they are {has}, it has finished"
            f" batch {finished}",
            hint=f"{_REBUILD}, or restore the views in {where} from a backup, or a server, that has all that the checkpoint has: a"
            " standby that was promoted may lack the last batches unless its replication is synchronous",
        )
    if planned > (-1 if finished is None else finished) + 1:
        raise CheckpointMismatch(
            f"pipeline {pipeline}: {folder / 'commits'} has lost batches: batch {planned} is planned, and the one before it is"
            " not finished",
            hint=whole,
        )
    for operator in _operators(folder, finished):
        state = folder / "state" / operator
        if not state.is_dir() or not any(state.iterdir()):
            raise CheckpointMismatch(f"pipeline {pipeline}: {state} is gone: the state of its views", hint=whole)
        for path in state.rglob("*"):  # none of Spark's files is empty, but for temporary ones that were left
            if path.is_file() and not path.name.endswith((".tmp", ".tmp.crc")) and not path.stat().st_size:
                raise CheckpointMismatch(f"pipeline {pipeline}: {path} is empty: it was cut short", hint=whole)


def unwritten(folder: Path, lasts: Mapping[str, Entry | None]) -> int | None:
    """The batch that is planned and that no store has, if there is one."""
    planned = newest_planned(folder)
    if (
        planned is None
        or planned == newest_finished(folder)
        or any(last and last.batch >= planned for last in lasts.values())
    ):
        return None
    return planned


def drop_plan(folder: Path, planned: int) -> None:
    """Let Spark plan a batch again. What tasks of it wrote of state has names of its own."""
    for name in (f".{planned}.crc", str(planned)):  # in this order: a checksum that stays would be that of another plan
        (folder / "offsets" / name).unlink(missing_ok=True)


def drop_unplanned(folder: Path) -> None:
    """Where nothing is planned, remove the state that tasks of an unplanned batch left: Spark begins only without any."""
    if newest_planned(folder) is None:
        shutil.rmtree(folder / "state", ignore_errors=True)


def _newest(folder: Path) -> int | None:
    if not folder.is_dir():
        return None
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=None)


def _operators(folder: Path, finished: int | None) -> list[str]:
    """The operators that have state, by the newest commit; none where it does not say."""
    if finished is None:
        return []
    path = folder / "commits" / str(finished)
    try:
        said = json.loads(path.read_text(encoding="utf-8").splitlines()[1])
        return list(said.get("stateUniqueIds") or ())
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise CheckpointMismatch(
            f"{path}: cannot be read: {error}", hint=f"{_REBUILD}, or restore {folder} from a backup"
        ) from error
