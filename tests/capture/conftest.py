"""A PostgreSQL server that writes what logical decoding needs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from millstream.errors import MachineError
from millstream.testing import PostgresServer

_SETTINGS = {"wal_level": "logical", "max_wal_senders": "30", "max_replication_slots": "30", "autovacuum": "off"}


@pytest.fixture(scope="session")
def logical() -> Iterator[PostgresServer]:
    """The one server."""
    try:
        server = PostgresServer(settings=_SETTINGS)
    except MachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no PostgreSQL here: {error.message}")
    with server:
        yield server
