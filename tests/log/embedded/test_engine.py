"""The embedded engine keeps the contract, and what only it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.event import Event
from millstream.log.contract import Log
from millstream.log.embedded.engine import SqliteLog
from tests.contracts.log import LogContract


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with SqliteLog(tmp_path / "log.db") as opened:
        yield opened


@pytest.fixture
def again(tmp_path: Path) -> Callable[[], Log]:
    return lambda: SqliteLog(tmp_path / "log.db", create=False)


class TestSqlite(LogContract):
    """Every promise of the contract."""


def test_an_append_to_several_topics_has_one_append_time_under_a_clock_that_was_set_back(tmp_path: Path) -> None:
    now = [5_000_000]
    with SqliteLog(tmp_path / "log.db", clock=lambda: now[0]) as log:
        for topic in ("ahead", "even", "empty"):
            log.create_topic(topic)
        log.append("ahead", [Event(b"0")])

        def appended() -> tuple[int, int]:
            log.append_all({"even": [Event(b"x")], "ahead": [Event(b"x")], "empty": []})
            (one,), (other,) = (log.read(t, 0, log.bounds(t)[0].end - 1) for t in ("even", "ahead"))
            return one.appended, other.appended

        now[0] = 1_000_000
        assert appended() == (5_000_001, 5_000_001)
        now[0] += 250  # both go on from there at the pace of the clock, also when they are appended to alone
        log.append("even", [Event(b"x")])
        assert log.read("even", 0, 1)[0].appended == 5_000_251
        log.append("empty", [Event(b"x")])
        assert log.read("empty", 0, 0)[0].appended == 1_000_250  # it got nothing, so it is not ahead
        now[0] += 100
        assert appended() == (5_000_351, 5_000_351)
        now[0] = 6_000_000
        assert appended() == (6_000_000, 6_000_000)
