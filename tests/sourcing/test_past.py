"""The past of aggregates: history, states at a time, differences, what would have been, old versions of events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError, SourcingError, Unreadable
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import Decider, EventStore, StoreSettings
from tests.sourcing.models import ACCOUNT, SHOW, Account, Book, Booked, Deposit, Deposited, Free, Withdraw, Withdrawn

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clock:
    now = 1_767_268_800_000  # noon

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "bank.db", clock=clock) as opened:
        yield opened


@pytest.fixture
def bank(log: SqliteLog, clock: Clock) -> EventStore[Account]:
    store = EventStore(log, "accounts", ACCOUNT)
    for i, command in enumerate((Deposit(10), Withdraw(1, times=2), Deposit(100))):
        store.execute("ann", command, key=f"k{i}", who="till" if i else None)
        clock.now += 60_000
    return store


def test_history_tells_who_did_what_when(bank: EventStore[Account]) -> None:
    told = [(each.version, each.event, each.time, each.command, each.key, each.who) for each in bank.history("ann")]
    minute = timedelta(minutes=1)
    assert told == [
        (1, Deposited(10), NOON, "Deposit", "k0", None),
        (2, Withdrawn(1, "0"), NOON + minute, "Withdraw", "k1", "till"),
        (3, Withdrawn(1, "1"), NOON + minute, "Withdraw", "k1", "till"),
        (4, Deposited(100), NOON + 2 * minute, "Deposit", "k2", "till"),
    ]
    assert list(bank.history("nobody")) == []


def test_a_state_can_be_asked_for_at_a_version_and_at_a_time(bank: EventStore[Account]) -> None:
    assert [bank.state("ann", version=v).balance for v in range(5)] == [0, 10, 9, 8, 108]
    with pytest.raises(SourcingError, match="accounts ann has no version 5; it is at 4"):
        bank.state("ann", version=5)
    with pytest.raises(ConfigError, match="version: found -1"):
        bank.state("ann", version=-1)
    second = timedelta(seconds=1)
    assert bank.state("ann", at=NOON - second) == Account()
    assert bank.state("ann", at=NOON).balance == 10
    assert bank.state("ann", at=NOON + timedelta(minutes=1)).balance == 8
    assert bank.state("ann", at=NOON + timedelta(minutes=2) - second).balance == 8
    assert bank.state("ann", at=NOON + timedelta(days=1)).balance == 108


def test_differences_are_told_by_path(bank: EventStore[Account], log: SqliteLog) -> None:
    assert bank.diff("ann", 1, 3) == {"balance": (10, 8), "notes[0]": (None, "0"), "notes[1]": (None, "1")}
    assert bank.diff("ann", 3, 1)["balance"] == (8, 10)
    assert bank.diff("ann", 2, 2) == {}
    shows = EventStore(log, "shows", SHOW)
    shows.execute("s", Book((1, 2), "ann"))
    shows.execute("s", Free(1))
    assert shows.diff("s", 2, 3) == {"taken.1": ("ann", None)}


def test_what_would_have_been_is_told_and_nothing_is_appended(bank: EventStore[Account], log: SqliteLog) -> None:
    supposed = bank.what_if("ann", without=[1])
    assert (supposed.actual.balance, supposed.state.balance) == (108, 98)
    assert supposed.differences == {"balance": (108, 98)}
    more = bank.what_if("ann", without=[2, 3], adding={0: [Deposited(1)], 4: [Withdrawn(5, "fee"), Deposited(2)]})
    assert more.state == Account(10 + 100 + 1 - 5 + 2, ("fee",))
    assert bank.what_if("ann").differences == {}
    assert log.bounds("accounts")[0].end == 4
    with pytest.raises(SourcingError, match="there is no version 5; the aggregate is at 4"):
        bank.what_if("ann", without=[5])
    with pytest.raises(SourcingError, match="there is no version 9"):
        bank.what_if("ann", adding={9: [Deposited(1)]})
    with pytest.raises(SourcingError, match="expected events of the aggregate"):
        bank.what_if("ann", adding={1: [Booked(1, "x")]})


@dataclass(frozen=True)
class Paid:
    """What Deposited and Withdrawn have become; its own second version has a currency."""

    cents: int
    currency: str


@dataclass(frozen=True)
class Balance:
    cents: int = 0


def decide_paid(state: Balance, command: Paid) -> list[Paid]:
    return [command]


def add(state: Balance, event: Paid) -> Balance:
    return Balance(state.cents + event.cents)


UPCASTERS: dict[Any, Any] = {
    ("Deposited", 1): lambda fields: ("Paid", {"cents": fields["amount"] * 100}),
    ("Withdrawn", 1): lambda fields: ("Paid", {"cents": -fields["amount"] * 100}),
    ("Paid", 1): lambda fields: {**fields, "currency": "EUR"},
}
TODAY = Decider(Balance(), decide_paid, add, events=Paid, upcasters=UPCASTERS)


def test_old_events_are_brought_to_todays_version_when_they_are_read(bank: EventStore[Account], log: SqliteLog) -> None:
    stored = log.read("accounts", 0, 0)
    today = EventStore(log, "accounts", TODAY, StoreSettings(snapshot_every=2, cached=0))
    assert today.state("ann") == Balance(10800)
    assert [each.event for each in today.history("ann")][:2] == [Paid(1000, "EUR"), Paid(-100, "EUR")]
    today.execute("ann", Paid(5, "CHF"))
    assert [dict(r.headers)["millstream.schema"] for r in log.read("accounts", 0, 0)] == [b"1"] * 4 + [b"2"]
    assert log.read("accounts", 0, 0)[:4] == stored
    assert today.state("ann") == Balance(10805)
    assert today.check().found == 0
    other = {**UPCASTERS, ("Deposited", 1): lambda fields: ("Paid", {"cents": fields["amount"] * 1000})}
    changed = EventStore(log, "accounts", replace(TODAY, upcasters=other), StoreSettings(snapshot_every=2))
    assert changed.state("ann") == Balance(10 * 1000 - 200 + 100 * 1000 + 5)  # the snapshot was of other upcasters


@pytest.mark.parametrize(
    ("decider", "said"),
    [
        (Decider(Balance(), decide_paid, add, events=Paid), "no event is called Deposited today; there are Paid"),
        (
            replace(TODAY, upcasters={**UPCASTERS, ("Deposited", 1): lambda f: {"cents": 1}}),
            "no event is called Deposited",
        ),
        (
            replace(TODAY, upcasters={**UPCASTERS, ("Paid", 1): lambda f: f["no"]}),
            "the upcaster from version 1 of Paid failed",
        ),
        (
            replace(TODAY, upcasters={**UPCASTERS, ("Paid", 1): lambda f: {}}),
            "Deposited of version 1 does not fit the Paid of today",
        ),
    ],
)
def test_what_todays_code_does_not_read_is_named_and_found_by_the_check(
    bank: EventStore[Account], log: SqliteLog, decider: Decider[Any], said: str
) -> None:
    store = EventStore(log, "accounts", decider)
    with pytest.raises(Unreadable, match=f"partition 0, offset 0: .*{said}"):
        store.state("ann")
    with pytest.raises(Unreadable, match=said):
        store.execute("ann", Paid(1, "EUR"))
    checked = store.check()
    assert checked.found >= 2
    assert said in checked.problems[0]
    assert checked.problems[0].startswith("ann, version 1 (partition 0, offset 0): ")


def test_events_of_a_later_version_are_refused(log: SqliteLog, bank: EventStore[Account]) -> None:
    later = EventStore(log, "later", replace(ACCOUNT, upcasters={("Deposited", 1): dict}))
    later.execute("ann", Deposit(1))
    assert later.state("ann").balance == 1
    with pytest.raises(Unreadable, match="Deposited of version 2; today's code knows up to 1"):
        EventStore(log, "later", ACCOUNT).state("ann")


def test_the_check_finds_gaps_doubles_strangers_and_folds_that_fail(log: SqliteLog, bank: EventStore[Account]) -> None:
    assert bank.check().problems == []
    record = log.read("accounts", 0, 3)[0]
    log.append("accounts", [Event(record.value, b"ann", None, record.headers), Event(b"{}", b"bob")])
    problems = bank.check().problems
    assert [line.partition(": ")[2][:40] for line in problems] == [
        "expected version 5",
        "expected version 1",
        "topic accounts, partition 0, offset 5: n",
    ]

    def fails(state: Account, event: Any) -> Account:
        raise ZeroDivisionError("no")

    checked = EventStore(log, "accounts", replace(ACCOUNT, evolve=fails)).check()
    assert (checked.events, checked.aggregates, checked.found) == (6, 2, 1 + 3)
    assert "evolve failed: ZeroDivisionError" in checked.problems[0]
