"""A saga on both engines: an order asks for a payment, is confirmed when it is paid, and cancelled when it is not paid in time."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError, SourcingError
from millstream.failpoint import armed
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import CommandLoop, Commands, Decider, Happened, LoopSettings, Reactor, Rejected, Send
from millstream.sourcing.commands import unpack_reply
from millstream.testing import KafkaBroker
from tests.sourcing.loops import events_by_aggregate, records

SETTINGS = LoopSettings(partitions=2, lease=timedelta(seconds=5))
IN_TIME, SLOWLY = timedelta(hours=1), timedelta(hours=3)


@dataclass(frozen=True)
class Place:
    amount: int


@dataclass(frozen=True)
class Confirm: ...


@dataclass(frozen=True)
class Cancel:
    why: str


@dataclass(frozen=True)
class Placed:
    amount: int


@dataclass(frozen=True)
class Confirmed: ...


@dataclass(frozen=True)
class Cancelled:
    why: str


@dataclass(frozen=True)
class Ask:
    amount: int


@dataclass(frozen=True)
class Pay: ...


@dataclass(frozen=True)
class Asked:
    amount: int


@dataclass(frozen=True)
class Paid:
    amount: int


def order(state: str, command: Any) -> Any:
    match command, state:
        case Place(amount), "":
            return [Placed(amount)]
        case Confirm(), "placed":
            return [Confirmed()]
        case Cancel(why), "placed":
            return [Cancelled(why)]
    return Rejected(f"it is {state or 'not there'}")


def payment(state: int, command: Any) -> Any:
    match command:
        case Ask(amount):
            return [Asked(amount)]
        case Pay() if state > 0:
            return [Paid(state)]
    return Rejected("nothing is asked for")


ORDERS: Decider[str] = Decider(
    "",
    order,
    lambda _, event: type(event).__name__.lower(),
    events=Placed | Confirmed | Cancelled,
    commands=Place | Confirm | Cancel,
)
PAYMENTS: Decider[int] = Decider(
    0, payment, lambda state, event: state + (event.amount if isinstance(event, Asked) else -event.amount),
    events=Asked | Paid, commands=Ask | Pay,
)  # fmt: skip


class World:
    """The aggregates, their loops, and the saga between them."""

    def __init__(self, log: Log, settings: LoopSettings = SETTINGS) -> None:
        self.log, mark = log, uuid.uuid4().hex[:8]
        self.orders, self.payments = f"orders-{mark}", f"payments-{mark}"
        self.commands = {name: Commands(log, name, decider) for name, decider in self.deciders.items()}
        self.saga = Reactor(
            log, f"saga-{mark}", reads=self.deciders, sends=self.deciders, react=self.react, settings=settings
        )

    @property
    def deciders(self) -> dict[str, Decider[Any]]:
        return {self.orders: ORDERS, self.payments: PAYMENTS}

    def react(self, kind: str, aggregate: str, happened: Happened) -> Iterator[Send]:
        match happened.event:
            case Placed(amount):
                yield Send(self.payments, aggregate, Ask(amount))
                yield Send(
                    self.orders, aggregate, Cancel("not paid in time"), after=SLOWLY if amount >= 100 else IN_TIME
                )
            case Paid():
                yield Send(self.orders, aggregate, Confirm())

    def settle(self, failing: Callable[[], str | None] = lambda: None) -> None:
        """Run everything until nothing follows any more; each part may fail on the way, and is run again."""
        for _ in range(3):
            loops = [CommandLoop(self.log, *each, SETTINGS) for each in self.deciders.items()]
            parts: list[CommandLoop[Any] | Reactor] = [*loops, self.saga]
            for part in parts:
                while (point := failing()) is not None:
                    try:
                        with armed(point):
                            part.run(once=True)
                    except RuntimeError:
                        continue
                part.run(once=True)

    def events(self, kind: str) -> dict[str, list[Any]]:
        return events_by_aggregate(self.log, kind, self.deciders[kind])


class SagaContract:
    """Inherit, and provide the fixtures ``log`` and ``later``, which lets the time pass in which an order is to be paid."""

    @pytest.fixture
    def settings(self) -> LoopSettings:
        return SETTINGS

    def test_each_order_is_confirmed_or_cancelled_once_whatever_fails(
        self, log: Log, settings: LoopSettings, later: Callable[[], None]
    ) -> None:
        world, turn = World(log, settings), random.Random(3)
        points = ["sourcing.before_append", "sourcing.after_append", "log.append.in_transaction"]

        def failing() -> str | None:
            return turn.choice(points) if turn.random() < 0.5 else None

        for i in range(6):
            world.commands[world.orders].send(f"o{i}", Place(10 + i))
        world.settle(failing)
        assert world.events(world.payments) == {f"o{i}": [Asked(10 + i)] for i in range(6)}
        for i in (1, 4):
            world.commands[world.payments].send(f"o{i}", Pay())
        world.settle(failing)
        later()
        world.settle(failing)
        ends = {i: Confirmed() if i in (1, 4) else Cancelled("not paid in time") for i in range(6)}
        assert world.events(world.orders) == {f"o{i}": [Placed(10 + i), end] for i, end in ends.items()}
        replies = [unpack_reply(record) for record in records(log, f"{world.orders}.replies")]
        late = [reply for reply in replies if reply.command == "Cancel" and not reply.repeated]
        assert sorted(reply.aggregate for reply in late) == [f"o{i}" for i in range(6)]
        assert {reply.aggregate for reply in late if reply.rejected == "it is confirmed"} == {"o1", "o4"}
        assert [reply.failed for reply in replies if reply.failed] == []

    def test_what_is_due_later_waits_and_what_went_goes_once_over_restarts(
        self, log: Log, settings: LoopSettings, later: Callable[[], None]
    ) -> None:
        world = World(log, settings)
        for kind, amount in (("slow", 100), ("quick", 1)):  # the slow ones stand before the quick ones
            for i in range(4):
                world.commands[world.orders].send(f"{kind}{i}", Place(amount))
            world.settle()
        assert {len(events) for events in world.events(world.orders).values()} == {1}
        assert world.saga.run(once=True) == 0

        def cancelled() -> set[str]:
            world.settle()
            replies = [unpack_reply(record) for record in records(log, f"{world.orders}.replies")]
            once = [reply.aggregate for reply in replies if reply.command == "Cancel" and not reply.repeated]
            assert len(once) == len(set(once))
            assert {each for each, events in world.events(world.orders).items() if len(events) == 2} == set(once)
            return set(once)

        later()
        assert cancelled() == {f"quick{i}" for i in range(4)}
        assert cancelled() == {f"quick{i}" for i in range(4)}
        later()
        assert cancelled() == {f"{kind}{i}" for kind in ("slow", "quick") for i in range(4)}
        assert world.saga.run(once=True) == 0

    def test_what_follows_must_be_for_somebody_who_is_named(self, log: Log, settings: LoopSettings) -> None:
        world = World(log, settings)
        world.saga._react = lambda *_: [Send("nobody", "o", Pay())]
        world.commands[world.orders].send("o", Place(1))
        CommandLoop(log, world.orders, ORDERS, SETTINGS).run(once=True)
        with pytest.raises(SourcingError, match="sends to 'nobody'; expected one of orders"):
            world.saga.run(once=True)
        with pytest.raises(ConfigError, match="expected something to read"):
            Reactor(log, "none", reads={}, sends=world.deciders, react=world.react)


class TestEmbedded(SagaContract):
    """On the embedded log, whose clock is set."""

    @pytest.fixture
    def clock(self) -> list[int]:
        return [1_767_268_800_000]

    @pytest.fixture
    def log(self, tmp_path: Path, clock: list[int]) -> Iterator[Log]:
        with SqliteLog(tmp_path / "log.db", clock=lambda: clock[0]) as opened:
            yield opened

    @pytest.fixture
    def later(self, clock: list[int]) -> Callable[[], None]:
        def pass_time() -> None:
            clock[0] += 2 * 3_600_000

        return pass_time


class TestKafka(SagaContract):
    """On a real broker, with a clock that is set for timeouts."""

    @pytest.fixture
    def clock(self) -> list[int]:
        return [time.time_ns() // 1_000_000]

    @pytest.fixture
    def settings(self, clock: list[int]) -> LoopSettings:
        return replace(SETTINGS, clock=lambda: clock[0])

    @pytest.fixture
    def log(self, kafka: KafkaBroker) -> Iterator[Log]:
        with open_log(kafka.url) as opened:
            yield opened

    @pytest.fixture
    def later(self, clock: list[int]) -> Callable[[], None]:
        def pass_time() -> None:
            clock[0] += 2 * 3_600_000

        return pass_time
