"""Work queues of the embedded log: one worker per record at a time, and every record done or dead in the end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError, DeliveryFenced, OffsetOutOfRange, UnknownTopic
from millstream.event import Event, TopicPartition
from millstream.log.contract import Delivery, QueueSettings, TopicSettings, Worker
from millstream.log.embedded.engine import SqliteLog
from millstream.log.lag import group_lag
from tests.contracts.log import committed, read_all, values
from tests.log.embedded.test_group import Clock

PLACE = TopicPartition("t", 0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db", clock=clock) as opened:
        opened.create_topic("t")
        yield opened


def work(log: SqliteLog, **settings: Any) -> Worker:
    return log.worker("t", "q", QueueSettings(visibility=timedelta(seconds=10), **settings))


def add(log: SqliteLog, *names: str) -> None:
    log.append("t", [Event(name.encode()) for name in names])


def names(deliveries: list[Delivery]) -> list[str]:
    return values([delivery.record for delivery in deliveries])


def take(worker: Worker, limit: int = 10) -> list[Delivery]:
    return worker.take(limit, 0)


def test_after_the_clock_was_set_back_what_a_vanished_worker_held_goes_to_another(log: SqliteLog, clock: Clock) -> None:
    add(log, "a")
    take(work(log))
    clock.now -= 3_600_000
    assert names(take(work(log))) == ["a"]


def test_what_falls_due_again_comes_before_what_is_new_in_the_order_it_fell_due(log: SqliteLog, clock: Clock) -> None:
    one, two = work(log), work(log)
    add(log, "a", "b", "c", "d", "e")
    take(one, 2)
    clock.now += 1000
    late = take(one, 1)
    clock.now += 9500  # a and b are due, c is not yet
    assert names(take(two, 3)) == ["a", "b", "d"]
    clock.now += 1000
    assert names(take(two, 1)) == ["c"]
    with pytest.raises(DeliveryFenced):
        one.done(late)


def test_what_is_given_back_comes_first_of_all(log: SqliteLog, clock: Clock) -> None:
    one, two = work(log), work(log)
    add(log, "a", "b", "c")
    _, b = take(one, 2)
    clock.now += 10_001
    one.retry([b])
    got = take(two, 3)
    assert names(got) == ["b", "a", "c"]
    assert [delivery.attempt for delivery in got] == [2, 2, 1]


def test_a_late_acknowledgement_counts_if_nobody_else_has_begun(log: SqliteLog, clock: Clock) -> None:
    one = work(log)
    add(log, "a")
    got = take(one)
    clock.now += 60_000
    one.done(got)
    assert take(one) == []


def test_an_acknowledgement_of_an_earlier_attempt_is_refused(log: SqliteLog, clock: Clock) -> None:
    one = work(log)
    add(log, "a")
    first = take(one)
    clock.now += 10_001
    second = take(one)
    with pytest.raises(DeliveryFenced, match="attempt 1 at t/0 offset 0"):
        one.done(first)
    one.done(second)


def test_acknowledging_several_is_all_or_nothing(log: SqliteLog, clock: Clock) -> None:
    one, two = work(log), work(log)
    add(log, "a", "b")
    mine = take(one, 2)
    clock.now += 10_001
    take(two, 1)  # a has passed on, b has not
    for act in (one.done, one.retry, lambda d: one.reject(d, "no")):
        with pytest.raises(DeliveryFenced):
            act(list(reversed(mine)))
    assert committed(log, "q") == {PLACE: 0}
    assert read_all(log, "t.dead") == []
    one.done(mine[1:])


def test_the_group_has_come_as_far_as_its_lowest_open_record(log: SqliteLog) -> None:
    one = work(log)
    add(log, *"abcdef")
    a, b, c, d = take(one, 4)
    assert committed(log, "q") == {PLACE: 0}
    one.done([b, c])
    assert committed(log, "q") == {PLACE: 0}
    assert group_lag(log, groups=["q"])[0].records == 6
    one.done([a])
    assert committed(log, "q") == {PLACE: 3}
    one.done([d])
    assert committed(log, "q") == {PLACE: 4}
    assert group_lag(log, groups=["q"])[0].records == 2
    one.done(take(one))
    assert group_lag(log, groups=["q"])[0].records == 0


def test_closing_gives_everything_back_at_once(log: SqliteLog) -> None:
    one, two = work(log), work(log)
    add(log, "a", "b")
    kept = take(two, 1)
    take(one)
    one.close()
    got = take(two)
    assert names(got) == ["b"]
    assert got[0].attempt == 2
    two.done(kept + got)
    one.close()


def test_new_records_are_not_lost_beside_one_that_has_failed_too_often(log: SqliteLog) -> None:
    worker = work(log, max_deliveries=1)
    add(log, "poison")
    worker.retry(take(worker))
    add(log, "a", "b")
    got = take(worker)
    assert names(got) == ["a", "b"]
    assert [delivery.attempt for delivery in got] == [1, 1]
    worker.done(got)
    assert values(read_all(log, "t.dead")) == ["poison"]
    assert committed(log, "q") == {PLACE: 3}


def test_a_record_at_the_limit_of_its_topic_can_still_be_buried(log: SqliteLog) -> None:
    large = b"x" * 1_000_000
    log.append("t", [Event(large)])
    worker = work(log, max_deliveries=1)
    worker.retry(take(worker))
    assert take(worker) == []
    (dead,) = read_all(log, "t.dead")
    assert dead.value == large
    assert dict(dead.headers)["dead.reason"] == b"not done after 1 deliveries"
    assert dict(dead.headers)["dead.attempts"] == b"1"


def test_rejecting_nothing_does_nothing(log: SqliteLog) -> None:
    work(log).reject([], "no reason")
    with pytest.raises(UnknownTopic):
        log.topic("t.dead")


def test_dead_letters_go_where_the_settings_say(log: SqliteLog) -> None:
    worker = work(log, dead_letters="graveyard")
    add(log, "a")
    worker.reject(take(worker), "ugly")
    (dead,) = read_all(log, "graveyard")
    assert dict(dead.headers) == {
        "dead.topic": b"t",
        "dead.partition": b"0",
        "dead.offset": b"0",
        "dead.group": b"q",
        "dead.attempts": b"1",
        "dead.reason": b"ugly",
    }


def test_a_record_that_was_cleaned_away_is_not_waited_for(log: SqliteLog, clock: Clock) -> None:
    add(log, "a", "b")
    one = work(log)
    take(one)
    log.alter_topic("t", settings=TopicSettings(retention=timedelta(seconds=5)))
    clock.now += 10_001
    log.maintain("t")
    add(log, "c")
    assert names(take(one)) == ["c"]
    assert committed(log, "q") == {PLACE: 2}


def test_records_that_expired_before_anyone_took_them_are_an_error(log: SqliteLog, clock: Clock) -> None:
    add(log, "a")
    one = work(log)
    one.done(take(one))
    add(log, "b", "c")
    log.alter_topic("t", settings=TopicSettings(retention=timedelta(seconds=5)))
    clock.now += 10_001
    log.maintain("t")
    with pytest.raises(OffsetOutOfRange, match="offsets 1 to 2 are gone"):
        take(one)


def test_settings_that_make_no_sense_are_refused(log: SqliteLog) -> None:
    with pytest.raises(ConfigError, match="max_deliveries"):
        QueueSettings(max_deliveries=0)
    with pytest.raises(ConfigError, match="visibility"):
        QueueSettings(visibility=timedelta(0))
    with pytest.raises(UnknownTopic):
        log.worker("nowhere", "q")
    log.consumer("t", "c").close()
    with pytest.raises(ConfigError, match="is a consumer group"):
        log.worker("t", "c")


@pytest.mark.parametrize("seed", range(4))
def test_whatever_workers_do_every_record_is_done_once_or_dead_once(log: SqliteLog, clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    log.alter_topic("t", partitions=2)
    add(log, *(str(i) for i in range(60)))
    workers = [work(log, max_deliveries=3) for _ in range(4)]
    held: dict[Worker, list[Delivery]] = {worker: [] for worker in workers}
    done: Counter[str] = Counter()
    attempts: Counter[tuple[str, int]] = Counter()
    for _ in range(400):
        worker = chance.choice(workers)
        act = chance.choice(["take", "take", "done", "done", "retry", "reject", "sleep"])
        some = [d for d in held[worker] if chance.random() < 0.7]
        try:
            if act == "take":
                got = take(worker, chance.randrange(1, 6))
                attempts.update((name, d.attempt) for name, d in zip(names(got), got, strict=True))
                held[worker] += got
                continue
            if act == "sleep":
                clock.now += chance.choice([100, 4000, 11_000])
                continue
            if act == "done":
                worker.done(some)
                done.update(names(some))
            elif act == "retry":
                worker.retry(some)
            else:
                worker.reject(some[:1], "chance")
                some = some[:1]
        except DeliveryFenced:
            some = held[worker]  # forget them: others have them, or will
        held[worker] = [d for d in held[worker] if d not in some]
    clock.now += 11_000
    while got := take(workers[0], 100):
        workers[0].done(got)
        done.update(names(got))
    dead = Counter(values(read_all(log, "t.dead")))
    assert done + dead == Counter(str(i) for i in range(60))
    assert dead
    assert set(attempts.values()) == {1}  # no attempt was ever handed out twice
    assert {p.partition: offset for p, offset in committed(log, "q").items()} == {
        partition: bounds.end for partition, bounds in log.bounds("t").items()
    }
