"""The command loop: commands come through a topic, and one process at a time decides for each partition. It is how aggregates live on Kafka.

Invariant: events, replies and the offset up to which commands were read go in by one transaction, of the partition's owner alone. Who has
lost the partition is fenced by the group's generation and, on Kafka, by the name of its transactional client; so state in memory, which is the fold of
the events that are there, is never behind what is decided on it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic

from millstream.closing import Closing
from millstream.errors import Fenced, LogUnavailable, SourcingError, Unreadable
from millstream.event import Event, Record, TopicPartition
from millstream.failpoint import failpoint
from millstream.log import open_log
from millstream.log.checks import check_topic_name
from millstream.log.contract import Consumer, Log
from millstream.sourcing.commands import CommandCodec, Reply, prepare, unpack_reply
from millstream.sourcing.decider import Decider, Rejected, S
from millstream.sourcing.deciding import events_of
from millstream.sourcing.envelope import COMMAND, KEY, WHO, Coded, Why, version_in
from millstream.sourcing.load import is_read, records_in

_TOGETHER = 1000
_log = logging.getLogger("millstream")


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How a command loop runs.

    :param partitions: how many partitions its topics get, where they are made
    :param remember: how long commands, replies and keys are kept
    :param lease: after how long a loop that says nothing is taken for dead
    :param clock: what says the time of timeouts, in milliseconds; that of the log or the machine by default

    >>> LoopSettings(partitions=4).lease.total_seconds()
    10.0
    """

    partitions: int = 1
    remember: timedelta = timedelta(days=7)
    lease: timedelta = timedelta(seconds=10)
    clock: Callable[[], int] | None = None


@dataclass(slots=True)
class _Partition(Generic[S]):
    """What is known of a partition while it is owned: states by aggregate, replies by key, and where the events end."""

    states: dict[bytes, tuple[S, int]] = field(default_factory=dict)
    keys: OrderedDict[str, tuple[int, Reply]] = field(default_factory=OrderedDict)
    end: int = 0


class CommandLoop(Closing, Generic[S]):
    """Decides the commands of ``NAME.commands``; any number of them share the partitions, on either engine.

    The aggregates of the partitions that it owns are in memory; who takes a partition over reads its events from the first on.

    :param log: the address of the log, or the log
    :param name: the topic of the aggregates' events
    :param decider: what the aggregates are; with the types of its commands
    :param settings: how it runs

    >>> from dataclasses import dataclass
    >>> from tempfile import TemporaryDirectory
    >>> from millstream.sourcing import CommandLoop, Commands, Decider
    >>> @dataclass(frozen=True)
    ... class Add:
    ...     n: int
    >>> @dataclass(frozen=True)
    ... class Added:
    ...     n: int
    >>> counter = Decider(0, lambda n, add: [Added(add.n)], lambda n, event: n + event.n, events=Added, commands=Add)
    >>> with TemporaryDirectory() as folder, CommandLoop(f"sqlite:{folder}/log.db", "counters", counter) as loop:
    ...     with Commands(f"sqlite:{folder}/log.db", "counters", counter) as commands:
    ...         sent = commands.send("a", Add(3), key="1")
    ...         loop.run(once=True)
    1
    """

    def __init__(self, log: str | Log, name: str, decider: Decider[S], settings: LoopSettings | None = None) -> None:
        self.name, self.decider, self.settings = check_topic_name(name), decider, settings or LoopSettings()
        self._commands, self._coded = CommandCodec(decider), Coded(decider)
        self._log, self._mine = open_log(log) if isinstance(log, str) else log, isinstance(log, str)
        prepare(self._log, name, self.settings.partitions, self.settings.remember)

    def run(self, stop: threading.Event | None = None, *, once: bool = False) -> int:
        """Decide commands until ``stop`` is set, or with ``once`` until none is left; give how many were answered.

        What is lost with a partition, or while brokers are away, is begun anew. Raises Unreadable for an event that today's code does not read.
        """
        done, stop = 0, stop or threading.Event()
        while not stop.is_set():
            try:
                with self._log.consumer(
                    f"{self.name}.commands", f"{self.name}.deciders", lease=self.settings.lease
                ) as consumer:
                    for count in self._served(consumer, stop, once):
                        done += count
                return done
            except (Fenced, LogUnavailable) as error:
                _log.info("the loop of %s begins anew: %s", self.name, error.message)
                stop.wait(0.2)
        return done

    def close(self) -> None:
        """Close the log, if this has opened it."""
        if self._mine:
            self._log.close()

    def _served(self, consumer: Consumer, stop: threading.Event, once: bool) -> Iterator[int]:
        known: dict[int, _Partition[S]] = {}
        while not stop.is_set():
            records = consumer.poll(_TOGETHER, timeout=0.2)
            for gone in known.keys() - {place.partition for place in consumer.assignment}:
                del known[gone]
            parts: dict[int, list[Record]] = {}
            for record in records:
                parts.setdefault(record.partition, []).append(record)
            for number, some in parts.items():
                place = TopicPartition(f"{self.name}.commands", number)
                if number not in known:
                    consumer.take_over(place, [self.name, f"{self.name}.replies"])
                    known[number] = self._loaded(number)
                self._answer(consumer, place, known[number], some)
                yield len(some)
            if once and not records and is_read(self._log, consumer.group, f"{self.name}.commands"):
                return

    def _loaded(self, number: int) -> _Partition[S]:
        """The fold of a partition's events, and the replies that are remembered."""
        part: _Partition[S] = _Partition()
        for record in records_in(self._log, self.name, number):
            key = record.key or b""
            state, _ = part.states.get(key, (self.decider.initial, 0))
            part.states[key] = self.decider.evolve(state, self._coded.unpack(record)), version_in(record)
        part.end = self._log.bounds(self.name)[number].end
        for record in records_in(self._log, f"{self.name}.replies", number):
            self._remember(part, record.appended, unpack_reply(record))
        return part

    def _remember(self, part: _Partition[S], now: int, reply: Reply) -> None:
        if reply.key is not None and reply.failed is None and not reply.repeated:
            part.keys[reply.key] = now, reply
        oldest = now - self.settings.remember // timedelta(milliseconds=1)
        while part.keys and next(iter(part.keys.values()))[0] < oldest:
            part.keys.popitem(last=False)

    def _answer(
        self, consumer: Consumer, place: TopicPartition, part: _Partition[S], records: Sequence[Record]
    ) -> None:
        """Decide commands, each on what the one before it left, and append what follows with their replies and offset."""
        states: dict[bytes, tuple[S, int]] = {}
        fresh: dict[str, Reply] = {}
        events: list[Event] = []
        replies: list[Reply] = []
        for record in records:
            reply, more = self._decided(part, states, fresh, record)
            events += more
            replies.append(reply)
            if reply.key is not None and reply.failed is None and not reply.repeated:
                fresh[reply.key] = reply
        failpoint("sourcing.before_append")
        batches = {self.name: events, f"{self.name}.replies": [reply.pack() for reply in replies]}
        acks = consumer.append(
            place, records[-1].offset + 1, batches, ends={TopicPartition(self.name, place.partition): part.end}
        )
        failpoint("sourcing.after_append")
        part.states |= states
        for reply in replies:
            self._remember(part, records[-1].appended, reply)
        if events:
            part.end = acks[self.name].offsets[-1] + 1

    def _decided(
        self,
        part: _Partition[S],
        states: dict[bytes, tuple[S, int]],
        fresh: dict[str, Reply],
        record: Record,
    ) -> tuple[Reply, list[Event]]:
        """The reply to one command, and its events; ``states`` and ``fresh`` are those of the transaction that is being made."""
        headers, aggregate = dict(record.headers), record.key or b""
        key, who = ((None if each is None else each.decode(errors="replace")) for each in map(headers.get, (KEY, WHO)))
        name = headers.get(COMMAND, b"").decode(errors="replace")
        reply = Reply(key, aggregate.decode(errors="replace"), name)
        if key is not None and (first := fresh.get(key) or part.keys.get(key, (0, None))[1]) is not None:
            if (first.aggregate, first.command) != (reply.aggregate, name):
                return replace(reply, failed=f"key {key} was that of {first.command} to {first.aggregate}"), []
            return replace(first, repeated=True), []
        state, version = states.get(aggregate) or part.states.get(aggregate, (self.decider.initial, 0))
        if not aggregate:
            return replace(reply, failed="a command needs the aggregate as its key"), []
        try:
            found = self.decider.decide(state, self._commands.unpack(record))
            if isinstance(found, Rejected):
                return replace(reply, rejected=found.reason, version=version), []
            events = []
            for version, event in enumerate(events_of(found), version + 1):  # noqa: B020  (goes on from it)
                events.append(self._coded.pack(aggregate, event, version, Why(name, key, who)))
                state = self.decider.evolve(state, event)
        except (Unreadable, SourcingError) as error:
            return replace(reply, failed=error.message), []
        except Exception as error:
            _log.warning("%s %s: %s failed: %r", self.name, reply.aggregate, name, error)
            return replace(reply, failed=repr(error)), []
        states[aggregate] = state, version
        return replace(reply, version=version, count=len(events)), events
