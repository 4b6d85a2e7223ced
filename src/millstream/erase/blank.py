"""Blanking records of the embedded log where they are: offset, partition and both times stay.

Each step is one durable transaction over some records, and what is blanked is not found again, so that one that was killed goes on. The
bytes of before are overwritten in the pages that are written; those in pages that were free already, and in the write-ahead log, go with
:func:`compacted_file`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import apsw
import pyarrow as pa

from millstream.database import Database, Db
from millstream.erase.form import Subject, TopicForm, shows
from millstream.erase.pseudonym import Pseudonyms
from millstream.errors import LogUnavailable
from millstream.event import Headers
from millstream.failpoint import failpoint
from millstream.log.archive import Archive
from millstream.log.embedded.batch import dump_headers
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.file import partition_bounds, records_table
from millstream.log.erased import HEADER, PREFIX

Mode = Literal["records", "fields"]
MARKED: Headers = ((HEADER, b"1"),)
"""The headers of an erased record."""
_STEP = 5000  # records looked at in a transaction: some milliseconds of write lock
_FEW = 8  # names that SQLite looks for itself, before we decode anything


@dataclass(frozen=True)
class Wish:
    """Who is to be forgotten in which way."""

    subject: Subject
    mode: Mode = "records"


@dataclass(frozen=True)
class Eraser:
    """What becomes of the records of one topic."""

    form: TopicForm
    wishes: tuple[Wish, ...]
    pseudonyms: Pseudonyms
    unjudged: frozenset[str] = frozenset()
    """The places of records that no definition could use: these raised no watermark, so that nothing of them must stay."""

    def wish(self, key: bytes | None, value: bytes | None) -> Wish | None:
        """Which wish a record falls under, if any; to forget the record goes before forgetting fields of it."""
        if key is not None and key.startswith(PREFIX):
            return None
        owners = self.form.owners(key, value)
        found = None
        for each in self.wishes:
            is_meant = each.subject in owners if owners is not None else _odd(each.subject, key, value)
            if is_meant and (found is None or each.mode == "records"):
                found = each
        return found

    def of(self, key: bytes | None, value: bytes | None, place: str) -> _Left | None:
        """What is left of a record, or None if it stays as it is. ``place`` is ``TOPIC/PARTITION/OFFSET``."""
        wish = self.wish(key, value)
        if wish is None:
            return None
        if wish.mode == "records" or self.form.owners(key, value) is None:
            key_left = self.pseudonyms.key_of(self.form.topic, key, place)
            value_left = None if place in self.unjudged else self.form.blank(value, self.pseudonyms)
            return _Left(key_left, value_left, MARKED)
        made = self.form.without_fields(key, value, self.pseudonyms)
        return _Left(*made, ())


@dataclass(frozen=True)
class _Left:
    key: bytes | None
    value: bytes | None
    headers: Headers


def _odd(subject: Subject, key: bytes | None, value: bytes | None) -> bool:
    return shows(key, subject) or shows(value, subject)


def blank_topic(log: SqliteLog, topic: str, eraser: Eraser) -> int:
    """Blank what is the subjects' in all partitions of a topic; give the number of records."""
    with log.store.read() as db:
        row = log.row(topic, db)
        bounds = partition_bounds(db, row.id)
    return sum(_blank_partition(log, topic, row.id, p, bound.end, eraser) for p, bound in bounds.items())


def _blank_partition(log: SqliteLog, topic: str, topic_id: int, partition: int, end: int, eraser: Eraser) -> int:
    table, blanked = records_table(topic_id, partition), 0
    looked_for, names = _looked_for(eraser)
    with log.store.read() as db:
        asked = f"SELECT offset FROM {table} WHERE offset < ? {looked_for} ORDER BY offset"
        places = [offset for (offset,) in db.execute(asked, (end, *names))]
    for step in _steps(places):
        with log.store.write() as db:
            db.execute("PRAGMA secure_delete=ON").fetchall()
            blanked += sum(
                _blank(db, table, topic_id, partition, f"{topic}/{partition}/", offset, eraser) for offset in step
            )
            failpoint("erase.blank.in_transaction")
        failpoint("erase.blank.after_step")
    return blanked


def _blank(db: Db, table: str, topic_id: int, partition: int, place: str, offset: int, eraser: Eraser) -> int:
    """Blank one record, if it is to be."""
    found = db.execute(f"SELECT key, value, headers FROM {table} WHERE offset = ?", (offset,)).fetchone()
    left = found and eraser.of(found[0], found[1], place + str(offset))
    if not left:
        return 0
    headers = dump_headers(left.headers) if left.headers else None
    now = left.key, left.value, headers
    db.execute(f"UPDATE {table} SET key = ?, value = ?, headers = ? WHERE offset = ?", (*now, offset))
    grown = sum(len(each or b"") for each in now) - sum(len(each or b"") for each in found)
    db.execute("UPDATE partition SET bytes = bytes + ? WHERE topic = ? AND partition = ?", (grown, topic_id, partition))
    return 1


def blank_archive(archive: Archive, partition: int, eraser: Eraser) -> int:
    """Blank what is the subjects' in the archived records of a partition; give the number of records."""
    blanked = 0

    def change(batch: pa.RecordBatch) -> pa.RecordBatch | None:
        nonlocal blanked
        rows, found = batch.to_pylist(), 0
        for row in rows:
            left = eraser.of(row["key"], row["value"], f"{eraser.form.topic}/{partition}/{row['offset']}")
            if left is not None:
                headers = [{"key": name, "value": value} for name, value in left.headers]
                row |= {"key": left.key, "value": left.value, "headers": headers or None}
                found += 1
        blanked += found
        return pa.RecordBatch.from_pylist(rows, batch.schema) if found else None

    archive.rewrite(partition, change)
    return blanked


def _looked_for(eraser: Eraser) -> tuple[str, list[bytes]]:
    """A condition that every record of the subjects meets, for codecs whose bytes show them; a backslash may hide anything in JSON."""
    names = [each.subject.name.encode() for each in eraser.wishes]
    if eraser.form.codec in ("avro", "confluent-avro") or len(names) > _FEW:
        return "", []
    clauses = ["instr(value, x'5c') > 0", "instr(key, x'5c') > 0"]
    for number, _ in enumerate(names):
        clauses += [f"instr(value, ?{number + 2}) > 0", f"instr(key, ?{number + 2}) > 0"]
    return f"AND ({' OR '.join(clauses)})", names


def _steps(places: Collection[int]) -> Iterator[list[int]]:
    found = list(places)
    yield from (found[at : at + _STEP] for at in range(0, len(found), _STEP))


def compacted_file(file: Database, what: str) -> None:
    """Write a file anew without its free pages, and empty its write-ahead log; LogUnavailable while somebody reads an older state of it."""
    with file.using():
        db = file.connect()
        try:
            db.execute("PRAGMA secure_delete=ON").fetchall()
            db.execute("VACUUM").fetchall()
            failpoint("erase.vacuum.after")
            busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except apsw.BusyError as error:
            raise _in_use(file, what) from error
        finally:
            db.close()
    if busy:
        raise _in_use(file, what)


def _in_use(file: Database, what: str) -> LogUnavailable:
    return LogUnavailable(
        f"{what} {file.path}: somebody reads or writes it, so what was erased is still in its write-ahead log",
        hint=f"`lsof {file.path}` says who; stop that, then erase again: it goes on where it was",
    )
