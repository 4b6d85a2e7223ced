"""Reactors: commands that follow from events, at once or after a while. With an aggregate of its own a process becomes a saga.

Invariant: the commands that follow from an event go in with the offset up to which events were read, by one transaction. A command for later
is a record of ``NAME.timeouts`` until it is due. When it goes it has a key that tells where it came from, so that it counts once if it goes
twice: it may, since what is due goes in the order of time, and offsets are committed in the order of the topic.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

from millstream.closing import Closing
from millstream.errors import ConfigError, Fenced, LogUnavailable, SourcingError, TopicExists
from millstream.event import Event, Record, TopicPartition
from millstream.failpoint import failpoint
from millstream.log import open_log
from millstream.log.checks import check_topic_name
from millstream.log.contract import Consumer, Log
from millstream.sourcing.commands import CommandCodec, prepare
from millstream.sourcing.decider import Decider
from millstream.sourcing.envelope import KEY, Coded, Happened
from millstream.sourcing.load import is_read
from millstream.sourcing.loop import LoopSettings

_TO, _DUE = "millstream.to", "millstream.due"
_log = logging.getLogger("millstream")


class Send(NamedTuple):
    """A command that follows from an event.

    >>> Send("payments", "order-7", "a command", after=timedelta(minutes=15)).to
    'payments'
    """

    to: str
    """The topic of the events of the aggregates that it is for; its loop decides it."""
    aggregate: str
    command: Any
    after: timedelta | None = None
    """How long after its event was appended it goes; at once if it is None."""


React: TypeAlias = Callable[[str, str, Happened], Iterable[Send]]
"""The topic of an event, its aggregate and the event give what follows."""


@dataclass(slots=True)
class _Timers:
    """The commands of a partition of timeouts that are not due yet, and where to read on."""

    waiting: list[tuple[int, int, Record]] = field(default_factory=list)
    next: int = 0

    @property
    def committable(self) -> int:
        """Everything before has gone."""
        return min((offset for _, offset, _ in self.waiting), default=self.next)


class Reactor(Closing):
    """Reads the events of some kinds of aggregates and sends the commands that follow from them to loops; on either engine.

    ``react`` is a pure function. What a process has to remember is the state of an aggregate of its own, to which it sends commands like to any other.

    :param log: the address of the log, or the log
    :param name: its name; where it has read to is remembered under it
    :param reads: the topics of the events that it reads, with their deciders
    :param sends: the topics of the events of those it sends to, with their deciders
    :param react: what follows from an event
    :param settings: how it runs
    """

    def __init__(
        self,
        log: str | Log,
        name: str,
        *,
        reads: Mapping[str, Decider[Any]],
        sends: Mapping[str, Decider[Any]],
        react: React,
        settings: LoopSettings | None = None,
    ) -> None:
        self.name, self.settings = check_topic_name(name), settings or LoopSettings()
        if not reads or not sends:
            raise ConfigError(f"reactor {name}: expected something to read and something to send to")
        self._reads = {topic: Coded(decider) for topic, decider in reads.items()}
        self._sends = {topic: CommandCodec(decider) for topic, decider in sends.items()}
        self._react = react
        self._log, self._mine = open_log(log) if isinstance(log, str) else log, isinstance(log, str)
        for topic in dict.fromkeys([*reads, *sends]):
            prepare(self._log, topic, self.settings.partitions, self.settings.remember)
        with suppress(TopicExists):
            self._log.create_topic(self._timeouts, self.settings.partitions)

    @property
    def _timeouts(self) -> str:
        return f"{self.name}.timeouts"

    def run(self, stop: threading.Event | None = None, *, once: bool = False) -> int:
        """React until ``stop`` is set, or with ``once`` until every event is read and nothing is due; give how many commands went.

        An error of ``react`` ends it, with nothing of the events at hand sent: the next run meets them again.
        """
        sent, stop = 0, stop or threading.Event()
        while not stop.is_set():
            try:
                with self._log.consumer(
                    [*self._reads, self._timeouts], f"{self.name}.reactors", lease=self.settings.lease
                ) as consumer:
                    for count in self._served(consumer, stop, once):
                        sent += count
                return sent
            except (Fenced, LogUnavailable) as error:
                _log.info("reactor %s begins anew: %s", self.name, error.message)
                stop.wait(0.2)
        return sent

    def close(self) -> None:
        """Close the log, if this has opened it."""
        if self._mine:
            self._log.close()

    def _served(self, consumer: Consumer, stop: threading.Event, once: bool) -> Iterator[int]:
        owned: set[TopicPartition] = set()
        timers: dict[TopicPartition, _Timers] = {}
        while not stop.is_set():
            records = consumer.poll(1000, timeout=0.2)
            owned &= consumer.assignment
            timers = {place: each for place, each in timers.items() if place in owned}
            parts: dict[TopicPartition, list[Record]] = {}
            for record in records:
                parts.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
            for place in parts.keys() - owned:
                consumer.take_over(place, [self._timeouts, *(f"{topic}.commands" for topic in self._sends)])
                owned.add(place)
            for place, some in parts.items():
                if place.topic == self._timeouts:
                    _keep(timers.setdefault(place, _Timers()), some)
                else:
                    yield self._follow(consumer, place, some)
            for place, each in timers.items():
                yield self._fire(consumer, place, each)
            if once and not records and self._is_done(consumer, timers):
                return

    def _is_done(self, consumer: Consumer, timers: Mapping[TopicPartition, _Timers]) -> bool:
        """Whether every event is read, and every timeout is known."""
        return all(is_read(self._log, consumer.group, topic) for topic in self._reads) and all(
            bounds.start == bounds.end
            or not self._log.read(
                self._timeouts,
                number,
                max(
                    timers.get(TopicPartition(self._timeouts, number), _Timers()).next,
                    _committed(self._log, consumer.group, TopicPartition(self._timeouts, number), bounds.start),
                ),
                1,
            )
            for number, bounds in self._log.bounds(self._timeouts).items()
        )

    def _follow(self, consumer: Consumer, place: TopicPartition, records: Sequence[Record]) -> int:
        """Send what follows from events, with the offset behind them."""
        batches: dict[str, list[Event]] = {}
        for record in records:
            happened = self._reads[record.topic].happened(record)
            found = self._react(record.topic, (record.key or b"").decode(), happened)
            for number, send in enumerate(found):
                key = f"{self.name}/{place}/{record.offset}/{number}"
                topic, event = self._packed(send, key, record.appended)
                batches.setdefault(topic, []).append(event)
        return self._append(consumer, place, records[-1].offset + 1, batches)

    def _packed(self, send: Send, key: str, appended: int) -> tuple[str, Event]:
        """A command as a record for its loop, or for later."""
        codec = self._sends.get(send.to)
        if codec is None:
            raise SourcingError(f"reactor {self.name} sends to {send.to!r}; expected one of {', '.join(self._sends)}")
        event = codec.pack(send.aggregate.encode(), send.command, key, self.name)
        if send.after is None:
            return f"{send.to}.commands", event
        due = appended + send.after // timedelta(milliseconds=1)
        return self._timeouts, event._replace(headers=(*event.headers, (_TO, send.to.encode()), (_DUE, b"%d" % due)))

    def _fire(self, consumer: Consumer, place: TopicPartition, timers: _Timers) -> int:
        """Send what is due."""
        now = self._now()
        batches: dict[str, list[Event]] = {}
        while timers.waiting and timers.waiting[0][0] <= now:
            _, _, record = heapq.heappop(timers.waiting)
            headers = tuple(pair for pair in record.headers if pair[0] not in (_TO, _DUE))
            to = dict(record.headers)[_TO].decode()
            batches.setdefault(f"{to}.commands", []).append(Event(record.value, record.key, None, headers))
        return self._append(consumer, place, timers.committable, batches) if batches else 0

    def _append(
        self, consumer: Consumer, place: TopicPartition, offset: int, batches: Mapping[str, Sequence[Event]]
    ) -> int:
        failpoint("sourcing.before_append")
        consumer.append(place, offset, batches, ends={})
        failpoint("sourcing.after_append")
        return sum(len(events) for topic, events in batches.items() if topic != self._timeouts)

    def _now(self) -> int:
        """The time, in milliseconds: that of the log, where it has a clock."""
        clock = self.settings.clock or getattr(self._log, "clock", None)
        return time.time_ns() // 1_000_000 if clock is None else int(clock())


def _keep(timers: _Timers, records: Sequence[Record]) -> None:
    """Take up commands for later; a record that has no time to go is none of ours."""
    for record in records:
        headers = dict(record.headers)
        if {_TO, _DUE, KEY} <= headers.keys():
            heapq.heappush(timers.waiting, (int(headers[_DUE]), record.offset, record))
    timers.next = records[-1].offset + 1


def _committed(log: Log, group: str, place: TopicPartition, start: int) -> int:
    return next((each.offsets.get(place, start) for each in log.groups() if each.name == group), start)
