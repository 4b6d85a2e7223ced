"""The command loop on the embedded log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log.contract import Log
from millstream.log.embedded.engine import SqliteLog
from millstream.sourcing import Commands, EventStore
from tests.sourcing.loops import LoopContract, running
from tests.sourcing.models import ACCOUNT, Deposit, Withdraw


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with SqliteLog(tmp_path / "log.db") as opened:
        yield opened


class TestEmbedded(LoopContract):
    """Every promise of a loop."""


def test_a_loop_and_execute_on_the_same_aggregates_never_decide_on_an_old_state(log: Log) -> None:
    store = EventStore(log, "accounts", ACCOUNT)
    with running(log, "accounts", ACCOUNT), Commands(log, "accounts", ACCOUNT) as commands:
        for i in range(5):
            reply, _ = commands.ask("ann", Deposit(10), timeout=60)
            assert (reply.version, reply.count) == (2 * i + 1, 1)
            store.execute("ann", Withdraw(10 - i))
    assert [each.version for each in store.history("ann")] == list(range(1, 11))
    assert store.state("ann").balance == sum(range(5))
    assert store.check().found == 0
