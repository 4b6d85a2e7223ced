"""The laws of event sourcing, for any commands, snapshots at any places, and an end at every failpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.failpoint import armed
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import Decided, Decider, EventStore, Rejected, Request, StoreSettings
from tests.sourcing.models import ACCOUNT, SHOW, Account, Book, Deposit, Free, Show, Withdraw

FAILPOINTS = (
    "sourcing.before_append",
    "log.append.in_transaction",
    "log.before_commit",
    "log.after_commit",
    "sourcing.after_append",
)
NAMES = ("a", "b", "c")
money = st.one_of(st.builds(Deposit, st.integers(0, 20)), st.builds(Withdraw, st.integers(0, 12), st.integers(1, 4)))
seats = st.one_of(
    st.builds(Book, st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple), st.sampled_from(["ann", "bob"])),
    st.builds(Free, st.integers(0, 9)),
)


def steps(commands: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Which store does what: some commands at once, with a key or not, ending at a failpoint or not; or cleaning."""
    some = st.lists(st.tuples(st.sampled_from(NAMES), commands), min_size=1, max_size=4)
    doing = st.tuples(st.integers(0, 2), some, st.sampled_from([None, None, *FAILPOINTS]))
    return st.lists(st.one_of(doing, st.just("clean")), max_size=12)


class Model:
    """What must come out, by one call after the other in memory."""

    def __init__(self, decider: Decider[Any]) -> None:
        self.decider = decider
        self.events: dict[str, list[Any]] = {name: [] for name in NAMES}

    def state(self, name: str, version: int | None = None) -> Any:
        return reduce(self.decider.evolve, self.events[name][:version], self.decider.initial)

    def execute(self, name: str, command: Any) -> tuple[Any, ...] | Rejected:
        found = self.decider.decide(self.state(name), command)
        if isinstance(found, Rejected):
            return found
        self.events[name] += (events := tuple(found))
        return events


def told(answer: Decided | Rejected) -> tuple[Any, ...] | Rejected:
    return answer.events if isinstance(answer, Decided) else answer


def play(decider: Decider[Any], steps: list[Any], every: list[int | None], right: Callable[[Any], bool]) -> None:
    model = Model(decider)
    with tempfile.TemporaryDirectory() as folder, SqliteLog(Path(folder) / "log.db") as log:
        stores = [
            EventStore(log, "things", decider, StoreSettings(snapshot_every=n, cached=i * 2))
            for i, n in enumerate(every)
        ]
        for number, step in enumerate(steps):
            if step == "clean":
                for topic in log.topics():
                    log.maintain(topic.name)
                continue
            which, commands, point = step
            store = stores[which]
            asked = [Request(name, command, f"{number}-{i}") for i, (name, command) in enumerate(commands)]
            if point is not None:
                try:
                    with armed(point):
                        store.execute_all(asked)
                except RuntimeError:
                    store = stores[which] = EventStore(log, "things", decider, store.settings)
            answers = store.execute_all(asked)  # the same keys again: it counts once
            assert [told(answer) for answer in answers] == [model.execute(*each) for each in commands]
            again = stores[(which + 1) % 3].execute_all(asked)
            assert again == answers
            assert all(answer.repeated for answer in again)
        if not steps or all(step == "clean" for step in steps):
            return
        for name in NAMES:
            history = list(stores[0].history(name))
            assert [each.version for each in history] == list(range(1, len(history) + 1))
            assert [each.event for each in history] == model.events[name]
            for store in stores:
                assert store.state(name) == model.state(name)
                for version in range(len(history) + 1):
                    state = store.state(name, version=version)
                    assert state == model.state(name, version)
                    assert right(state)
        checked = stores[0].check()
        assert (checked.found, checked.events) == (0, sum(map(len, model.events.values())))


spans = st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(steps(money), spans)
def test_a_state_is_the_fold_of_its_events_and_no_balance_is_ever_negative(done: list[Any], every: list[Any]) -> None:
    def right(state: Account) -> bool:
        return state.balance >= 0

    play(ACCOUNT, done, every, right)


@settings(max_examples=40, deadline=None)
@given(steps(seats), spans)
def test_a_seat_is_sold_once_whatever_happens(done: list[Any], every: list[Any]) -> None:
    def right(state: Show) -> bool:
        return len(state.taken) <= 10

    play(SHOW, done, every, right)


SELLER = """
import random, sys
from millstream.sourcing import Decided, EventStore, StoreSettings
from tests.sourcing.models import SHOW, Book
address, name, count = sys.argv[1:]
store = EventStore(address, "shows", SHOW, StoreSettings(snapshot_every=7))
turn = random.Random(name)
for i in range(int(count)):
    seats = (turn.randrange(60), turn.randrange(60))
    answer = store.execute(f"show{i % 2}", Book(seats, f"{name}-{i}"), key=f"{name}-{i}", who=name)
    if isinstance(answer, Decided):
        print(f"show{i % 2}", f"{name}-{i}", *sorted(set(seats)), flush=True)
"""


def sell(address: str, name: str, failpoint: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SELLER, address, name, "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MILLSTREAM_FAILPOINT": failpoint},
    )


@pytest.mark.parametrize("seed", range(2))
def test_four_processes_that_are_killed_again_and_again_sell_each_seat_once(tmp_path: Path, seed: int) -> None:
    address, turn = f"sqlite:{tmp_path / 'shows.db'}", random.Random(seed)
    sellers = {f"seller{i}": FAILPOINTS[(seed + i) % len(FAILPOINTS)] for i in range(4)}
    sold: set[tuple[str, ...]] = set()
    running = {name: sell(address, name, f"{point}:kill@{turn.randrange(3, 12)}") for name, point in sellers.items()}
    killed = 0
    while running:
        for name, child in list(running.items()):
            out, err = child.communicate(timeout=120)
            sold |= {tuple(line.split(" ", 2)) for line in out.splitlines()}
            del running[name]
            if child.returncode == -signal.SIGKILL:
                killed += 1
                again = f"{turn.choice(FAILPOINTS)}:kill@{turn.randrange(5, 60)}" if killed < 12 else ""
                running[name] = sell(address, name, again)
            else:
                assert child.returncode == 0, err
    assert killed >= 4
    with EventStore(address, "shows", SHOW) as store:
        bookings: dict[tuple[str, str], list[int]] = {}
        for show in ("show0", "show1"):
            history = list(store.history(show))
            assert [each.version for each in history] == list(range(1, len(history) + 1))
            taken = [each.event.seat for each in history]
            assert len(taken) == len(set(taken))
            for each in history:
                bookings.setdefault((show, each.event.by), []).append(each.event.seat)
                assert each.who == each.event.by.split("-")[0]
        told = {(show, by): sorted(map(int, rest.split())) for show, by, rest in sold}
        assert told == {place: sorted(found) for place, found in bookings.items()}
        assert store.check().found == 0
