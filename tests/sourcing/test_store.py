"""Executing commands: answers, versions, keys, conflicts, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import BadEvent, ConfigError, Conflict, KeyReused, NotALog, SourcingError, Unreadable
from millstream.event import Event
from millstream.log import open_log
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import Decided, Decider, EventStore, Rejected, Request, StoreSettings
from tests.sourcing.models import (
    ACCOUNT,
    SHOW,
    Account,
    Book,
    Deposit,
    Deposited,
    Withdraw,
    Withdrawn,
    decide,
    evolve,
)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'bank.db'}"


@pytest.fixture
def bank(address: str) -> Iterator[EventStore[Account]]:
    with EventStore(address, "accounts", ACCOUNT) as store:
        yield store


def decided(answer: Decided | Rejected) -> Decided:
    assert isinstance(answer, Decided)
    return answer


def versions(store: EventStore[Any], aggregate: str) -> list[int]:
    return [each.version for each in store.history(aggregate)]


def test_a_command_gives_its_events_the_version_and_where_they_stand(bank: EventStore[Account], address: str) -> None:
    first = decided(bank.execute("ann", Deposit(10)))
    assert (first.events, first.version) == ((Deposited(10),), 1)
    second = decided(bank.execute("ann", Withdraw(2, times=3)))
    assert [event.amount for event in second.events] == [2, 2, 2]
    assert second.version == 4
    with open_log(address) as log:
        assert second.position == {"accounts": {0: log.bounds("accounts")[0].end}}
    assert bank.state("ann").balance == 4
    assert versions(bank, "ann") == [1, 2, 3, 4]


def test_a_rejected_command_and_one_without_events_append_nothing(bank: EventStore[Account], address: str) -> None:
    bank.execute("ann", Deposit(1))
    assert bank.execute("ann", Withdraw(2)) == Rejected("there are only 1")
    nothing = decided(bank.execute("ann", Deposit(0)))
    assert (nothing.events, nothing.version, nothing.position) == ((), 1, {"accounts": {0: 1}})
    assert decided(bank.execute("bob", Deposit(0))) == Decided((), 0, {"accounts": {0: 0}})
    with open_log(address) as log:
        assert log.bounds("accounts")[0].end == 1
        assert log.bounds("accounts.keys")[0].end == 0


def test_an_error_in_decide_reaches_its_caller_alone_and_appends_nothing(bank: EventStore[Account]) -> None:
    bank.execute("ann", Deposit(1))
    requests = [Request("ann", Deposit(5)), Request("ann", Deposit(-1)), Request("ann", Deposit(6))]
    with pytest.raises(ValueError, match="below zero"):
        bank.execute_all(requests)
    assert bank.state("ann").balance == 12
    assert versions(bank, "ann") == [1, 2, 3]


def test_decide_must_give_events_of_the_aggregate(address: str) -> None:
    wrong: Decider[int] = Decider(0, lambda _, command: command, lambda state, _: state + 1, events=Deposited)
    with EventStore(address, "wrong", wrong) as store:
        for found in ([Withdrawn(1)], ["text"], 7):
            with pytest.raises(SourcingError, match="expected events of Deposited"):
                store.execute("a", found)
        assert decided(store.execute("a", Deposited(1))).version == 1  # one may come alone
        assert versions(store, "a") == [1]


def test_a_repeat_with_the_same_key_gives_the_first_answer(address: str) -> None:
    with EventStore(address, "accounts", ACCOUNT) as bank:
        bank.execute("ann", Deposit(5))
        first = decided(bank.execute("ann", Withdraw(2, times=2), key="k1", who="till"))
        refused = bank.execute("ann", Withdraw(100), key="k2")
        bank.execute("ann", Deposit(1000))
    with EventStore(address, "accounts", ACCOUNT) as bank:
        again = decided(bank.execute("ann", Withdraw(2, times=2), key="k1", who="till"))
        assert again == first
        assert (first.repeated, again.repeated) == (False, True)
        assert bank.execute("ann", Withdraw(100), key="k2") == refused == Rejected("there are only 1")
        assert bank.state("ann").balance == 1001
        last = list(bank.history("ann"))[2]
        assert (last.key, last.who, last.command) == ("k1", "till", "Withdraw")


def test_a_key_that_is_there_twice_at_once_counts_once(bank: EventStore[Account]) -> None:
    answers = bank.execute_all(
        [Request("ann", Deposit(1), "k"), Request("bob", Deposit(2)), Request("ann", Deposit(1), "k")]
    )
    assert [decided(answer).repeated for answer in answers] == [False, False, True]
    assert bank.state("ann").balance == 1


def test_a_key_of_another_command_is_refused(bank: EventStore[Account]) -> None:
    bank.execute("ann", Deposit(1), key="k")
    with pytest.raises(KeyReused, match="key k was that of Deposit to ann; found Deposit to bob"):
        bank.execute("bob", Deposit(1), key="k")
    with pytest.raises(KeyReused, match="found Withdraw to ann"):
        bank.execute("ann", Withdraw(0), key="k")
    assert bank.state("bob").balance == 0


def test_the_repeat_of_what_would_fail_by_now_gives_the_first_answer(address: str) -> None:
    with EventStore(address, "accounts", ACCOUNT) as bank:
        first = bank.execute("ann", Deposit(1), key="k")

    def broken(state: Account, command: Any) -> Any:
        raise RuntimeError("no more deposits")

    with EventStore(address, "accounts", Decider(Account(), broken, evolve, events=Deposited | Withdrawn)) as bank:
        assert bank.execute("ann", Deposit(1), key="k") == first
        with pytest.raises(RuntimeError):
            bank.execute("ann", Deposit(1), key="other")


def test_answers_are_forgotten_after_their_time(tmp_path: Path) -> None:
    now = [1_000_000_000]
    with SqliteLog(tmp_path / "bank.db", clock=lambda: now[0]) as log:
        store = EventStore(log, "accounts", ACCOUNT, StoreSettings(remember=timedelta(days=1)))
        store.execute("ann", Deposit(1), key="k")
        now[0] += 86_400_000 - 5000
        log.maintain("accounts.keys")
        store.execute("ann", Deposit(1), key="k")
        assert store.state("ann").balance == 1
        now[0] += 10_000
        log.maintain("accounts.keys")
        store.execute("ann", Deposit(1), key="k")
        assert store.state("ann").balance == 2


def test_two_stores_that_know_an_old_state_decide_again(address: str) -> None:
    with EventStore(address, "accounts", ACCOUNT) as one, EventStore(address, "accounts", ACCOUNT) as other:
        one.execute("ann", Deposit(10))
        other.execute("ann", Withdraw(10))
        assert one.execute("ann", Withdraw(1)) == Rejected("there are only 0")  # it knew of 10
        other.execute("ann", Deposit(7))
        assert decided(one.execute("ann", Withdraw(7))).version == 4
        assert versions(one, "ann") == [1, 2, 3, 4]


def test_who_is_late_each_time_is_told_of_the_conflict(address: str) -> None:
    with EventStore(address, "accounts", ACCOUNT) as other:
        decisions = []

        def slow(state: Account, command: Any) -> Any:
            decisions.append(state.balance)
            other.execute("ann", Deposit(1))  # somebody is faster, each time
            return decide(state, command)

        slowly = Decider(Account(), slow, evolve, events=Deposited | Withdrawn)
        with (
            EventStore(address, "accounts", slowly, StoreSettings(retries=2)) as store,
            pytest.raises(Conflict, match="each of the 3 times that Deposit was decided"),
        ):
            store.execute("ann", Deposit(100))
        assert decisions == [0, 1, 2]
        assert other.state("ann").balance == 3


def test_threads_share_transactions_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "bank.db") as log:
        store = EventStore(log, "accounts", ACCOUNT)
        store.execute("all", Deposit(1000))
        answers: dict[int, list[Decided]] = {}
        gate = threading.Barrier(16)

        def work(number: int) -> None:
            gate.wait()
            answers[number] = [decided(store.execute("all", Withdraw(number, 1))) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, found in answers.items():
            assert [event.amount for each in found for event in each.events] == [number] * 5
        assert sorted(each.version for found in answers.values() for each in found) == list(range(2, 82))
        times = [each.time for each in store.history("all")]
        assert len(times) == 81
        assert len(set(times)) < 60  # most of them share the time of an append


def test_what_cannot_be_appended_is_the_error_of_one_command(bank: EventStore[Account], address: str) -> None:
    large: Decider[int] = Decider(0, lambda _, said: [Withdrawn(1, said)], lambda n, _: n + 1, events=Withdrawn)
    with EventStore(address, "notes", large) as store:
        asked = [Request("a", "x"), Request("a", "y" * 2_000_000), Request("a", "z"), Request("b", "x")]
        with pytest.raises(BadEvent, match="the topic takes up to"):
            store.execute_all(asked)
        assert [each.event.note for each in store.history("a")] == ["x", "z"]
        assert versions(store, "a") == [1, 2]
        assert versions(store, "b") == [1]


def test_topics_are_made_with_the_first_command_and_reading_makes_nothing(address: str, tmp_path: Path) -> None:
    with EventStore(address, "accounts", ACCOUNT, StoreSettings(partitions=3)) as bank:
        with pytest.raises(Exception, match="no log at"):
            bank.state("ann")
        assert list(tmp_path.iterdir()) == []
        bank.execute_all([Request(f"a{i}", Deposit(i)) for i in range(30)])
        with open_log(address) as log:
            assert [(topic.name, topic.partitions) for topic in log.topics()] == [
                ("accounts", 3),
                ("accounts.keys", 3),
                ("accounts.snapshots", 3),
            ]
            assert all(bounds.end for bounds in log.bounds("accounts").values())
        assert [bank.state(f"a{i}").balance for i in range(30)] == list(range(30))


def test_a_topic_that_forgets_or_has_grown_is_refused(address: str) -> None:
    with open_log(address) as log:
        log.create_topic("accounts", 1, TopicSettings(retention=timedelta(days=1)))
        with pytest.raises(ConfigError, match="topic accounts forgets records"):
            EventStore(log, "accounts", ACCOUNT).execute("ann", Deposit(1))
        log.alter_topic("accounts", settings=TopicSettings())
        EventStore(log, "accounts", ACCOUNT).execute("ann", Deposit(1))
        assert log.topic("accounts").settings.indexed
        log.alter_topic("accounts", partitions=2)
        with pytest.raises(ConfigError, match="with more partitions keys move"):
            EventStore(log, "accounts", ACCOUNT).execute("ann", Deposit(1))


def test_a_record_that_is_no_event_is_named(bank: EventStore[Account], address: str) -> None:
    bank.execute("ann", Deposit(1))
    with open_log(address) as log:
        log.append("accounts", [Event(b"{}", b"bob")])
    with pytest.raises(Unreadable, match="partition 0, offset 1: not an event of an aggregate"):
        bank.execute("bob", Deposit(1))
    assert bank.execute_all([Request("ann", Deposit(1))])


@pytest.mark.parametrize("aggregate", ["", 7])
def test_an_aggregate_has_a_text_as_its_name(bank: EventStore[Account], aggregate: Any) -> None:
    with pytest.raises(ConfigError, match="expected a text that is not empty"):
        bank.execute(aggregate, Deposit(1))


@pytest.mark.parametrize(
    "wrong", [{"partitions": 0}, {"snapshot_every": 0}, {"retries": -1}, {"cached": -1}, {"remember": timedelta(0)}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        StoreSettings(**wrong)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"something else" * 100)
    with EventStore(f"sqlite:{tmp_path / 'x.db'}", "accounts", ACCOUNT) as store, pytest.raises(NotALog):
        store.execute("ann", Deposit(1))


def test_few_aggregates_in_memory_are_as_good_as_many(address: str) -> None:
    with EventStore(address, "shows", SHOW, StoreSettings(cached=2, snapshot_every=2)) as store:
        for round_ in range(3):
            store.execute_all([Request(f"s{i}", Book((round_,), "ann")) for i in range(10)])
        assert store.execute("s7", Book((3, 2), "bob")) == Rejected("seat 2 is taken")
        assert all(store.load(f"s{i}").version == 3 for i in range(10))
