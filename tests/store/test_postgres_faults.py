"""Views in PostgreSQL under real faults: processes killed and stopped, connections cut at every message, a server that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from millstream.address import PostgresAddress, parse_address
from millstream.errors import AlreadyRunning, TakenOver, ViewStoreUnavailable
from millstream.store import open_reader, open_writer
from millstream.store.contract import StoreWriter
from millstream.store.postgres.writer import PostgresWriter, postgres_writer
from millstream.testing import PostgresServer
from tests.contracts.store import PIPELINE, TARGETS, Batches
from tests.proxy import Proxy, proxied
from tests.store.test_faults import POINTS, commit_batch, expect, go_on_in, run, start
from tests.store.writing import writing
from tests.waiting import until

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"
"""The message, as it is on the wire."""
RUN = """
import sys
from datetime import timedelta
import millstream.store.postgres.server
from millstream.store import open_writer
from tests.store.test_faults import go_on_in
millstream.store.postgres.server.IDLE = timedelta(seconds=2)
with open_writer(sys.argv[1]) as writer:
    go_on_in(writer, int(sys.argv[2]))
"""


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    return f"{postgres.address}?schema=faults_{uuid.uuid4().hex}"


def writer_at(address: str, **options: Any) -> PostgresWriter:
    parsed = parse_address(address)
    assert isinstance(parsed, PostgresAddress)
    return postgres_writer(parsed, **options)


@contextmanager
def started(code: str, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block, even if it was stopped."""
    with start(code, *arguments, **options) as child:
        try:
            yield child
        finally:
            child.kill()


# kill -9, and processes that are stopped


@pytest.mark.parametrize(("point", "batches"), POINTS.items())
def test_a_kill_leaves_all_of_a_batch_or_none_and_a_restart_goes_on_at_once(
    address: str, point: tuple[str, int], batches: int
) -> None:
    assert run(RUN, address, 10, failpoint=f"{point[0]}:kill@{point[1]}").returncode == -signal.SIGKILL
    with open_reader(address) as store, open_writer(address) as writer:
        expect(store, batches)
        go_on_in(writer, 10)
        expect(store, 10)


@pytest.mark.parametrize("point", ["store.before_write", "store.in_transaction", "store.before_commit"])
def test_a_zombie_that_wakes_up_writes_nothing_and_does_not_hold_its_locks_for_ever(address: str, point: str) -> None:
    with started(RUN, address, 10, failpoint=f"{point}:stop@4") as zombie:
        assert os.WIFSTOPPED(os.waitpid(zombie.pid, os.WUNTRACED)[1])
        with open_writer(address) as writer, open_reader(address) as store:
            done = 1 if point == "store.in_transaction" else 3
            expect(store, done)
            with pytest.raises(AlreadyRunning):
                writer.claim(PIPELINE)
            fence = writer.claim(PIPELINE, takeover=True)  # waits until the server ends the transaction of the zombie
            writer.prepare(PIPELINE, "f00d", TARGETS)
            os.kill(zombie.pid, signal.SIGCONT)
            _, err = zombie.communicate(timeout=60)
            assert zombie.returncode == 1
            assert b"TakenOver" in err
            expect(store, done)
            assert fence == 2
            go_on_in(writer, 10)
            expect(store, 10)


def test_a_lease_goes_by_the_clock_of_the_server_and_runs_out(address: str) -> None:
    code = "import sys, time\nfrom millstream.store import open_writer\n"
    code += "writer = open_writer(sys.argv[1])\nwriter.engine.ttl /= 10\nwriter.claim('shop')\nprint('claimed', flush=True)\ntime.sleep(300)"
    with started(code, address) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        os.kill(holder.pid, signal.SIGSTOP)
        with open_writer(address) as writer:
            with pytest.raises(AlreadyRunning, match=f"process {holder.pid}, since 20"):
                writer.claim(PIPELINE)

            def claimed() -> bool:
                try:
                    return writer.claim(PIPELINE) == 2
                except AlreadyRunning:
                    return False

            until(claimed)


def test_after_kill_9_the_pipeline_can_be_claimed_at_once(address: str) -> None:
    code = "import os, sys\nfrom millstream.store import open_writer\nopen_writer(sys.argv[1]).claim('shop')\nos.kill(os.getpid(), 9)"
    assert run(code, address).returncode == -signal.SIGKILL
    with open_writer(address) as writer:
        assert writer.claim(PIPELINE) == 2


# connections


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with proxied(postgres.port) as opened:
        yield opened


@pytest.fixture
def far(postgres: PostgresServer, address: str, proxy: Proxy) -> Iterator[Batches]:
    """A writer behind the proxy."""
    with writer_at(address.replace(f":{postgres.port}/", f":{proxy.port}/")) as writer:
        yield Batches(writer)


@pytest.mark.parametrize("answered", [False, True])
def test_a_connection_cut_at_any_message_of_a_commit_changes_nothing(
    address: str, proxy: Proxy, far: Batches, answered: bool
) -> None:
    number = 0
    while proxy.cuts == number:  # each batch is cut one message later, until one ends before its cut
        proxy.cut(number + 1, answered=answered)
        assert commit_batch(far, number)
        number += 1
    proxy.uncut()
    assert number > 15
    with open_reader(address) as store:
        expect(store, number)
        assert not commit_batch(far, number - 1)
        expect(store, number)


def test_a_commit_whose_answer_is_lost_is_found_in_the_ledger_and_not_repeated(
    address: str, proxy: Proxy, far: Batches
) -> None:
    proxy.cut(1, answered=True, said=COMMIT)
    assert commit_batch(far, 0)
    assert proxy.cuts == 1
    with open_reader(address) as store:
        expect(store, 1)


def test_a_server_that_restarts_and_crashes_loses_nothing_and_doubles_nothing(own_postgres: PostgresServer) -> None:
    address = f"{own_postgres.address}?schema=shop"
    done: list[int] = []
    with writing(address, done) as more:
        for turn in range(4):
            more(5)
            if turn % 2:
                own_postgres.kill()
                own_postgres.start()
            else:
                own_postgres.restart()
        more(5)
    with open_reader(address) as store:
        expect(store, len(done))


def test_a_server_that_stays_away_is_an_error_that_says_what_to_do(own_postgres: PostgresServer) -> None:
    address = f"{own_postgres.address}?schema=shop"
    with writer_at(address, patience=timedelta(seconds=0.5)) as writer:
        batches = Batches(writer)
        assert commit_batch(batches, 0)
        own_postgres.kill()
        with pytest.raises(ViewStoreUnavailable, match=r"postgresql://millstream@127\.0\.0\.1:\d+/postgres") as caught:
            commit_batch(batches, 1)
        assert "run again" in caught.value.hint
        with pytest.raises(ViewStoreUnavailable):
            open_writer(address)
        own_postgres.start()
        assert commit_batch(batches, 1)
        with open_reader(address) as store:
            expect(store, 2)


def test_a_lock_of_someone_else_is_waited_for_and_then_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.store.postgres.server.LOCKS", timedelta(seconds=1))
    schema = address.partition("schema=")[2]
    with open_writer(address) as writer, open_reader(address) as store:
        batches = Batches(writer)
        with psycopg.connect(address.partition("?")[0]) as other:
            other.execute(f"LOCK TABLE {schema}.totals IN SHARE MODE")
            with pytest.raises(ViewStoreUnavailable, match="another session held a lock for 1 s; nothing was written"):
                commit_batch(batches, 0)
        expect(store, 0)
        assert commit_batch(batches, 0)


# two writers


def test_two_who_take_each_others_pipeline_write_every_batch_once(address: str) -> None:
    wrote: list[int] = []
    problems: list[BaseException] = []

    def turn(writer: StoreWriter) -> None:
        batches = Batches(writer, takeover=True)
        last = writer.last(PIPELINE)
        number = last.batch + 1 if last else 0
        for each in (number, number + 1):
            if commit_batch(batches, each):
                wrote.append(each)

    def work() -> None:
        try:
            with open_writer(address) as writer:
                for _ in range(10):
                    with suppress(TakenOver):
                        turn(writer)
        except BaseException as error:
            problems.append(error)

    with open_reader(address, create=True) as store:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert problems == []
        assert sorted(wrote) == list(range(len(wrote)))
        expect(store, len(wrote))
