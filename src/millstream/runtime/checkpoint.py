"""The identity of a checkpoint: which pipeline, definition and layout it is of, and where in the log it began.

Spark's batch numbers begin again with a new checkpoint, so the ledger names batches by checkpoint and number. A
checkpoint that is gone while the ledger is there, or the other way round, is an error: going on would skip or repeat records.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from millstream.address import parse_address
from millstream.durable import replace_file, unfinished_file
from millstream.errors import CheckpointMismatch, ConfigError
from millstream.log.heartbeat import Beat
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain
from millstream.plan.state_layout import difference, kernels, layout
from millstream.runtime.offset_log import newest_finished
from millstream.spark import private_folder
from millstream.spark.options import beats_beside
from millstream.store import Entry

spark_version = version("pyspark")
FORMAT = 2
"""Since 2 kernels are numbered by the names of views, and the layout of the chain is kept."""
BATCH = "batch-"
"""What the id of a batch begins with, where the ledger has the id of a checkpoint (:mod:`millstream.runtime.batch`)."""
_NAME = "millstream.json"


class Checkpoint(msgspec.Struct, frozen=True):
    """What the file ``millstream.json`` in a checkpoint's folder says."""

    id: str
    pipeline: str
    fingerprint: str
    start: dict[str, dict[int, int]]
    tasks: int
    """Tasks of a stage; buckets are dealt out by it, so it stays what it was at the start."""
    layout: dict[str, str] = {}
    """What has state under which number; see :mod:`millstream.plan.state_layout`. Those of format 1 do not say."""
    format: int = FORMAT
    epoch: int = 0
    """Above that of every earlier checkpoint of the pipeline: what is sent to sinks is numbered by it and the batch."""
    views: dict[str, str] = {}
    """The fingerprint of each view by itself, for :mod:`millstream.runtime.diff`; and of each kernel, with its kind."""
    kernels: dict[str, str] = {}
    topics: dict[str, str] = {}
    """The id of each topic, as its log has it; see :mod:`millstream.runtime.topic_identity`. Older ones do not say."""
    spark: str = ""
    """The version of Spark that wrote it; older ones do not say."""
    early: bool = False
    """Whether streams that only tell time are admitted where they are read; see :class:`~millstream.plan.chain.Chain`."""


def open_checkpoint(
    folder: Path,
    pipeline: Pipeline,
    chain: Chain,
    bounds: Mapping[str, Mapping[int, int]],
    last: Entry | None,
    tasks: int,
    epoch: int = 0,
    topics: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Read the identity, or make one for a pipeline that has never run; ``last`` is what the views' ledger says.

    ``bounds``, ``tasks``, ``epoch`` and ``topics``, their ids, count only for a new one.
    """
    path = identity_of(folder)
    rebuild = f"`millstream run --rebuild` computes the views anew from the log, or restore {folder} from a backup"
    found = read_checkpoint(folder)
    if found is None:
        if last is not None and last.checkpoint.startswith(BATCH):
            raise CheckpointMismatch(
                f"pipeline {pipeline.name}: its views were made by a batch, which leaves no state to go on from",
                hint="`millstream run --rebuild` computes the views anew as a stream, from the beginning of the log",
            )
        if last is not None:
            raise CheckpointMismatch(
                f"pipeline {pipeline.name}: its views are at batch {last.batch}, but the checkpoint {folder} is gone",
                hint=rebuild,
            )
        unfinished = unfinished_file(path)  # of a run that ended before its first batch
        if folder.exists() and any(each != unfinished for each in folder.iterdir()):
            raise CheckpointMismatch(
                f"{folder} holds something else than a checkpoint of Millstream", hint="name another with checkpoint="
            )
        return _make(path, pipeline, chain, bounds, tasks, epoch, topics or {})
    if found.pipeline != pipeline.name or found.fingerprint != pipeline.fingerprint():
        what = f"of pipeline {found.pipeline}" if found.pipeline != pipeline.name else "of another definition"
        raise CheckpointMismatch(
            f"pipeline {pipeline.name}: {folder} is {what}; its state does not fit",
            hint="`millstream plan` says what would change, `millstream run --rebuild` computes the views anew",
        )
    if other := difference(found.layout, layout(chain)):
        raise CheckpointMismatch(
            f"pipeline {pipeline.name}: {folder} was made by another version of Millstream, which lays out state otherwise: {other}",
            hint="`millstream run --rebuild` computes the views anew from the log, or go on with that version",
        )
    if found.spark and _minor(found.spark) != _minor(spark_version):
        raise CheckpointMismatch(
            f"pipeline {pipeline.name}: {folder} was written by Spark {found.spark}, and this is Spark {spark_version}; they do not"
            " promise to read each other's state",
            hint=f"`millstream run --rebuild` computes the views anew, or `pip install 'pyspark=={found.spark}'`",
        )
    if last is not None and last.checkpoint != found.id:
        raise CheckpointMismatch(
            f"pipeline {pipeline.name}: {folder} is not the checkpoint that its views were written from", hint=rebuild
        )
    return found


def began_at(folder: Path, last: Entry | None) -> dict[str, dict[int, int]]:
    """Where in the log the views of a pipeline began, as far as their ledger or the checkpoint say."""
    if last is not None:
        return {topic: {int(p): at for p, at in each.items()} for topic, each in last.state.get("start", {}).items()}
    try:
        found = read_checkpoint(folder)
    except CheckpointMismatch:
        return {}
    return found.start if found is not None else {}


def newest_entry(pipeline: str, lasts: Mapping[str, Entry | None]) -> Entry | None:
    """The newest entry of the ledgers of all stores, by their addresses; refuses stores that are not of one run.

    A process that is killed between two commits leaves one store a batch ahead, never more.
    """
    places = {address: (last.checkpoint, last.batch) if last else None for address, last in lasts.items()}
    there = [place for place in places.values() if place is not None]
    missing = 0 < len(there) < len(places) and max(batch for _, batch in there) > 0
    if missing or len({checkpoint for checkpoint, _ in there}) > 1 or _spread([batch for _, batch in there]) > 1:
        said = ", ".join(
            f"{address} at {f'batch {place[1]}' if place else 'nothing'}" for address, place in places.items()
        )
        raise CheckpointMismatch(
            f"pipeline {pipeline}: its stores do not belong together: {said}",
            hint="`millstream run --rebuild` computes the views anew from the log, or restore the store that is behind",
        )
    found = [last for last in lasts.values() if last is not None]
    return max(found, key=lambda last: last.batch, default=None)


def _spread(numbers: Sequence[int]) -> int:
    return max(numbers) - min(numbers) if numbers else 0


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The identity that a folder holds, or None."""
    path = identity_of(folder)
    if not path.exists():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Checkpoint)
    except msgspec.DecodeError as error:
        raise CheckpointMismatch(
            f"{path}: cannot be read: {error}", hint=f"restore {folder} from a backup, or `millstream run --rebuild`"
        ) from error
    if found.format > FORMAT:
        raise CheckpointMismatch(
            f"{path}: format {found.format}, this version reads {FORMAT}", hint="upgrade millstream"
        )
    return found


def folder_of(pipeline: Pipeline) -> Path:
    """The folder of a pipeline's checkpoint, on this machine or shared by several."""
    if "://" in pipeline.checkpoint:
        raise ConfigError(
            f"pipeline {pipeline.name}: found the checkpoint {pipeline.checkpoint}, expected a folder",
            hint="on a cluster, name one that all machines share, such as NFS",
        )
    return Path(pipeline.checkpoint).absolute()


def folder_for(base: Path, last: Entry | None) -> Path:
    """The folder of the checkpoint that the ledger's last entry was written from; ``base`` if there is none.

    Versions of a pipeline have folders side by side (``base``, ``base.2``, …), and which belongs to what is stored is said by the
    ledger alone, so that exchanging versions is one transaction and moves no files.
    """
    damaged = None
    for folder in versions(base):
        try:
            found = read_checkpoint(folder)
        except CheckpointMismatch:  # which opening it will say, and a rebuild removes it
            damaged = folder
            continue
        if found is not None and last is not None and found.id == last.checkpoint:
            return folder
    return damaged or base


def refuse_lost_views(base: Path, pipeline: Pipeline, addresses: Collection[str]) -> None:
    """Refuse to make a file of views anew where a checkpoint says that there was one: it would begin with nothing."""
    gone = [str(place) for place in map(parse_address, addresses) if isinstance(place, Path) and not place.exists()]
    for folder in versions(base) if gone else ():
        found = read_checkpoint(folder)
        if found is not None and found.fingerprint == pipeline.fingerprint() and newest_finished(folder) is not None:
            raise CheckpointMismatch(
                f"pipeline {pipeline.name}: its checkpoint {folder} is there, but its views in {gone[0]} are gone",
                hint=f"restore {gone[0]} from a backup, or `millstream run --rebuild` computes the views anew from the log",
            )


def fresh_folder(base: Path) -> Path:
    """A folder for another version, which is not there yet."""
    return next(
        folder for number in itertools.count(2) if not (folder := base.with_name(f"{base.name}.{number}")).exists()
    )


def versions(base: Path) -> list[Path]:
    """The folders of all versions."""
    return [base, *sorted(path for path in base.parent.glob(f"{base.name}.*") if path.suffix[1:].isdigit())]


def renumber(folder: Path, epoch: int) -> None:
    """Let a checkpoint that was made beside another come after it."""
    found = read_checkpoint(folder)
    if found is not None:
        _write(identity_of(folder), msgspec.structs.replace(found, epoch=max(epoch, found.epoch)))


def is_early(folder: Path) -> bool:
    """Whether streams are admitted where they are read: all are, but those of a checkpoint that was made otherwise."""
    found = read_checkpoint(folder)
    return found is None or found.early


def watermarks_of(folder: Path) -> Path:
    """The file by which the source of a stream learns the watermarks after a batch; this process has it for itself, the ledger for good."""
    return private_folder.folder("watermarks") / hashlib.sha256(bytes(folder.absolute())).hexdigest()


def write_watermarks(folder: Path, found: Mapping[str, Mapping[int, int]]) -> None:
    """Tell the source how far each partition's time has come."""
    _replace(watermarks_of(folder), msgspec.json.encode(found))


def write_beats(folder: Path, beats: Sequence[Beat]) -> None:
    """Tell the source the heartbeats that no batch has yet."""
    _replace(Path(beats_beside(str(watermarks_of(folder)))), msgspec.json.encode(beats))


def _replace(path: Path, data: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).rename(path)  # not durable, as it is written anew at every start


def identity_of(folder: Path) -> Path:
    """The file that says whose checkpoint a folder is; it is there from the start of a stream on."""
    return folder / _NAME


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _make(
    path: Path,
    pipeline: Pipeline,
    chain: Chain,
    bounds: Mapping[str, Mapping[int, int]],
    tasks: int,
    epoch: int,
    topics: Mapping[str, str],
) -> Checkpoint:
    start = {topic: dict(found) for topic, found in bounds.items()}
    made = Checkpoint(
        uuid.uuid4().hex,
        pipeline.name,
        pipeline.fingerprint(),
        start,
        tasks,
        layout(chain),
        epoch=epoch,
        views={name: pipeline.view_fingerprint(name) for name in pipeline.views},
        kernels={key: each.spec.tag for key, each in kernels(chain).items()},
        topics=dict(topics),
        spark=spark_version,
        early=chain.early,
    )
    _write(path, made)
    return made


def _write(path: Path, made: Checkpoint) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(made))
