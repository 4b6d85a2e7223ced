"""The survey: whose records there are, what to look for, and every place in which somebody of them may be."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from millstream.address import PostgresAddress, parse_address
from millstream.erase.blank import Eraser
from millstream.erase.form import Subject
from millstream.erase.needles import Needles
from millstream.erase.scan import Found, scan_database, scan_file, scan_folder, scan_parquet
from millstream.erase.trace import subject_columns
from millstream.errors import ViewStoreUnavailable
from millstream.log.archive import Archive, archive_of
from millstream.log.embedded.engine import SqliteLog
from millstream.pipeline import Pipeline
from millstream.relation.nodes import source_of
from millstream.runtime.checkpoint import folder_of, versions
from millstream.spark import private_folder
from millstream.store import open_reader
from millstream.store.sqlite.file import ViewFile

DEAD = ".dead"
"""What the name of a queue's topic of dead letters ends with."""


@dataclass(frozen=True)
class Whereabouts:
    """Everything that is looked at: the log, its archives, stores of views and checkpoints."""

    log: SqliteLog
    archives: Mapping[str, Archive]
    stores: tuple[str, ...]
    checkpoints: tuple[Path, ...]

    @classmethod
    def of(
        cls, log: SqliteLog, topics: Iterable[str], stores: Iterable[str], pipelines: Sequence[Pipeline]
    ) -> Whereabouts:
        """Those of some pipelines and topics."""
        archives = {topic: found for topic in topics if (found := archive_of(log, topic)) is not None}
        return cls(log, archives, tuple(stores), tuple(folder_of(each) for each in pipelines))


def with_dead_letters(log: SqliteLog, erasers: Mapping[str, Eraser]) -> dict[str, Eraser]:
    """The topics that are there, with those of dead letters of their queues, which have records of the same form."""
    there = {topic.name for topic in log.topics()}
    found = {topic: eraser for topic, eraser in erasers.items() if topic in there}
    return found | {topic + DEAD: eraser for topic, eraser in found.items() if topic + DEAD in there}


def records_of(log: SqliteLog, topic: str, archive: Archive | None) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of every record of a topic, archived and live."""
    for partition, bound in log.bounds(topic).items():
        if archive is not None and (span := archive.span(partition)) is not None:
            for batch in archive.read(partition, span[0], min(span[1], bound.start)):
                yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        offset = bound.start
        while offset < bound.end:
            records = log.read(topic, partition, offset, 5000)
            if not records:
                break
            yield from ((record.key, record.value) for record in records)
            offset = records[-1].offset + 1


def survey(
    log: SqliteLog, erasers: Mapping[str, Eraser], archives: Mapping[str, Archive]
) -> tuple[Needles, dict[str, int]]:
    """What to look for, and how many records of each topic are the subjects'.

    A value that a record of somebody else has too is nobody's.
    """
    counts, texts = Counter[str](), set[str]()
    for topic, eraser in erasers.items():
        for key, value in records_of(log, topic, archives.get(topic)):
            if (wish := eraser.wish(key, value)) is not None:
                counts[topic] += 1
                texts |= {wish.subject.name, *eraser.form.personal_texts(value)}
    texts |= {wish.subject.name for eraser in erasers.values() for wish in eraser.wishes}
    needles, shared = Needles.of(texts), set[str]()
    pattern = needles.pattern
    if pattern is not None:
        each_alone = {text: Needles.of([text]) for text in needles.texts}
        names = {wish.subject.name for eraser in erasers.values() for wish in eraser.wishes}
        for topic, eraser in erasers.items():
            for key, value in records_of(log, topic, archives.get(topic)):
                if value is not None and pattern.search(value) and eraser.wish(key, value) is None:
                    shared |= {text for text, alone in each_alone.items() if text not in names and alone.count(value)}
    return Needles.of(texts, shared), dict(counts)


def in_columns(
    log: SqliteLog,
    erasers: Mapping[str, Eraser],
    archives: Mapping[str, Archive],
    pipelines: Iterable[Pipeline],
    subjects: Collection[Subject],
) -> Iterator[Found]:
    """How many records of topics, and rows of views in all their versions, are the subjects' by what their columns say."""
    for topic, eraser in erasers.items():
        theirs = sum(eraser.wish(key, value) is not None for key, value in records_of(log, topic, archives.get(topic)))
        yield Found(f"topic {topic}, by its columns", theirs)
    for view in (view for pipeline in pipelines for view in pipeline.views.values() if view.kept):
        names = {
            column: [each.name for each in subjects if each.kind == kind]
            for column, kind in subject_columns(view.node).items()
        }
        with suppress(ViewStoreUnavailable), open_reader(view.to) as store:
            versions = [info.name for info in store.views() if info.name.partition("~")[0] == view.name]
            for version in versions if any(names.values()) else ():
                rows = store.table(version)
                shown = [
                    pc.is_in(rows[column].cast(pa.string()), value_set=pa.array(found, pa.string()))
                    for column, found in names.items()
                ]
                count = pc.sum(functools.reduce(pc.or_, shown)).as_py() or 0
                yield Found(f"view {version}, by its columns", count)


def unjudged(pipelines: Iterable[Pipeline], topics: Collection[str]) -> frozenset[str]:
    """The places of records that are malformed, or fail, for every pipeline that has read them, as far as dead letters are kept."""
    found: dict[str, list[set[str]]] = {topic: [] for topic in topics}
    for pipeline in pipelines:
        read = {source_of(each.node).topic for each in (*pipeline.streams.values(), *pipeline.tables.values())}
        with suppress(ViewStoreUnavailable), open_reader(pipeline.to) as store:
            letters = store.dead_letters(pipeline.name, limit=pipeline.dead_letters or 1).to_pylist()
            for topic in read & set(topics):
                odd = (each for each in letters if each["topic"] == topic and each["reason"] in ("malformed", "failed"))
                found[topic].append({f"{topic}/{each['partition']}/{each['offset']}" for each in odd})
    return frozenset(place for each in found.values() if each for place in set.intersection(*each))


def look(places: Whereabouts, needles: Needles) -> list[Found]:
    """Look everywhere."""
    found = list(_in_log(places, needles))
    for topic, archive in places.archives.items():
        for partition in range(places.log.topic(topic).partitions):
            found += [scan_parquet(piece.path, needles) for piece in archive.pieces(partition)]
    for address in places.stores:
        found += _in_store(address, needles)
    for folder in places.checkpoints:
        found += [each for version in versions(folder) for each in scan_folder(version, needles)]
        found.append(scan_file(spark_log(folder), needles))
    for left in private_folder.left_behind():
        found += scan_folder(left, needles)
    return found


def spark_log(checkpoint: Path) -> Path:
    """Where Spark's own words about a pipeline are."""
    return checkpoint.with_name(f"{checkpoint.name}.spark.log")


def _in_log(places: Whereabouts, needles: Needles) -> Iterator[Found]:
    with places.log.store.read() as db:
        ids = {str(number): name for number, name in db.execute("SELECT id, name FROM topic").fetchall()}
    for each in scan_database(places.log.store, "log", needles):
        table = each.place.rpartition(" ")[2].split("_")
        if table[0] == "records" and len(table) == 3:
            yield Found(f"log, topic {ids.get(table[1], '?')}/{table[2]}", each.count, each.odd)
        else:
            yield each


def _in_store(address: str, needles: Needles) -> list[Found]:
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.erase.postgres import scan_schema

        return list(scan_schema(place, needles))
    if not Path(place).exists():
        return []
    with closing(ViewFile(Path(place), create=False)) as file:
        return list(scan_database(file, f"views {address}", needles))
