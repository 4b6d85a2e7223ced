"""Erasing all who wait, in one go: records blanked, views computed anew beside the old ones and exchanged, all that was before removed.

Each step leaves something that is right, and is written down in the register when it is done. A run that was killed at any of them is
begun again and goes on there, with the same requests and the same pseudonyms. It ends with a look at every place: who is still found
anywhere stays a request.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from millstream.address import PostgresAddress, parse_address
from millstream.erase import audit, refuse
from millstream.erase.audit import Said
from millstream.erase.blank import Eraser, Wish, blank_archive, blank_topic, compacted_file
from millstream.erase.certificate import Certificate, Removed, certify, write
from millstream.erase.form import forms_of
from millstream.erase.needles import Needles
from millstream.erase.pseudonym import Pseudonyms, new_key
from millstream.erase.register import Register, Request
from millstream.erase.request import common_log, register_of, sources_in, stores_of
from millstream.erase.scan import Found
from millstream.erase.survey import Whereabouts, in_columns, look, spark_log, survey, unjudged, with_dead_letters
from millstream.errors import EraseError, StillThere
from millstream.failpoint import failpoint
from millstream.log.embedded.engine import SqliteLog
from millstream.pipeline import Pipeline
from millstream.runtime.checkpoint import folder_of
from millstream.runtime.ownership import claim_stores
from millstream.runtime.rebuild import rebuild, tidy
from millstream.spark import private_folder
from millstream.store import open_writer
from millstream.store.sqlite.file import ViewFile
from millstream.store.versioned import NEXT, OLD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.relation.nodes import Source

NOT_COVERED = (
    "backups, snapshots and replicas of disks, and blocks that a file system has freed",
    "programs that have read the topics, and what they keep",
    "a database from which a topic was captured",
)


class _Begun(msgspec.Struct):
    """What a run works with, from its beginning to its end, however often it is begun again."""

    at: str
    requests: list[str]
    key: bytes
    texts: list[str]
    records: dict[str, int]
    before: list[tuple[str, int, str]]


@dataclass(frozen=True)
class Erased:
    """The outcome: the certificate, where it is, and the audit log's last hash. Of a dry run only the certificate."""

    certificate: Certificate
    path: Path | None = None
    head: str = ""


@dataclass
class _Job:
    pipelines: Sequence[Pipeline]
    log: SqliteLog
    register: Register
    requests: list[Request]
    begun: _Begun
    erasers: dict[str, Eraser]
    places: Whereabouts
    tell: Callable[[str], None]
    removed: list[Removed] = field(default_factory=list)

    @property
    def needles(self) -> Needles:
        return Needles(tuple(self.begun.texts))

    def once(self, step: str, work: Callable[[], object]) -> None:
        """Do a step, unless an earlier run has done it."""
        if self.register.step(step) is None:
            work()
            failpoint(f"erase.{step.partition(':')[0]}.done")
            self.register.take_step(step)


def erase(
    pipelines: Sequence[Pipeline],
    *,
    topics: Sequence[Source] = (),
    spark: SparkSession | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Erased:
    """Erase everybody who waits, and certify it; with ``dry_run`` look where they are, and change nothing.

    ``topics`` define topics that no pipeline reads. Raises AlreadyErasing and AlreadyRunning where another process is at it, StillThere
    if somebody was found in a place afterwards; then nothing is certified, and the requests wait on.
    """
    address = common_log(pipelines)
    path = register_of(address)
    with ExitStack() as stack:
        log = stack.enter_context(closing(SqliteLog(_path_of(address), create=False)))
        register = stack.enter_context(Register(path, create=False))
        stack.enter_context(register.alone())
        job = _begin(pipelines, topics, log, register, tell, dry_run=dry_run)
        if dry_run:
            return Erased(_certified(job, _look(job)))
        stores = stores_of(pipelines)
        again = refuse.check(pipelines, stores, job.erasers)
        for pipeline in pipelines:
            claim_stores(stack, pipeline.name, stores_of([pipeline]), takeover=False)
        if register.step("begun") is None:
            register.take_step("begun", msgspec.msgpack.encode(job.begun))
        failpoint("erase.begun")
        for pipeline in again:
            job.once(f"cleared:{pipeline.name}", partial(_clear, pipeline, NEXT))
        job.once("blanked", partial(_blank, job))
        for pipeline in again:
            tell(f"{pipeline.name}: views are computed anew")
            job.once(f"rebuilt:{pipeline.name}", partial(rebuild, pipeline, spark=spark, takeover=True))
            _clear(pipeline, OLD)
            job.removed.append(
                Removed(f"pipeline {pipeline.name}", "views and state computed anew, earlier versions removed")
            )
        return _finish(job, stores)


def _begin(
    pipelines: Sequence[Pipeline],
    topics: Sequence[Source],
    log: SqliteLog,
    register: Register,
    tell: Callable[[str], None],
    *,
    dry_run: bool,
) -> _Job:
    """All that is known before anything is changed; of a run that has not ended, what it knew then."""
    kept = register.step("begun")
    begun = None if kept is None else msgspec.msgpack.decode(kept, type=_Begun)
    requests = [each for each in register.waiting() if begun is None or each.id in begun.requests]
    wishes = tuple(dict.fromkeys(each.wish for each in requests if each.wish is not None))
    if not wishes:
        raise EraseError("nobody waits to be erased", hint="`millstream erase request FILE… --subject KIND=NAME`")
    key = new_key() if begun is None else begun.key
    erasers = _erasers([*sources_in(pipelines), *topics], wishes, Pseudonyms(key))
    odd = unjudged(pipelines, erasers)
    erasers = with_dead_letters(log, {topic: replace(each, unjudged=odd) for topic, each in erasers.items()})
    places = Whereabouts.of(log, erasers, stores_of(pipelines), pipelines)
    if begun is None:
        tell("looking for them")
        needles, records = survey(log, erasers, places.archives)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        begun = _Begun(at, [each.id for each in requests], key, list(needles.texts), records, [])
    elif dry_run:
        raise EraseError("an erasure was begun and has not ended", hint="`millstream erase run FILE…` goes on with it")
    job = _Job(pipelines, log, register, requests, begun, erasers, places, tell)
    if kept is None and not dry_run:
        begun.before = [(each.place, each.count, each.odd) for each in _look(job)]
    done = {"records": "blanked", "fields": "personal columns emptied"}
    modes = " or ".join(done[mode] for mode in dict.fromkeys(each.mode for each in requests))
    for topic, count in begun.records.items():
        archived = ", its archive too" if topic in places.archives else ""
        job.removed.append(Removed(f"topic {topic}", f"{count} records {modes}{archived}"))
    return job


def _erasers(sources: Sequence[Source], wishes: tuple[Wish, ...], pseudonyms: Pseudonyms) -> dict[str, Eraser]:
    """Who blanks which topic: those that know a kind of subject that is meant."""
    found = {}
    for topic, form in forms_of(sources).items():
        meant = tuple(each for each in wishes if each.subject.kind in form.subjects)
        if meant:
            found[topic] = Eraser(form, meant, pseudonyms)
    return found


def _blank(job: _Job) -> None:
    """Blank the records of all topics, archived and live."""
    for topic, eraser in job.erasers.items():
        job.tell(f"topic {topic}: records are blanked")
        archive, blanked = job.places.archives.get(topic), 0
        for partition in range(job.log.topic(topic).partitions) if archive is not None else ():
            assert archive is not None  # noqa: S101
            blanked += blank_archive(archive, partition, eraser)
        blanked += blank_topic(job.log, topic, eraser)
        if blanked and topic not in job.begun.records:  # it came since, or was declared since
            job.removed.append(Removed(f"topic {topic}", f"{blanked} records"))


def _clear(pipeline: Pipeline, version: str) -> None:
    """Remove a version of a pipeline's views, the checkpoints that are no version's any more, and what Spark said of them."""
    with ExitStack() as stack:
        writers = {each: stack.enter_context(open_writer(each)) for each in stores_of([pipeline])}
        for writer in writers.values():
            writer.forget(pipeline.name + version)
        tidy(pipeline, writers)
    with contextlib.suppress(FileNotFoundError):
        os.truncate(spark_log(folder_of(pipeline)), 0)
    private_folder.remove_left_behind()
    failpoint("erase.cleared")


def _finish(job: _Job, stores: Sequence[str]) -> Erased:
    """Write files anew, look once more, certify, and forget who it was."""
    for address in stores:
        with open_writer(address) as writer:
            writer.unhide(job.begun.requests)
        job.tell(f"{address}: written anew")
        _rewrite(address)
        job.removed.append(Removed(f"views {address}", "written anew without free pages"))
    job.tell("log: written anew")
    compacted_file(job.log.store, "log")
    job.removed.append(Removed("log", "written anew without free pages, write-ahead log emptied"))
    failpoint("erase.rewritten")
    job.tell("looking for them once more")
    certificate = _certified(job, _look(job))
    if certificate.places_after:
        left = [each.place for each in certificate.looked if each.after]
        job.register.begin_again()  # what came meanwhile, or is declared until then, is blanked the next time
        raise StillThere(
            f"still found in {', '.join(left[:5])}{' and others' if len(left) > 5 else ''}; nothing is certified",
            hint="a topic that nobody declares is not blanked: say whose its records are, in a pipeline or in [erase] of the settings; then run it again",
        )
    path, data = write(certificate, job.register.path.with_name(f"{job.register.path.name}.certificates"))
    hashed = audit.hash_of(data)
    head = audit.enter(job.log, [Said("erased", r.id, r.kind, r.digest, r.mode, hashed) for r in job.requests])
    failpoint("erase.certified")
    job.register.settle(job.requests, "erased")
    return Erased(certificate, path, head)


def _look(job: _Job) -> list[Found]:
    """Look everywhere: by the columns that tell whose something is, and for texts in all that can be decoded."""
    subjects = {each.subject for each in job.requests if each.subject is not None}
    by_column = in_columns(job.log, job.erasers, job.places.archives, job.pipelines, subjects)
    return [*by_column, *look(job.places, job.needles)]


def _rewrite(address: str) -> None:
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.erase.postgres import rewritten

        rewritten(place)
        return
    with closing(ViewFile(Path(place), create=False)) as file:
        compacted_file(file, "views")


def _certified(job: _Job, after: Sequence[Found]) -> Certificate:
    groups = [
        f"group {group.name}, which reads topic {place.topic}: what its members keep"
        for group in job.log.groups()
        for place in group.offsets
        if place.topic in job.erasers and group.name not in {each.name for each in job.pipelines}
    ]
    servers = [address for address in stores_of(job.pipelines) if isinstance(parse_address(address), PostgresAddress)]
    more = [f"{address}: its server's write-ahead log, replicas and backups" for address in servers]
    before = [Found(*each) for each in job.begun.before] or list(after)
    not_covered = [*NOT_COVERED, *more, *dict.fromkeys(groups)]
    texts, at = len(job.begun.texts), job.begun.at
    return certify(job.log.url, at, job.requests, job.removed, texts, before, after, not_covered)


def _path_of(address: str) -> Path:
    from millstream.address import parse_log

    return Path(parse_log(address).place)
