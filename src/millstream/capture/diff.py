"""A database compared with the topics that follow it, while both move.

The rows of the database are read at one position. Of the topic counts what is not later than that, so both are states of the same moment. What
differs is looked at again, at a later position, since a transaction may be told together with those behind it: only a key that differs twice, without
a change in between, is reported.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec

from millstream.capture.contract import Position, Snapshot, Source, Table
from millstream.capture.control import Known, read_known
from millstream.capture.envelope import canonical, key_of
from millstream.capture.order import order_of
from millstream.capture.reading import records_of
from millstream.errors import CaptureUnavailable
from millstream.log.contract import Log

EXAMPLES = 20
ROUNDS = 5
_LOOK = 2.0
"""Seconds between two looks whether what the capture has not come to has anything of ours."""


class _Said(msgspec.Struct):
    source: dict[str, Any]
    after: dict[str, Any] | None = None


_read = msgspec.json.Decoder(_Said)


Kind = Literal["missing", "extra", "other"]


class _Pair(NamedTuple):
    """Digests of both rows of a key, and where the topic's last record of it is."""

    database: bytes | None
    topic: bytes | None
    place: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose rows differ, and both rows."""

    key: str
    kind: Kind
    database: Mapping[str, Any] | None
    topic: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Compared:
    """A table and its topic: how many rows the database has, and what differs; the first of them as examples."""

    table: str
    topic: str
    rows: int
    missing: int = 0
    extra: int = 0
    other: int = 0
    moving: int = 0
    """Keys that changed each time that they were looked at, so that nothing can be said."""
    examples: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.extra or self.other)


def compare(log: Log, source: Source, name: str, *, patience: timedelta = timedelta(seconds=60)) -> Iterator[Compared]:
    """Compare each table that is followed with its topic, one after the other.

    :raises CaptureUnavailable: if the capture does not come to where the database is
    """
    known = read_known(log).get(name, Known())
    for table in source.tables():
        followed = known.tables.get(table.full_name)
        if followed is not None and followed.topic:
            yield _compared(log, source, name, table, followed.topic, patience)


def _compared(log: Log, source: Source, name: str, table: Table, topic: str, patience: timedelta) -> Compared:
    """Compare until what differs has been seen to differ twice."""
    before: dict[bytes, _Pair] = {}
    for last in (False,) * (ROUNDS - 1) + (True,):
        with source.snapshot([table]) as snapshot:
            _wait(log, source, name, snapshot.position, patience)
            rows, differing = _differing(log, snapshot, table, topic)
            sure = {key: pair for key, pair in differing.items() if before.get(key) == pair}
            if last or len(sure) == len(differing):
                kinds = {key: _kind(pair) for key, pair in sure.items()}
                counts = Counter(kinds.values())
                return Compared(
                    table.full_name,
                    topic,
                    rows,
                    counts["missing"],
                    counts["extra"],
                    counts["other"],
                    len(differing) - len(sure),
                    _examples(log, snapshot, table, topic, kinds),
                )
            before = differing
    raise AssertionError("the last round returns")


def _wait(log: Log, source: Source, name: str, position: Position, patience: timedelta) -> None:
    """Until the capture has come to a position, or to the last of our changes before it."""
    deadline, looked = time.monotonic() + patience.total_seconds(), -_LOOK
    while True:
        progress = read_known(log).get(name, Known()).progress
        here = progress.position if progress is not None else None
        if here is not None and order_of(here) >= order_of(position):
            return
        if here is not None and time.monotonic() - looked >= _LOOK:
            if source.is_quiet(here, position):
                return
            looked = time.monotonic()
        if time.monotonic() > deadline:
            raise CaptureUnavailable(
                f"capture {name}: it has not come to where the database is within {patience.total_seconds():.0f} s",
                hint="`millstream capture start …` it, or let it catch up first: `millstream capture start … --once`",
            )
        time.sleep(0.2)


def _differing(log: Log, snapshot: Snapshot, table: Table, topic: str) -> tuple[int, dict[bytes, _Pair]]:
    """How many rows a table has, and what differs by key."""
    names = [column.name for column in table.columns]
    there = {key: _digest(row, names) for key, row in _rows(snapshot, table)}
    held, places = _held(log, topic, snapshot.position, lambda row: _digest(row, names))
    keys = [key for key, digest in there.items() if held.get(key) != digest]
    keys += [key for key in held if key not in there]
    return len(there), {key: _Pair(there.get(key), held.get(key), places.get(key)) for key in keys}


def _kind(pair: _Pair) -> Kind:
    if pair.topic is None:
        return "missing"
    return "extra" if pair.database is None else "other"


def _examples(log: Log, snapshot: Snapshot, table: Table, topic: str, kinds: Mapping[bytes, Kind]) -> list[Difference]:
    chosen = dict(islice(kinds.items(), EXAMPLES))
    if not chosen:
        return []
    rows = {key: dict(row) for key, row in _rows(snapshot, table) if key in chosen}
    held, _ = _held(log, topic, snapshot.position, lambda row: row)
    return [
        Difference(key.decode(errors="replace"), kind, rows.get(key), held.get(key)) for key, kind in chosen.items()
    ]


def _rows(snapshot: Snapshot, table: Table) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    for piece in snapshot.rows(table):
        for row in piece:
            yield key_of(table, row), row


def _held(
    log: Log, topic: str, position: Position, kept: Callable[[Mapping[str, Any]], Any]
) -> tuple[dict[bytes, Any], dict[bytes, tuple[int, int]]]:
    """What a topic held at a position, and where the last record of each key is.

    A tombstone says no position: it belongs to the record of its key before it.
    """
    limit, held, later = order_of(position), dict[bytes, Any](), set[bytes]()
    places: dict[bytes, tuple[int, int]] = {}
    for record in records_of(log, topic):
        key = record.key or b""
        places[key] = record.partition, record.offset
        if record.value is None:
            if key not in later:
                held.pop(key, None)
            continue
        with suppress(msgspec.DecodeError):  # what is none of ours says no row
            said = _read.decode(record.value)
            if _is_later(said.source, limit):
                later.add(key)
            elif said.after is None:
                held.pop(key, None)
            else:
                held[key] = kept(said.after)
    return held, places


def _is_later(source: Mapping[str, Any], limit: tuple[int, ...]) -> bool:
    return any(name in source for name in ("file", "lsn", "seq")) and order_of(source) > limit


def _digest(row: Mapping[str, Any], names: Iterable[str]) -> bytes:
    return hashlib.blake2b(canonical(row, list(names)), digest_size=16).digest()
