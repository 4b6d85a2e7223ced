"""The embedded engine keeps the contract, and what only it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
