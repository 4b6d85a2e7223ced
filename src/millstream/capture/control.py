"""The control topic: where a capture is, in the same transaction as the data, and who captures.

Invariants: a position is in the log if and only if what it covers is; nobody but the last who claimed a name appends under it. Each append of
a capture has a number, and each claim takes the next one: what a process that was overtaken still sends has a number that is there already.

The topic is compacted. Its keys are ``NAME``, how far the capture is; ``NAME/tables``, what it follows; ``NAME/owner``, who claimed it;
``NAME/snapshot/TABLE``, that a table is to be read again.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from millstream.capture.reading import records_of
from millstream.errors import CaptureFenced, ConfigError, LogError, LogFull, LogUnavailable, TopicExists, UnknownTopic
from millstream.event import Event
from millstream.log.contract import Log, TopicSettings

CONTROL = "millstream.capture"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,99}")
_TRIES = 20


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a capture is: everything up to ``position`` is in the log, and ``done`` changes of the transaction ``cut`` behind it."""

    source: str
    connector: str = ""
    position: dict[str, Any] | None = None
    cut: str = ""
    done: int = 0
    committed: datetime | None = None
    """When the last transaction was."""
    updated: datetime | None = None
    changes: int = 0
    number: int = 0


class Followed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table that a capture follows, as it was last seen; ``complete`` says that all its rows are in the topic."""

    topic: str
    key: tuple[str, ...]
    columns: dict[str, str]
    complete: bool = False
    rows: int = 0
    """Those of the last snapshot."""


class Owner(msgspec.Struct, frozen=True):
    """Who claimed the name of a capture, and when."""

    host: str
    pid: int
    since: datetime


@dataclass(slots=True)
class Known:
    """What the control topic says of a capture."""

    progress: Progress | None = None
    tables: dict[str, Followed] = field(default_factory=dict)
    owner: Owner | None = None
    requests: list[str] = field(default_factory=list)
    """Tables that are to be read again."""


def check_name(name: str) -> str:
    """Give the name of a capture back if topics can begin with it."""
    if not _NAME.fullmatch(name) or name == "millstream":
        raise ConfigError(f"capture {name!r}: expected a name of up to 99 letters, digits, _ and -", hint="--name shop")
    return name


def read_known(log: Log) -> dict[str, Known]:
    """All captures of a log, by name."""
    last: dict[bytes, bytes] = {}
    with suppress(UnknownTopic):
        for record in records_of(log, CONTROL):
            if record.key is not None and record.value is not None:
                last[record.key] = record.value
            elif record.key is not None:
                last.pop(record.key, None)
    known: dict[str, Known] = {}
    for key, value in last.items():
        name, _, what = key.decode().partition("/")
        each = known.setdefault(name, Known())
        kind, _, table = what.partition("/")
        match kind:
            case "":
                each.progress = msgspec.json.decode(value, type=Progress)
            case "tables":
                each.tables = msgspec.json.decode(value, type=dict[str, Followed])
            case "owner":
                each.owner = msgspec.json.decode(value, type=Owner)
            case "snapshot":
                each.requests.append(table)
    return known


def unread(known: Known) -> list[str]:
    """The tables of which not all rows are in the topic yet."""
    position = (known.progress.position if known.progress else None) or {}
    by_engine = "engine" in position and position["engine"]["offset"] is None
    return [name for name, each in known.tables.items() if each.topic and (by_engine or not each.complete)]


def ensure_control(log: Log) -> None:
    """Make the control topic, unless it is there."""
    with suppress(TopicExists):
        log.create_topic(CONTROL, settings=TopicSettings(cleanup="compact"))


def request(log: Log, name: str, table: str) -> None:
    """Ask whoever captures under a name to read a table again."""
    value = msgspec.json.encode({"asked": datetime.now(UTC)})
    log.append(CONTROL, [Event(value, f"{name}/snapshot/{table}".encode())])


def forget(log: Log, name: str) -> None:
    """Take everything that is known of a capture out of the control topic; whoever still captures is fenced."""
    control = Control(log, name)
    known = control.claim()
    keys = [name, f"{name}/tables", f"{name}/owner", *(f"{name}/snapshot/{table}" for table in known.requests)]
    control.append({CONTROL: [Event(None, key.encode()) for key in keys]})


class Control:
    """The right to append under the name of a capture, from :meth:`claim` on until another process claims it."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, check_name(name)
        self._producer = f"capture.{name}"
        self._number = 0
        self._owner: Owner | None = None

    def claim(self) -> Known:
        """Take the name; what there is of it then stays as it is until we append. Again, after an append whose end is not known.

        CaptureFenced if it was ours and another process has taken it meanwhile.
        """
        ensure_control(self.log)
        found = read_known(self.log).get(self.name, Known())
        if self._owner is not None and found.owner != self._owner:
            raise self._fenced()
        recorded = found.progress.number if found.progress else 0
        owner = Owner(socket.gethostname(), os.getpid(), datetime.now(UTC))
        mine = Event(msgspec.json.encode(owner), f"{self.name}/owner".encode())
        for _ in range(_TRIES):
            last = self.log.last_sequence(CONTROL, self._producer)
            self._number = max(recorded, 0 if last is None else last) + 1
            acks = self.log.append_all({CONTROL: [mine]}, producer=self._producer, sequence=self._number)
            if not any(ack.duplicate for ack in acks.values()):
                self._owner = owner
                return read_known(self.log).get(self.name, Known())  # again: nobody else appends from here on
        raise self._fenced()

    def append(self, batches: Mapping[str, Sequence[Event]]) -> None:
        """Append in one transaction; CaptureFenced, and nothing appended, if another process has claimed the name."""
        try:
            acks = self.log.append_all(batches, producer=self._producer, sequence=self._number + 1)
        except (LogUnavailable, LogFull):
            raise
        except LogError as error:
            # Not asked by the number: on brokers who asks for that fences the others.
            if read_known(self.log).get(self.name, Known()).owner != self._owner:
                raise self._fenced() from error
            raise
        if any(ack.duplicate for ack in acks.values()):
            raise self._fenced()
        self._number += 1

    def told(self, progress: Progress) -> Event:
        """The record that says how far we are, for the next append."""
        progress = msgspec.structs.replace(progress, number=self._number + 1, updated=datetime.now(UTC))
        return Event(msgspec.json.encode(progress), self.name.encode())

    def followed(self, tables: Mapping[str, Followed]) -> Event:
        """The record that says what is followed."""
        return Event(msgspec.json.encode(tables), f"{self.name}/tables".encode())

    def done(self, table: str) -> Event:
        """The record that takes a request back."""
        return Event(None, f"{self.name}/snapshot/{table}".encode())

    def _fenced(self) -> CaptureFenced:
        return CaptureFenced(
            f"capture {self.name}: another process captures under this name since; nothing more was appended",
            hint=f"one process a name: stop one of them, or give it another with --name; `millstream capture status` shows who has {self.name}",
        )
