"""Aggregates in a log: commands are decided and their events appended; states are folds of events, now or at any time before.

The events of all aggregates of a kind are in one topic under the aggregate's id, ``NAME``; answers to commands that had a key are in
``NAME.keys``, snapshots in ``NAME.snapshots``. Events are the truth; the other two may go, and cost repeats or time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple

from millstream.closing import Closing
from millstream.errors import ConfigError, SourcingError, TopicExists, UnknownTopic
from millstream.gather import Gathered
from millstream.log import open_log
from millstream.log.checks import check_topic_name
from millstream.log.contract import Log, Topic, TopicSettings
from millstream.sourcing import past
from millstream.sourcing.decider import Decider, S
from millstream.sourcing.deciding import Asked, Deciding, Outcome
from millstream.sourcing.envelope import Coded, Happened
from millstream.sourcing.load import Aggregate, Loader
from millstream.sourcing.snapshots import Snapshots

_TOGETHER = 1000
"""Commands of one transaction, at most."""


class Request(NamedTuple):
    """A command to an aggregate, for :meth:`EventStore.execute_all`; its fields are the arguments of ``execute``.

    >>> Request("ann", "a command", key="42").who is None
    True
    """

    aggregate: str
    command: Any
    key: str | None = None
    who: str | None = None


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How aggregates are kept.

    :param partitions: how many partitions their topics get, where they are made
    :param snapshot_every: after how many events a snapshot is made; None makes none
    :param remember: how long the answers to commands with keys are kept
    :param retries: how often a command is decided again because others were faster
    :param cached: how many aggregates are kept in memory
    :raises ConfigError: if one of them cannot be

    >>> StoreSettings(snapshot_every=100).partitions
    1
    """

    partitions: int = 1
    snapshot_every: int | None = None
    remember: timedelta = timedelta(days=7)
    retries: int = 10
    cached: int = 20_000

    def __post_init__(self) -> None:
        least = {"partitions": 1, "snapshot_every": 1, "retries": 0, "cached": 0}
        for name, lowest in least.items():
            given = getattr(self, name)
            if given is not None and given < lowest:
                raise ConfigError(f"{name}: found {given}, expected at least {lowest}")
        if self.remember <= timedelta(0):
            raise ConfigError(f"remember: found {self.remember}, expected more than zero")


class EventStore(Closing, Generic[S]):
    """The aggregates of one kind in a log; opened when it is first used, and to be used from any number of threads and processes.

    Threads that execute at the same time share transactions. Several processes may write; the one that is late decides again.

    :param log: the address of the embedded log, or the log
    :param name: the topic of their events
    :param decider: what they are
    :param settings: how they are kept
    :raises SourcingError: by its methods, one of its kinds; LogError if the log fails

    >>> from dataclasses import dataclass
    >>> from tempfile import TemporaryDirectory
    >>> from millstream.sourcing import Decider, EventStore, Rejected
    >>> @dataclass(frozen=True)
    ... class Paid:
    ...     amount: int
    >>> def pay(balance, amount):
    ...     return [Paid(amount)] if balance + amount >= 0 else Rejected(f"there are only {balance}")
    >>> account = Decider(0, pay, lambda balance, event: balance + event.amount, events=Paid)
    >>> with TemporaryDirectory() as folder, EventStore(f"sqlite:{folder}/bank.db", "accounts", account) as bank:
    ...     done = bank.execute("ann", 100, key="1", who="the till")
    ...     refused = bank.execute("ann", -300)
    ...     print(done.events, done.version, done.position)
    ...     print(refused.reason)
    ...     print(bank.state("ann"))
    (Paid(amount=100),) 1 {'accounts': {0: 1}}
    there are only 100
    100
    """

    def __init__(self, log: str | Log, name: str, decider: Decider[S], settings: StoreSettings | None = None) -> None:
        self.name, self.decider, self.settings = check_topic_name(name), decider, settings or StoreSettings()
        self._address = log if isinstance(log, str) else log.url
        self._log: Log | None = None if isinstance(log, str) else log
        self._mine = isinstance(log, str)
        self._partitions: int | None = None
        self._lock = threading.Lock()
        self._coded = Coded(decider)
        snapshots = Snapshots(f"{name}.snapshots", decider)
        every = self.settings.snapshot_every
        if every is not None:
            snapshots.pack(b"the initial state", decider.initial, 0, 0)  # refuses states that JSON cannot hold
        self._loader = Loader(name, decider, self._coded, None if every is None else snapshots)
        self._deciding = Deciding(
            decider,
            self._coded,
            self._loader,
            snapshots,
            f"{name}.keys",
            every=every,
            retries=self.settings.retries,
            cached=self.settings.cached,
        )
        self._gathered: Gathered[Asked] = Gathered(self._work, _some)

    # commands

    def execute(self, aggregate: str, command: Any, *, key: str | None = None, who: str | None = None) -> Outcome:
        """Decide a command to the aggregate called ``aggregate`` on its newest state, and append the events that follow.

        When this returns Decided, they are on disk. A repeat with the same ``key`` decides nothing and gives the first answer again, a rejection
        too, for as long as answers are remembered; ``who`` stands in the events' headers. Raises Conflict when others
        were faster each time, KeyReused for a key of another command, and what ``decide`` or ``evolve`` raises; nothing is appended then.
        """
        return self.execute_all([Request(aggregate, command, key, who)])[0]

    def execute_all(self, requests: Iterable[Request]) -> list[Outcome]:
        """Execute many commands, up to a thousand in one transaction, and give their answers in order.

        Each stands for itself: a rejection or an error of one leaves the others done. The first error is raised in the end.
        """
        asked = [Asked(_key(each.aggregate), each.command, each.key, each.who) for each in requests]
        self._gathered.ask(asked)
        failed = next((each.error for each in asked if each.error is not None), None)
        if failed is not None:
            raise failed
        return [each.answer for each in asked if each.answer is not None]

    # states and their past

    def state(self, aggregate: str, *, version: int | None = None, at: datetime | None = None) -> S:
        """The state of an aggregate: now, or after its event number ``version``, or ``at`` a time, by append time."""
        return self.load(aggregate, version=version, at=at).state

    def load(self, aggregate: str, *, version: int | None = None, at: datetime | None = None) -> Aggregate[S]:
        """The same, with its version and how much was read for it."""
        if version is not None and version < 0:
            raise ConfigError(f"version: found {version}, expected at least 0")
        found = self._loader.load(self._reading(), _key(aggregate), version=version, at=at)
        if version is not None and found.version < version:
            raise SourcingError(f"{self.name} {aggregate} has no version {version}; it is at {found.version}")
        return found

    def history(self, aggregate: str) -> Iterator[Happened]:
        """The events of an aggregate from the first on, each with when it came, from which command and from whom."""
        return past.history(self._reading(), self.name, _key(aggregate), self._coded)

    def diff(self, aggregate: str, before: int, after: int) -> past.Differences:
        """What differs between the states at two versions: by the path of a field, its value before and after."""
        return past.differences(self.state(aggregate, version=before), self.state(aggregate, version=after))

    def what_if(
        self, aggregate: str, *, without: Iterable[int] = (), adding: Mapping[int, Sequence[Any]] | None = None
    ) -> past.Supposed[S]:
        """The state if some events had not happened, or others had: ``adding`` has events by the version after which they come, 0 for the first.

        Nothing is appended. Events are folded, not decided: a state that no command would have allowed can come out.
        """
        return past.suppose(self.decider, list(self.history(aggregate)), frozenset(without), dict(adding or {}))

    def check(self) -> past.Checked:
        """Read the whole history with today's code: every event, every fold, every snapshot."""
        snapshots = Snapshots(f"{self.name}.snapshots", self.decider)
        return past.check(self._reading(), self.decider, self._coded, snapshots, self.name)

    def close(self) -> None:
        """Close the log, if the store has opened it."""
        with self._lock:
            if self._log is not None and self._mine:
                self._log.close()
                self._log, self._partitions = None, None

    # the log

    def _work(self, asked: list[Asked]) -> None:
        log, partitions = self._writing()
        self._deciding.work(log, partitions, asked)

    def _reading(self) -> Log:
        with self._lock:
            if self._log is None:
                self._log = open_log(self._address, create=False)
            return self._log

    def _writing(self) -> tuple[Log, int]:
        """The log with the topics in it, made where they are missing."""
        with self._lock:
            if self._log is None:
                self._log = open_log(self._address)
            if self._partitions is None:
                self._partitions = self._prepared(self._log)
            return self._log, self._partitions

    def _prepared(self, log: Log) -> int:
        name, settings = self.name, self.settings
        try:
            partitions = log.topic(name).partitions
        except UnknownTopic:
            partitions = settings.partitions
        wanted = {
            name: TopicSettings(indexed=True),
            f"{name}.keys": TopicSettings(retention=settings.remember, indexed=True),
            f"{name}.snapshots": TopicSettings(cleanup="compact", max_record_bytes=16_000_000, indexed=True),
        }
        for each, how in wanted.items():
            with contextlib.suppress(TopicExists):
                log.create_topic(each, partitions, how)
            found = log.topic(each)
            _check(name, found, partitions)
            if not found.settings.indexed:
                log.alter_topic(each, settings=replace(found.settings, indexed=True))
        return partitions


def _check(name: str, found: Topic, partitions: int) -> None:
    """Refuse a topic that would lose events, or in which they moved."""
    if found.name == name and (found.settings.compacts or found.settings.expires):
        raise ConfigError(
            f"topic {name} forgets records (cleanup {found.settings.cleanup}); events of aggregates are kept for ever",
            hint=f"`millstream topics alter {name} --cleanup delete --retention none --retention-bytes 0`",
        )
    if found.partitions != partitions:
        raise ConfigError(
            f"topic {found.name} has {found.partitions} partitions, {name} has {partitions}: with more partitions keys move",
            hint="copy the events into a topic that is made with as many partitions as are wanted",
        )


def _some(waiting: deque[Asked]) -> list[Asked]:
    return [waiting.popleft() for _ in range(min(_TOGETHER, len(waiting)))]


def _key(aggregate: str) -> bytes:
    if not isinstance(aggregate, str) or not aggregate:
        raise ConfigError(f"aggregate: found {aggregate!r:.80}, expected a text that is not empty")
    return aggregate.encode()
