"""Commands and their replies as records: what goes in at one end of a command loop and comes out at the other.

Commands to aggregates of a kind are in the topic ``NAME.commands`` under the aggregate's id, replies in ``NAME.replies`` likewise: both are in
the partition in which the aggregate's events are, so whoever owns it has all three.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from millstream.closing import Closing
from millstream.codec import Json
from millstream.errors import ConfigError, SourcingError, TopicExists, Unreadable
from millstream.event import Event, Headers, Record
from millstream.log import open_log
from millstream.log.contract import Ack, Log, TopicSettings
from millstream.log.partitioner import partition_of
from millstream.sourcing.decider import Decider, types_of
from millstream.sourcing.envelope import COMMAND, KEY, WHO
from millstream.sourcing.load import Position

_JSON = Json()


@dataclass(frozen=True, slots=True)
class Reply:
    """What a command loop answers.

    :param key: the key of the command; None if it had none
    :param aggregate: the aggregate that it was for
    :param command: the type of the command
    :param rejected: why it was refused; None if it was not
    :param failed: why it could not be decided, by its own fault or that of the code; a repeat is decided anew
    :param version: how many events the aggregate has had with those that followed
    :param count: how many followed
    :param repeated: whether this is the answer of an earlier command with the same key
    """

    key: str | None
    aggregate: str
    command: str
    rejected: str | None = None
    failed: str | None = None
    version: int = 0
    count: int = 0
    repeated: bool = False

    def pack(self) -> Event:
        """The reply as an event of the log."""
        headers = () if self.key is None else ((KEY, self.key.encode()),)
        return Event(msgspec.json.encode(self), self.aggregate.encode(), None, headers)


_REPLY = msgspec.json.Decoder(Reply)


def unpack_reply(record: Record) -> Reply:
    """The inverse of :meth:`Reply.pack`."""
    try:
        return _REPLY.decode(record.value or b"")
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreadable(f"topic {record.topic}, offset {record.offset}: not a reply to a command: {error}") from error


class CommandCodec:
    """The commands of one decider by their names."""

    def __init__(self, decider: Decider[Any]) -> None:
        kinds = types_of(decider.commands)
        if not kinds:
            raise ConfigError(
                "commands: found none, expected the types of commands that come through a topic",
                hint="Decider(…, commands=Add | Remove)",
            )
        self._readers: dict[str, msgspec.json.Decoder[Any]] = {
            kind.__name__: msgspec.json.Decoder(kind) for kind in kinds
        }

    def pack(self, aggregate: bytes, command: Any, key: str | None, who: str | None) -> Event:
        """A command as an event of the log."""
        name = type(command).__name__
        if name not in self._readers:
            raise SourcingError(f"found {command!r:.80}, expected a command of {', '.join(self._readers)}")
        headers: Headers = ((COMMAND, name.encode()),)
        headers += () if key is None else ((KEY, key.encode()),)
        headers += () if who is None else ((WHO, who.encode()),)
        return Event(_JSON.encode(command), aggregate, None, headers)

    def unpack(self, record: Record) -> Any:
        """The inverse; Unreadable if it is no command of these."""
        name = dict(record.headers).get(COMMAND, b"").decode(errors="replace")
        if name not in self._readers:
            raise Unreadable(f"no command is called {name!r}; there are {', '.join(self._readers)}")
        try:
            return self._readers[name].decode(record.value or b"")
        except (msgspec.DecodeError, ValueError) as error:
            raise Unreadable(f"not a {name}: {error}") from error


def prepare(log: Log, name: str, partitions: int, remember: timedelta) -> int:
    """Make the topics of a command loop where they are missing, all with as many partitions; give how many."""
    kept = log.capabilities.local_file  # the embedded log finds the events of one aggregate by its key
    short = TopicSettings(retention=remember)
    for topic, settings in (
        (name, TopicSettings(indexed=kept)),
        (f"{name}.commands", short),
        (f"{name}.replies", short),
    ):
        try:
            partitions = log.create_topic(topic, partitions, settings).partitions
        except TopicExists:
            found = log.topic(topic)
            if topic == name:
                partitions = found.partitions
            if found.partitions != partitions:
                raise ConfigError(
                    f"topic {topic} has {found.partitions} partitions, {name} has {partitions}; the owner of one must own the others",
                    hint="make both with as many partitions",
                ) from None
    return partitions


class Commands(Closing):
    """Sends commands to a command loop, on either engine.

    :param log: the address of the log, or the log
    :param name: the topic of the aggregates' events
    :param decider: what the aggregates are
    """

    def __init__(self, log: str | Log, name: str, decider: Decider[Any]) -> None:
        self._log, self._mine, self.name = open_log(log) if isinstance(log, str) else log, isinstance(log, str), name
        self._codec = CommandCodec(decider)

    def send(self, aggregate: str, command: Any, *, key: str | None = None, who: str | None = None) -> Ack:
        """Append a command; it will be decided, in the order of commands to the aggregate."""
        return self._log.append(f"{self.name}.commands", [self._codec.pack(aggregate.encode(), command, key, who)])

    def ask(
        self, aggregate: str, command: Any, *, key: str | None = None, who: str | None = None, timeout: float = 30.0
    ) -> tuple[Reply, Position]:
        """Append a command and wait for its reply; with it comes a position at which a reader has seen the events.

        Without a key it gets one that is random. SourcingError if no reply comes in so many seconds: the command may
        still be decided, so ask again with the same key.
        """
        key, topic = key or secrets.token_hex(16), f"{self.name}.replies"
        bounds = self._log.bounds(topic)
        partition = partition_of(aggregate.encode(), len(bounds))
        deadline = time.monotonic() + timeout
        with self._log.reader(topic, {partition: bounds[partition].end}) as reader:
            self.send(aggregate, command, key=key, who=who)
            while (left := deadline - time.monotonic()) > 0:
                for record in reader.poll(1000, min(left, 1.0)):
                    if (KEY, key.encode()) in record.headers:
                        end = self._log.bounds(self.name)[partition].end
                        return unpack_reply(record), {self.name: {partition: end}}
        raise SourcingError(
            f"no reply to {type(command).__name__} for {self.name} {aggregate} within {timeout:g} s",
            hint=f"is a loop running? ask again with key={key!r}: it counts once",
        )

    def close(self) -> None:
        """Close the log, if this has opened it."""
        if self._mine:
            self._log.close()
