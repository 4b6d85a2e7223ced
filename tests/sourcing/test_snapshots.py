"""Snapshots: made by policy, used only by the code that made them, and never the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from millstream.errors import SourcingError
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import Decider, EventStore, Request, StoreSettings
from millstream.sourcing.envelope import VERSION, Coded, Why
from tests.sourcing.models import ACCOUNT, Account, Deposit, Deposited, Withdraw, evolve

TENTH = StoreSettings(snapshot_every=10, cached=0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "bank.db") as opened:
        yield opened


def deposit(store: EventStore[Any], count: int) -> None:
    for _ in range(count):
        store.execute("ann", Deposit(1))


def snapshots(log: SqliteLog) -> int:
    return log.bounds("accounts.snapshots")[0].end


def test_a_snapshot_is_made_every_so_many_events_and_a_load_reads_what_is_after_it(log: SqliteLog) -> None:
    store = EventStore(log, "accounts", ACCOUNT, TENTH)
    deposit(store, 10)
    assert snapshots(log) == 0
    deposit(store, 1)
    assert snapshots(log) == 1  # of the ten before
    found = store.load("ann")
    assert (found.state.balance, found.version, found.read) == (11, 11, 2)
    deposit(store, 30)
    assert snapshots(log) == 4
    assert store.load("ann").read == 2
    assert EventStore(log, "accounts", ACCOUNT).load("ann") == replace(store.load("ann"), read=41, kept=0)


def test_a_state_of_the_past_begins_at_a_snapshot_that_is_not_younger(log: SqliteLog) -> None:
    store = EventStore(log, "accounts", ACCOUNT, TENTH)
    deposit(store, 45)
    found = store.load("ann", version=33)
    assert (found.state.balance, found.version, found.read) == (33, 33, 1 + 3 + 1)
    times = [each.time for each in store.history("ann")]
    for version in (9, 10, 11, 44):
        at = times[version - 1]
        expected = sum(time <= at for time in times)
        assert store.state("ann", at=at).balance == expected
        assert store.load("ann", at=at).read <= expected + 1
    assert store.state("ann", version=0) == Account()


def test_a_snapshot_of_other_code_is_not_used_and_a_new_one_is_made(log: SqliteLog) -> None:
    deposit(EventStore(log, "accounts", ACCOUNT, TENTH), 25)

    def doubled(state: Account, event: Any) -> Account:
        return evolve(evolve(state, event), event)

    store = EventStore(log, "accounts", replace(ACCOUNT, evolve=doubled), TENTH)
    found = store.load("ann")
    assert (found.state.balance, found.read, found.kept) == (50, 25, 0)
    deposit(store, 1)
    assert store.load("ann").kept == 25
    assert store.load("ann").state.balance == 52
    old = EventStore(log, "accounts", ACCOUNT, TENTH)
    assert old.load("ann").state.balance == 26  # its own are hidden behind the newest; events tell the same


def test_compaction_leaves_the_newest_snapshot_of_each(log: SqliteLog) -> None:
    store = EventStore(log, "accounts", ACCOUNT, TENTH)
    deposit(store, 45)
    store.execute_all([Request("bob", Withdraw(0, 12)), Request("bob", Deposit(1))])
    before = store.load("ann"), store.load("bob")
    assert log.maintain("accounts.snapshots").compacted == 3
    assert (store.load("ann"), store.load("bob")) == before
    assert store.state("ann", version=7).balance == 7


def test_a_snapshot_that_cannot_be_read_costs_time_and_nothing_else(log: SqliteLog) -> None:
    store = EventStore(log, "accounts", ACCOUNT, TENTH)
    deposit(store, 12)
    log.append("accounts.snapshots", [Event(b"not a snapshot", b"ann")])
    assert store.load("ann").state.balance == 12
    assert store.load("ann").read == 12


def test_a_wrong_snapshot_is_found_by_the_check(log: SqliteLog) -> None:
    store = EventStore(log, "accounts", ACCOUNT, TENTH)
    deposit(store, 12)
    record = log.of_key("accounts.snapshots", b"ann")[0]
    forged = msgspec.json.decode(record.value or b"")
    forged["state"]["balance"] = 1_000_000
    log.append("accounts.snapshots", [Event(msgspec.json.encode(forged), b"ann")])
    checked = store.check()
    assert (checked.found, checked.snapshots) == (1, 2)
    assert "ann, version 10" in checked.problems[0]
    assert "1000000" in checked.problems[0]


@dataclass(frozen=True)
class Odd:
    pairs: tuple[tuple[int, int], ...] = ()
    loose: Any = None


def test_a_state_that_json_cannot_hold_is_refused_with_the_way_out(log: SqliteLog) -> None:
    with pytest.raises(SourcingError, match="would not come back from JSON") as caught:
        EventStore(log, "odd", Decider({1: 2}, lambda _, command: [command], lambda s, _: s, events=Deposited), TENTH)
    assert "Decider(…, state=…)" in caught.value.hint
    typed: Decider[Any] = Decider(
        (1, 2),
        lambda _, command: [Deposited(command.amount)],
        lambda s, e: (*s, e.amount),
        events=Deposited,
        state=tuple[int, ...],
    )
    store = EventStore(log, "typed", typed, StoreSettings(snapshot_every=2, cached=0))
    for _ in range(5):
        store.execute("a", Deposit(3))
    assert store.load("a").state == (1, 2, 3, 3, 3, 3, 3)
    assert store.load("a").read < 5

    loose: Decider[Odd] = Decider(
        Odd(), lambda _, command: [Deposited(1)], lambda s, e: replace(s, loose=(1, 2)), events=Deposited
    )
    store = EventStore(log, "loose", loose, StoreSettings(snapshot_every=2))
    store.execute("a", Deposit(1))
    store.execute("a", Deposit(1))
    with pytest.raises(SourcingError, match="found Odd"):
        store.execute("a", Deposit(1))
    assert store.load("a").version == 2


def test_an_aggregate_of_a_million_events_with_a_snapshot_loads_its_tail_only(log: SqliteLog) -> None:
    million = 1_000_000
    counter = Decider(0, lambda _, command: [command], lambda state, event: state + event.amount, events=Deposited)
    store = EventStore(log, "counters", counter, StoreSettings(snapshot_every=1000, cached=0))
    store.execute("ann", Deposited(1))
    one = Coded(counter).pack(b"ann", Deposited(1), 2, Why("Deposited"))
    others = tuple(pair for pair in one.headers if pair[0] != VERSION)
    for first in range(2, million, 50_000):
        versions = range(first, min(first + 50_000, million))
        log.append("counters", [one._replace(headers=((VERSION, b"%d" % each), *others)) for each in versions])
    store.execute("ann", Deposited(1))  # reads them all, and makes a snapshot
    assert log.bounds("counters.snapshots")[0].end == 1
    rows: list[Any] = []
    db = log.store.db
    db.trace_v2(apsw.SQLITE_TRACE_ROW, rows.append)
    found = store.load("ann")
    db.trace_v2(0, None)
    assert (found.state, found.version, found.read) == (million, million, 2)
    assert 2 <= len(rows) < 20  # those of topics and settings are among them
