"""The buffered producer: what each policy does when the log is slow or away, and that nothing comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import BadEvent, BadName, ConfigError, LogFull, LogUnavailable, UnknownTopic
from millstream.event import Event
from millstream.log.contract import Ack, TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.producer import Buffer, Counters, Producer
from tests.contracts.log import read_all, values
from tests.waiting import until

ROOT = Path(__file__).parents[2]
MANY = 1_000_000


class SwitchedLog(SqliteLog):
    """A real log whose appends wait for a permit, and fail or lose their acknowledgement when told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.permits = threading.Semaphore(0)
        self.waiting = threading.Event()
        self.away = 0
        self.full = False
        self.lost_acknowledgements = 0

    def let(self, appends: int = MANY) -> None:
        for _ in range(min(appends, 10_000)):
            self.permits.release()

    def append(
        self,
        topic: str,
        events: Sequence[Event],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        own: bool = False,
    ) -> Ack:
        self.waiting.set()
        if not self.permits.acquire(timeout=30):
            raise AssertionError("the test never let this append go on")
        if self.full:
            raise LogFull("no room")
        if self.away:
            self.away -= 1
            raise LogUnavailable("switched off")
        ack = super().append(topic, events, producer=producer, sequence=sequence, own=own)
        if self.lost_acknowledgements:
            self.lost_acknowledgements -= 1
            raise LogUnavailable("the acknowledgement was lost")
        return ack


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SwitchedLog]:
    with SwitchedLog(tmp_path / "log.db") as opened:
        opened.create_topic("t", 1, TopicSettings(max_record_bytes=100))
        yield opened


def event(number: int) -> Event:
    return Event(b"%03d" % number, b"k")


def names(numbers: range | list[int]) -> list[str]:
    return [f"{number:03d}" for number in numbers]


def held(log: SwitchedLog, **options: Any) -> Producer:
    """A producer with event 0 on its way into a log that makes it wait; its memory is empty."""
    producer = Producer(log, "t", Buffer(**options), name="p")
    assert producer.send(event(0))
    assert log.waiting.wait(30)
    return producer


# block


def test_block_makes_the_caller_wait_until_there_is_room(log: SwitchedLog) -> None:
    producer = held(log, policy="block", capacity=5, batch=2)
    for number in range(1, 6):
        assert producer.send(event(number), timeout=0)
    with pytest.raises(LogUnavailable, match=r"no room for 0\.05 s"):
        producer.send(event(99), timeout=0.05)
    assert producer.counters == Counters(accepted=6, blocked=1)
    opener = threading.Thread(target=lambda: until(lambda: producer.counters.blocked == 2) and log.let())
    opener.start()
    assert producer.send(event(6), timeout=30)
    opener.join()
    producer.close()
    assert values(read_all(log, "t")) == names(range(7))
    assert producer.counters == Counters(accepted=7, sent=7, blocked=2)


# drop


def test_drop_newest_refuses_and_counts_what_does_not_fit(log: SwitchedLog) -> None:
    producer = held(log, policy="drop", dropping="newest", capacity=5)
    assert [producer.send(event(number)) for number in range(1, 9)] == [True] * 5 + [False] * 3
    assert producer.counters == Counters(accepted=6, dropped=3)
    log.let()
    producer.close()
    assert values(read_all(log, "t")) == names(range(6))
    assert producer.counters == Counters(accepted=6, sent=6, dropped=3)


def test_drop_oldest_gives_way_to_the_newest_and_counts_it(log: SwitchedLog) -> None:
    producer = held(log, policy="drop", dropping="oldest", capacity=5)
    assert [producer.send(event(number)) for number in range(1, 9)] == [True] * 8
    log.let()
    producer.close()
    assert values(read_all(log, "t")) == names([0, 4, 5, 6, 7, 8])
    assert producer.counters == Counters(accepted=9, sent=6, dropped=3)


# buffer


def spilling(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"policy": "buffer", "capacity": 4, "batch": 2, "spill": tmp_path / "spill.db", **more}


def test_buffer_spills_to_disk_up_to_its_limit_then_blocks(log: SwitchedLog, tmp_path: Path) -> None:
    producer = held(log, **spilling(tmp_path, spill_bytes=24))  # an event is 4 bytes: 6 of them
    for number in range(1, 11):
        assert producer.send(event(number), timeout=0)
    assert producer.counters == Counters(accepted=11, spilled=6)
    with pytest.raises(LogUnavailable, match="no room"):
        producer.send(event(99), timeout=0.05)
    log.let()
    assert producer.send(event(11), timeout=30)
    producer.close()
    assert values(read_all(log, "t")) == names(range(12))
    assert producer.counters.sent == producer.counters.accepted == 12


def test_the_limit_of_the_spill_file_holds_while_it_is_being_sent(log: SwitchedLog, tmp_path: Path) -> None:
    producer = held(log, **spilling(tmp_path, spill_bytes=24))
    for number in range(1, 11):
        producer.send(event(number), timeout=0)
    log.let(
        4
    )  # the first event, the memory in two batches, and one batch of the file: memory is empty, the file is not
    until(lambda: producer.counters.sent == 7)
    with pytest.raises(LogUnavailable, match="no room"):
        producer.send(event(99), timeout=0.05)
    log.let()
    producer.close()
    assert values(read_all(log, "t")) == names(range(11))


def test_order_holds_from_memory_through_the_file_to_memory(log: SwitchedLog, tmp_path: Path) -> None:
    log.away = 3
    producer = held(log, **spilling(tmp_path))
    for number in range(1, 40):
        producer.send(event(number), timeout=0)
    log.let(12)
    until(lambda: producer.counters.sent >= 5)
    for number in range(40, 75):  # while the file is being sent
        producer.send(event(number), timeout=0)
    log.let()
    producer.flush(30)
    for number in range(75, 90):  # the file is empty again
        producer.send(event(number), timeout=30)
    producer.close()
    assert values(read_all(log, "t")) == names(range(90))
    assert producer.counters.retried == 3
    assert producer.counters.spilled > 0


CHILD = """
import os, sys, time
from pathlib import Path
from millstream.errors import LogUnavailable
from millstream.log.producer import Buffer, Producer
from tests.log.test_producer import SwitchedLog, event, spilling

class Fatal(SwitchedLog):
    '''Takes the memory and the first batch of the file, then the process dies before it can note that.'''
    def append(self, topic, events, **more):
        ack = super().append(topic, events, **more)
        if events[0].value == b"005":
            os.kill(os.getpid(), 9)
        return ack

folder, how = Path(sys.argv[1]), sys.argv[2]
log = Fatal(folder / "log.db")
producer = Producer(log, "t", Buffer(**spilling(folder)), name="p")
producer.send(event(0))
log.waiting.wait(30)
for number in range(1, 21):
    producer.send(event(number))
print("sent", producer.counters.spilled, flush=True)
if how == "dies":
    log.let()
time.sleep(60)
"""


def killed_child(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path), how]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"sent 16\n"
        if how == "waits":
            os.kill(child.pid, signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(("how", "first"), [("waits", 5), ("dies", 0)])
def test_after_a_kill_the_next_producer_sends_what_the_file_holds_once(
    log: SwitchedLog, tmp_path: Path, how: str, first: int
) -> None:
    killed_child(tmp_path, how)
    log.let()
    with Producer(log, "t", Buffer(**spilling(tmp_path)), name="p") as producer:
        producer.flush(30)
        assert values(read_all(log, "t")) == names(range(first, 21))  # what was only in memory died with the process
        producer.send(event(21))
    with Producer(log, "t", Buffer(**spilling(tmp_path)), name="p") as producer:
        producer.send(event(22))
    assert values(read_all(log, "t")) == names(range(first, 23))


def test_the_limit_of_the_spill_file_counts_what_an_earlier_producer_left(log: SwitchedLog, tmp_path: Path) -> None:
    killed_child(tmp_path, "waits")  # 16 events, and the batch number with each
    producer = Producer(log, "t", Buffer(**spilling(tmp_path, spill_bytes=64)), name="p")
    with pytest.raises(LogUnavailable, match="no room"):
        producer.send(event(99), timeout=0.05)
    log.let()
    producer.flush(30)
    assert producer.send(event(21), timeout=0)
    producer.close()
    assert values(read_all(log, "t")) == names(range(5, 22))


def test_an_event_that_could_not_be_read_back_from_the_file_is_refused_at_once(
    log: SwitchedLog, tmp_path: Path
) -> None:
    producer = held(log, **spilling(tmp_path))
    for number in range(1, 6):
        producer.send(event(number))
    with pytest.raises(BadEvent, match="bytes or None"):
        producer.send(Event("text"))  # type: ignore[arg-type]
    producer.send(event(6))
    producer.send(event(7))
    log.let()
    producer.close()
    assert values(read_all(log, "t")) == names(range(8))


def test_an_event_too_large_for_the_topic_does_not_block_the_file(log: SwitchedLog, tmp_path: Path) -> None:
    producer = held(log, **spilling(tmp_path))
    for number in range(1, 6):
        producer.send(event(number))
    producer.send(Event(b"x" * 2_000_000))
    producer.send(event(6))
    log.let()
    with pytest.raises(BadEvent, match="takes up to 100"):
        producer.close()
    assert values(read_all(log, "t")) == names(range(7))
    assert producer.counters.failed == 1


# errors and retries


def test_a_bad_event_is_reported_and_the_rest_of_its_batch_goes_through(log: SwitchedLog) -> None:
    producer = held(log, batch=50)
    for number in range(1, 11):
        producer.send(Event(b"x" * 500) if number == 4 else event(number))
    log.let()
    with pytest.raises(BadEvent, match="takes up to 100"):
        producer.flush(30)
    producer.send(event(11))
    producer.close()
    assert values(read_all(log, "t")) == names([n for n in range(12) if n != 4])
    assert producer.counters == Counters(accepted=12, sent=11, failed=1)


def test_closing_sends_everything_before_it_raises_an_earlier_error(log: SwitchedLog) -> None:
    producer = held(log, batch=2)
    producer.send(Event(b"x" * 500))
    for number in range(1, 51):
        producer.send(event(number))
    log.let()
    with pytest.raises(BadEvent):
        producer.close()
    assert values(read_all(log, "t")) == names(range(51))


def test_a_retry_after_a_lost_acknowledgement_adds_nothing(log: SwitchedLog) -> None:
    log.lost_acknowledgements = 2
    log.let()
    with Producer(log, "t", Buffer(batch=5)) as producer:
        for number in range(20):
            producer.send(event(number))
    assert values(read_all(log, "t")) == names(range(20))
    assert producer.counters == Counters(accepted=20, sent=20, retried=2)


def test_singled_out_events_with_a_lost_acknowledgement_come_once(log: SwitchedLog) -> None:
    producer = held(log, batch=50)
    for number in range(1, 6):
        producer.send(Event(b"x" * 500) if number == 3 else event(number))
    log.lost_acknowledgements = 3
    log.let()
    with pytest.raises(BadEvent):
        producer.close()
    assert values(read_all(log, "t")) == names([0, 1, 2, 4, 5])


def test_a_log_that_is_away_for_a_while_is_asked_again(log: SwitchedLog) -> None:
    log.away = 3
    log.let()
    with Producer(log, "t") as producer:
        producer.send(event(0))
    assert values(read_all(log, "t")) == ["000"]
    assert producer.counters == Counters(accepted=1, sent=1, retried=3)


def test_a_full_disk_is_told_and_what_was_accepted_goes_in_when_there_is_room(log: SwitchedLog) -> None:
    log.full = True
    log.let()
    producer = Producer(log, "t", Buffer(capacity=3, batch=1))
    for number in range(3):
        producer.send(event(number))
    with pytest.raises(LogFull):
        producer.flush(30)
    with pytest.raises(LogFull):  # the memory has room for one more, and no more
        list(map(producer.send, map(event, range(3, 9))))
    accepted = producer.counters.accepted
    log.full = False
    until(lambda: producer.counters.sent == accepted)
    producer.close()
    assert values(read_all(log, "t")) == names(range(accepted))


def interrupted(producer: Producer) -> None:
    producer.send(event(0))
    raise KeyboardInterrupt


def test_closing_on_a_full_disk_says_so_and_ends(log: SwitchedLog) -> None:
    log.full = True
    log.let()
    with pytest.raises(LogFull), Producer(log, "t") as producer:
        producer.send(event(0))
    assert not producer._thread.is_alive()
    with pytest.raises(KeyboardInterrupt), Producer(log, "t") as producer:
        interrupted(producer)
    assert not producer._thread.is_alive()


def test_closing_while_the_log_is_away_says_so_and_ends(log: SwitchedLog) -> None:
    log.away = MANY
    log.let()
    producer = Producer(log, "t")
    producer.send(event(0))
    with pytest.raises(LogUnavailable, match=r"not everything is in the log after 0\.1 s"):
        producer.close(timeout=0.1)
    assert not producer._thread.is_alive()
    with pytest.raises(LogUnavailable):
        producer.send(event(1))


def test_a_topic_deleted_meanwhile_is_reported(log: SwitchedLog) -> None:
    log.let()
    producer = Producer(log, "t")
    log.delete_topic("t")
    producer.send(event(0))
    with pytest.raises(UnknownTopic):
        producer.close()
    assert producer.counters == Counters(accepted=1, failed=1)
    with pytest.raises(UnknownTopic):
        Producer(log, "t")


def test_events_wait_for_company_only_as_long_as_linger_says(log: SwitchedLog) -> None:
    with Producer(log, "t", Buffer(batch=10, linger=timedelta(seconds=30))) as producer:
        for number in range(9):
            producer.send(event(number))
        assert not log.waiting.wait(0.1)
        producer.send(event(9))
        assert log.waiting.wait(5)
        log.let()
        producer.flush(30)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy": "hope"}, "policy: found 'hope'"),
        ({"dropping": "some"}, "dropping: found 'some'"),
        ({"capacity": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"policy": "buffer"}, "needs a file"),
    ],
)
def test_a_buffer_that_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Buffer(**options)


def test_a_spill_file_needs_a_name_that_is_the_same_next_time(log: SwitchedLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a producer name"):
        Producer(log, "t", Buffer(**spilling(tmp_path)))
    with pytest.raises(BadName):
        Producer(log, "t", name="__mine")
