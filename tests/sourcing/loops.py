"""What every command loop must do, whichever engine has the log. An engine's tests inherit this class and give the fixture ``log``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError, SourcingError
from millstream.event import Event, Record
from millstream.log.contract import Log
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import CommandLoop, Commands, Decided, Decider, EventStore, LoopSettings, Rejected, Reply
from millstream.sourcing.commands import unpack_reply
from millstream.sourcing.envelope import Coded, version_in
from millstream.sourcing.load import records_in
from tests.sourcing.models import ACCOUNT, SHOW, Account, Book, Deposit, Show, Withdraw

QUICK = LoopSettings(partitions=3, lease=timedelta(seconds=2))


def records(log: Log, topic: str) -> list[Record]:
    return [record for number in sorted(log.bounds(topic)) for record in records_in(log, topic, number)]


def events_by_aggregate(log: Log, name: str, decider: Decider[Any]) -> dict[str, list[Any]]:
    """The events of each aggregate; their versions are dense."""
    coded, found = Coded(decider), dict[str, list[Any]]()
    for record in records(log, name):
        mine = found.setdefault((record.key or b"").decode(), [])
        mine.append(coded.unpack(record))
        assert version_in(record) == len(mine)
    return found


@contextmanager
def running(log: Log, name: str, decider: Decider[Any]) -> Iterator[CommandLoop[Any]]:
    loop, stop = CommandLoop(log, name, decider, QUICK), threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        yield loop
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


class LoopContract:
    """Inherit, and provide the fixture."""

    @pytest.fixture
    def name(self) -> str:
        return f"things-{uuid.uuid4().hex[:8]}"

    def test_the_loop_answers_as_execute_does(self, log: Log, name: str, tmp_path: Path) -> None:
        turn, loop = random.Random(name), CommandLoop(log, name, ACCOUNT, QUICK)
        commands, expected = Commands(log, name, ACCOUNT), dict[str, Any]()
        with SqliteLog(tmp_path / "beside.db") as beside:
            store = EventStore(beside, "accounts", ACCOUNT)
            for i in range(60):
                aggregate, key = f"a{turn.randrange(4)}", f"k{i}"
                command: Any = turn.choice(
                    [Deposit(turn.randrange(10)), Withdraw(turn.randrange(6), turn.randrange(1, 4))]
                )
                for _ in range(turn.choice((1, 1, 2))):
                    commands.send(aggregate, command, key=key, who="me")
                    expected[key] = store.execute(aggregate, command, key=key)
                if turn.random() < 0.1:
                    loop.run(once=True)
            loop.run(once=True)
            found = events_by_aggregate(log, name, ACCOUNT)
            assert found == {each: events for each in found if (events := [h.event for h in store.history(each)])}
            answers: dict[str, Any] = {}
            for reply in map(unpack_reply, records(log, f"{name}.replies")):
                assert reply.failed is None
                assert reply.repeated == (reply.key in answers)
                answers[str(reply.key)] = reply.rejected or (reply.version, reply.count)
            told = {
                key: (answer.version, len(answer.events)) if isinstance(answer, Decided) else answer.reason
                for key, answer in expected.items()
            }
            assert answers == told

    def test_who_asks_gets_the_reply_and_where_the_events_are(self, log: Log, name: str) -> None:
        with running(log, name, ACCOUNT), Commands(log, name, ACCOUNT) as commands:
            reply, position = commands.ask("ann", Deposit(5), key="k", who="till", timeout=60)
            assert reply == Reply("k", "ann", "Deposit", version=1, count=1)
            ((topic, at),) = position.items()
            (event,) = records(log, name)
            assert topic == name
            assert at[event.partition] > event.offset
            assert commands.ask("ann", Deposit(5), key="k", timeout=60)[0].repeated
            assert commands.ask("ann", Withdraw(9), timeout=60)[0].rejected == "there are only 5"

    def test_what_cannot_be_decided_is_told_and_does_not_stop_the_loop(self, log: Log, name: str) -> None:
        loop = CommandLoop(log, name, ACCOUNT, QUICK)
        with pytest.raises(SourcingError, match="expected a command of Deposit, Withdraw"):
            Commands(log, name, ACCOUNT).send("ann", Book((1,), "ann"))
        commands = Commands(log, name, ACCOUNT)
        log.append(f"{name}.commands", [Event(b"{}", b"ann"), Event(None, b"ann"), Event(b"{}")])
        log.append(f"{name}.commands", [Event(b'{"amount": "x"}', b"ann", None, (("millstream.command", b"Deposit"),))])
        commands.send("ann", Deposit(-1), key="bad")
        commands.send("ann", Deposit(7), key="good")
        commands.send("ann", Withdraw(7), key="good")
        assert loop.run(once=True) == 7
        replies = [unpack_reply(record) for record in records(log, f"{name}.replies")]
        assert sum(reply.failed is not None for reply in replies) == 6
        assert "ValueError('a deposit below zero')" in {reply.failed for reply in replies}
        assert "key good was that of Deposit to ann" in {reply.failed for reply in replies}
        (good,) = [reply for reply in replies if reply.failed is None]
        assert (good.key, good.version) == ("good", 1)
        commands.send("ann", Deposit(1), key="bad")  # what failed is not remembered
        loop.run(once=True)
        assert events_by_aggregate(log, name, ACCOUNT)["ann"][-1].amount == 1

    def test_topics_with_other_partitions_and_deciders_without_commands_are_refused(self, log: Log, name: str) -> None:
        CommandLoop(log, name, ACCOUNT, QUICK)
        log.alter_topic(f"{name}.commands", partitions=5)
        with pytest.raises(ConfigError, match="has 5 partitions"):
            CommandLoop(log, name, ACCOUNT, QUICK)
        bare: Decider[Any] = Decider(Account(), ACCOUNT.decide, ACCOUNT.evolve, events=ACCOUNT.events)
        with pytest.raises(ConfigError, match="expected the types of commands"):
            CommandLoop(log, name, bare, QUICK)

    def test_loops_that_are_killed_and_joined_by_others_sell_each_seat_once(self, log: Log, name: str) -> None:
        turn = random.Random(name)
        commands, sent = Commands(log, name, SHOW), dict[str, tuple[str, Book]]()
        CommandLoop(log, name, SHOW, QUICK)
        points = ["sourcing.before_append", "log.append.in_transaction", "sourcing.after_append"]
        children = [loop_process(log.url, name, f"{points[i % 3]}:kill@{turn.randrange(3, 9)}") for i in range(2)]
        killed, deadline = 0, time.monotonic() + 100
        while (len(sent) < 120 or killed < 3) and time.monotonic() < deadline:
            for _ in range(3):
                show, key = f"show{turn.randrange(4)}", f"k{len(sent)}"
                book = Book((turn.randrange(40), turn.randrange(40)), key)
                sent[key] = show, book
                for _ in range(turn.choice((1, 1, 2))):
                    commands.send(show, book, key=key)
            time.sleep(0.05)
            for i, child in enumerate(children):
                if child.poll() is not None:
                    assert child.returncode == -signal.SIGKILL
                    killed += 1
                    point = f"{turn.choice(points)}:kill@{turn.randrange(3, 12)}" if killed < 4 else ""
                    children[i] = loop_process(log.url, name, point)
        for child in children:
            child.kill()
            child.wait(30)
        CommandLoop(log, name, SHOW, QUICK).run(once=True)
        assert killed >= 3
        found = events_by_aggregate(log, name, SHOW)
        for events in found.values():
            taken = [event.seat for event in events]
            assert len(taken) == len(set(taken))
        first = [reply for reply in map(unpack_reply, records(log, f"{name}.replies")) if not reply.repeated]
        assert Counter(reply.key for reply in first) == Counter(sent.keys())
        expected = dict[str, Show]()
        for record in records(log, f"{name}.commands"):  # in the order in which they were decided
            key = dict(record.headers)["millstream.key"].decode()
            if key in sent:
                show, book = sent.pop(key)
                state = expected.setdefault(show, Show())
                answer = SHOW.decide(state, book)
                if not isinstance(answer, Rejected):
                    expected[show] = reduce(SHOW.evolve, answer, state)
        assert {show: reduce(SHOW.evolve, events, Show()) for show, events in found.items()} == {
            show: state for show, state in expected.items() if state.taken
        }


LOOP = """
import sys
from millstream.sourcing import CommandLoop
from tests.sourcing.loops import QUICK
from tests.sourcing.models import SHOW
CommandLoop(sys.argv[1], sys.argv[2], SHOW, QUICK).run()
"""


def loop_process(url: str, name: str, failpoint: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", LOOP, url, name],
        env={**os.environ, "MILLSTREAM_FAILPOINT": failpoint},
        stdout=subprocess.DEVNULL,
    )
