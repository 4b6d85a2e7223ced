"""Events of an aggregate as events of the log, and back; what is about an event and not in it stands in headers.

Old events are never rewritten: one of an older version is brought to today's by upcasters, each time it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from millstream.codec import Json
from millstream.errors import CodecError, SourcingError, Unreadable
from millstream.event import Event, Headers, Record, from_millis
from millstream.sourcing.decider import Decider, types_of, version_of

TYPE, SCHEMA, VERSION = "millstream.type", "millstream.schema", "millstream.version"
COMMAND, KEY, WHO = "millstream.command", "millstream.key", "millstream.who"
_JSON = Json()


class Why(NamedTuple):
    """Where an event comes from: the type of the command, its idempotency key, and who gave it."""

    command: str = ""
    key: str | None = None
    who: str | None = None


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of an aggregate with what is known about it.

    :param version: its number among the events of its aggregate, from 1 on
    :param event: the event, as today's code has it
    :param time: when it was appended
    :param command: the type of the command that it follows from
    :param key: the idempotency key of the command
    :param who: who gave the command
    :param partition: where it stands in the events' topic
    :param offset: and at which offset
    """

    version: int
    event: Any
    time: datetime
    command: str
    key: str | None
    who: str | None
    partition: int
    offset: int


class Coded:
    """The types of one decider by their names, with what reads and writes them."""

    def __init__(self, decider: Decider[Any]) -> None:
        self._names = {kind: kind.__name__ for kind in types_of(decider.events)}
        self._readers: dict[str, msgspec.json.Decoder[Any]] = {
            name: msgspec.json.Decoder(kind) for kind, name in self._names.items()
        }
        self._fixed = {
            name: ((TYPE, name.encode()), (SCHEMA, b"%d" % version_of(decider, name))) for name in self._names.values()
        }
        self._versions = {name: version_of(decider, name) for name in self._names.values()}
        self._upcasters = decider.upcasters

    def pack(self, key: bytes, event: Any, version: int, why: Why) -> Event:
        """An event of an aggregate as an event of the log."""
        name = self._names.get(type(event))
        if name is None:
            known = ", ".join(self._names.values())
            raise SourcingError(f"decide gave {event!r:.80}; expected events of {known}, in a list, or Rejected")
        headers: Headers = (*self._fixed[name], (VERSION, b"%d" % version), (COMMAND, why.command.encode()))
        if why.key is not None:
            headers += ((KEY, why.key.encode()),)
        if why.who is not None:
            headers += ((WHO, why.who.encode()),)
        return Event(_JSON.encode(event), key, None, headers)

    def unpack(self, record: Record) -> Any:
        """The event, as today's code has it."""
        headers = dict(record.headers)
        name = written = headers.get(TYPE, b"").decode()
        schema = int(headers.get(SCHEMA, b"1"))
        where = f"topic {record.topic}, partition {record.partition}, offset {record.offset}"
        if record.value is None or not name:
            raise Unreadable(f"{where}: not an event of an aggregate", hint="append to this topic by commands alone")
        data = record.value
        if schema != self._versions.get(name):
            name, data = self._upcast(where, name, schema, data)
        try:
            return self._readers[name].decode(data)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise Unreadable(
                f"{where}: {written} of version {schema} does not fit the {name} of today: {error}",
                hint=f'give fields a default, or an upcaster: Decider(…, upcasters={{("{written}", {schema}): …}})',
            ) from error

    def _upcast(self, where: str, name: str, schema: int, data: bytes) -> tuple[str, bytes]:
        fields = _JSON.decode(data)
        while (upcaster := self._upcasters.get((name, schema))) is not None:
            try:
                found = upcaster(fields)
            except Exception as error:
                raise Unreadable(f"{where}: the upcaster from version {schema} of {name} failed: {error!r}") from error
            before = name
            name, fields = found if isinstance(found, tuple) else (name, found)
            schema = schema + 1 if name == before else 1
        if name not in self._versions:
            raise Unreadable(
                f"{where}: no event is called {name} today; there are {', '.join(self._versions)}",
                hint=f'an upcaster may give it another name: Decider(…, upcasters={{("{name}", {schema}): …}})',
            )
        if schema != self._versions[name]:
            raise Unreadable(
                f"{where}: {name} of version {schema}; today's code knows up to {self._versions[name]}",
                hint="run the code that wrote it, or a later one",
            )
        return name, _JSON.encode(fields)

    def happened(self, record: Record) -> Happened:
        """The event with what is known about it."""
        headers = dict(record.headers)
        key, who = headers.get(KEY), headers.get(WHO)
        return Happened(
            int(headers.get(VERSION, b"0")),
            self.unpack(record),
            from_millis(record.appended),
            headers.get(COMMAND, b"").decode(),
            None if key is None else key.decode(),
            None if who is None else who.decode(),
            record.partition,
            record.offset,
        )


def version_in(record: Record) -> int:
    """The number of an event among those of its aggregate; 0 if it has none."""
    return int(next((value for name, value in record.headers if name == VERSION), b"0"))


class Answer(msgspec.Struct, omit_defaults=True):
    """The answer to a command with a key, as it is kept: what was refused, or which events followed.

    The events are not in it: they are the last ``count`` up to ``version``, behind the offset ``after`` or from the beginning.
    """

    id: str
    command: str
    rejected: str | None = None
    version: int = 0
    count: int = 0
    after: int = -1


_ANSWER = msgspec.json.Decoder(Answer)


def pack_answer(key: str, answer: Answer) -> Event:
    """An answer as an event of the log."""
    return Event(msgspec.json.encode(answer), key.encode())


def unpack_answer(record: Record) -> Answer:
    """The inverse."""
    try:
        return _ANSWER.decode(record.value or b"")
    except (msgspec.DecodeError, ValueError) as error:
        raise CodecError(
            f"topic {record.topic}, offset {record.offset}: not an answer to a command: {error}"
        ) from error
