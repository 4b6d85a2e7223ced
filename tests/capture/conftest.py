"""PostgreSQL servers that write what logical decoding needs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from millstream.errors import MachineError
from millstream.testing import PostgresServer

_SETTINGS = {
    "wal_level": "logical", "max_wal_senders": "30", "max_replication_slots": "30", "max_prepared_transactions": "5",
    "logical_decoding_work_mem": "64kB", "autovacuum": "off",
}  # fmt: skip


def _server() -> PostgresServer:
    try:
        return PostgresServer(settings=_SETTINGS)
    except MachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no PostgreSQL here: {error.message}")


@pytest.fixture(scope="session")
def logical() -> Iterator[PostgresServer]:
    """The one server; transactions of more than 64 kB may be streamed before they end."""
    with _server() as server:
        yield server


@pytest.fixture
def own_logical() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with _server() as server:
        yield server
