"""Who holds a pipeline, who may take it, and how a lease is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.errors import AlreadyRunning, TakenOver, ViewStoreUnavailable
from millstream.store.lease import TTL, Keeper, now, refuse_if_live, this_process
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.sqlite.writer import SqliteWriter, sqlite_writer
from tests.contracts.store import BAG, Batches
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SECOND = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.time = now()

    def __call__(self) -> int:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "views.db"


@pytest.fixture
def writer(path: Path, clock: Clock) -> Iterator[SqliteWriter]:
    with sqlite_writer(path, clock=clock) as opened:
        yield opened


@pytest.fixture
def other(path: Path, clock: Clock) -> Iterator[SqliteWriter]:
    with sqlite_writer(path, clock=clock) as opened:
        yield opened


def test_a_lease_runs_out_when_it_is_not_renewed(writer: SqliteWriter, other: SqliteWriter, clock: Clock) -> None:
    writer.claim("p")
    clock.time += TTL - 1
    with pytest.raises(AlreadyRunning):
        other.claim("p")
    clock.time += 1
    assert other.claim("p") == 2
    with pytest.raises(TakenOver):
        writer.renew()


def test_a_renewed_lease_lives_on(writer: SqliteWriter, other: SqliteWriter, clock: Clock) -> None:
    writer.claim("p")
    for _ in range(5):
        clock.time += 10 * SECOND
        writer.renew()
    with pytest.raises(AlreadyRunning):
        other.claim("p")


def test_a_lease_that_ran_out_but_was_not_taken_can_be_renewed(
    writer: SqliteWriter, other: SqliteWriter, clock: Clock
) -> None:
    writer.claim("p")
    clock.time += 10 * TTL
    writer.renew()
    with pytest.raises(AlreadyRunning):
        other.claim("p")


def test_a_commit_renews_the_lease(writer: SqliteWriter, other: SqliteWriter, clock: Clock) -> None:
    batches = Batches(writer)
    clock.time += 2 * TTL
    batches.commit(BAG, ("home", 1.0, 1))
    with pytest.raises(AlreadyRunning):
        other.claim("shop")


def test_after_the_clock_was_set_back_a_lease_holds_only_where_its_process_is_seen(
    writer: SqliteWriter, other: SqliteWriter, clock: Clock
) -> None:
    writer.claim("p")
    clock.time -= 3600 * SECOND
    with pytest.raises(AlreadyRunning):
        other.claim("p")
    before = replace(this_process("me"), machine="before the restart")
    refuse_if_live("p", before, "then", clock.time + TTL + 1, clock.time)
    with pytest.raises(AlreadyRunning):
        refuse_if_live("p", before, "then", clock.time + TTL, clock.time)


def test_a_released_pipeline_can_be_claimed_at_once(writer: SqliteWriter, other: SqliteWriter) -> None:
    writer.claim("p")
    writer.release()
    assert other.claim("p") == 2


HOLD = """
import sys, time
from millstream.store.sqlite.writer import SqliteWriter, sqlite_writer
sqlite_writer(sys.argv[1]).claim("p")
print("claimed", flush=True)
time.sleep(300)
"""


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    assert child.stdout.readline() == b"claimed\n"
    yield child
    child.kill()
    child.wait(30)
    child.stdout.close()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("reaped", [True, False])
def test_after_kill_9_the_pipeline_can_be_claimed_at_once(
    path: Path, holder: subprocess.Popen[bytes], reaped: bool
) -> None:
    with sqlite_writer(path) as writer:
        with pytest.raises(AlreadyRunning, match=f"process {holder.pid}, since 20"):
            writer.claim("p")
        holder.kill()
        if reaped:
            holder.wait(30)
        else:
            until(lambda: state(holder.pid) == "Z")
        assert writer.claim("p") == 2


def test_a_stopped_process_keeps_its_lease_until_it_runs_out(path: Path, holder: subprocess.Popen[bytes]) -> None:
    os.kill(holder.pid, signal.SIGSTOP)
    until(lambda: state(holder.pid) == "T")
    clock = Clock()
    with sqlite_writer(path, clock=clock) as writer:
        with pytest.raises(AlreadyRunning):
            writer.claim("p")
        clock.time += TTL + SECOND
        assert writer.claim("p") == 2


def test_takeover_claims_from_a_living_process(path: Path, holder: subprocess.Popen[bytes]) -> None:
    with sqlite_writer(path) as writer:
        assert writer.claim("p", takeover=True) == 2


def test_a_process_is_recognised_by_its_number_and_its_start() -> None:
    me = this_process("x")
    assert not me.gone()
    assert me.started is not None
    assert replace(me, started=me.started + 1).gone()  # the number was given to another
    assert not replace(me, started=None).gone()  # no way to tell: it may be the same
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait(30)
    assert replace(me, pid=done.pid).gone()


def test_a_process_elsewhere_is_never_called_gone() -> None:
    me = this_process("x")
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait(30)
    for machine in ("another boot or namespace", ""):
        assert not replace(me, machine=machine, pid=done.pid).gone()


def test_without_proc_a_process_is_still_found_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.store.lease._PROC", Path("/nowhere"))
    me = this_process("x")
    assert me.started is None
    assert not me.gone()
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait(30)
    assert replace(me, pid=done.pid).gone()


def test_a_process_of_another_user_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not replace(this_process("x"), pid=1).gone()


# the keeper


def test_the_keeper_renews_until_the_block_ends(writer: SqliteWriter, path: Path, clock: Clock) -> None:
    writer.claim("p")
    expires = "SELECT expires FROM millstream_lease"
    with SqliteReader(path) as store:
        first = store.query(expires).rows
        with Keeper(writer.renew, every=0.01) as keeper:
            clock.time += SECOND
            until(lambda: store.query(expires).rows > first)
        assert keeper.error is None
    assert not [thread for thread in threading.enumerate() if thread.name == "millstream-lease"]


def test_the_keeper_tells_once_that_the_lease_is_lost(writer: SqliteWriter, other: SqliteWriter) -> None:
    lost: list[TakenOver] = []
    writer.claim("p")
    with Keeper(writer.renew, every=0.01, lost=lost.append) as keeper:
        other.claim("p", takeover=True)
        until(lambda: lost)
    assert len(lost) == 1
    assert keeper.error is lost[0]


def test_the_keeper_tries_again_after_a_passing_failure() -> None:
    calls: list[int] = []

    def renew() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ViewStoreUnavailable("busy")

    with Keeper(renew, every=0.01) as keeper:
        until(lambda: len(calls) >= 4)
    assert keeper.error is None
