"""A database of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing import PostgresServer
from tests.capture.postgres.world import World


@pytest.fixture
def world(logical: PostgresServer) -> Iterator[World]:
    found = World(logical)
    yield found
    found.close()
