"""The audit log of erasures: a topic of the log in which each record has the hash of the one before. No personal data is in it.

Who keeps the last hash somewhere else can tell later that nothing before it was changed or taken out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from millstream.errors import EraseError, TopicExists
from millstream.event import Event
from millstream.log.contract import Log

TOPIC = "millstream.erasures"
BEGINNING = "0" * 64
"""What stands in the place of a hash before the first record."""


class Entry(msgspec.Struct, frozen=True):
    """What was done: ``what`` is ``requested``, ``withdrawn`` or ``erased``; ``subject`` is a digest."""

    at: str
    what: str
    request: str
    kind: str
    subject: str
    mode: str
    before: str
    certificate: str = ""
    """The hash of the certificate, if there is one."""


class Said(msgspec.Struct, frozen=True):
    """What is to be entered."""

    what: str
    request: str
    kind: str
    subject: str
    mode: str
    certificate: str = ""


def enter(log: Log, entries: Sequence[Said]) -> str:
    """Append entries, and give the hash of the last. One process at a time may do it; who holds the register's lock is."""
    with suppress(TopicExists):
        log.create_topic(TOPIC)
    head, events = check(log)[1], []
    for each in entries:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Entry(at, each.what, each.request, each.kind, each.subject, each.mode, head, each.certificate)
        value = msgspec.json.encode(entry)
        head = hash_of(value)
        events.append(Event(value))
    if events:
        log.append(TOPIC, events)
    return head


def check(log: Log) -> tuple[list[Entry], str]:
    """All entries and the hash of the last; EraseError where one is not what the next one says."""
    if TOPIC not in (topic.name for topic in log.topics()):
        return [], BEGINNING
    entries, head, (bound,) = [], BEGINNING, log.bounds(TOPIC).values()
    offset = bound.start
    while offset < bound.end:
        for record in log.read(TOPIC, 0, offset):
            try:
                entry = msgspec.json.decode(record.value or b"", type=Entry)
            except msgspec.DecodeError as error:
                raise _broken(record.offset, "is no entry") from error
            if entry.before != head or record.offset != offset:
                raise _broken(record.offset, "does not follow the one before it")
            head, offset = hash_of(record.value or b""), record.offset + 1
            entries.append(entry)
    return entries, head


def hash_of(value: bytes) -> str:
    """The hash by which the next entry names this one."""
    return hashlib.sha256(value).hexdigest()


def _broken(offset: int, why: str) -> EraseError:
    return EraseError(
        f"topic {TOPIC}: the record at offset {offset} {why}: the audit log was changed",
        hint="compare with a backup, and with the hashes that were printed before",
    )
