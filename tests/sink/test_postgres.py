"""A PostgreSQL database keeps the contract, and what only it promises."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest

from millstream.sink import open_sink, open_store
from millstream.sink.contract import Sink, Store
from millstream.testing import PostgresServer
from tests.contracts.sink import SinkContract


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """A database whose own order of text is not that of code points."""
    name = f"sink_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.address, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    return postgres.address.replace("/postgres", f"/{name}")


@pytest.fixture
def address(database: str) -> str:
    """A schema of its own for each test."""
    return f"{database}?schema=Test-{uuid.uuid4().hex}"


@pytest.fixture
def sink(address: str) -> Iterator[Sink]:
    with open_sink(address) as opened:
        yield opened


@pytest.fixture
def again(address: str) -> Callable[[], Sink]:
    return lambda: open_sink(address)


@pytest.fixture
def again_store(address: str) -> Callable[[], Store]:
    return lambda: open_store(address)


@pytest.fixture
def store(sink: Sink, address: str) -> Iterator[Store]:
    with open_store(address) as opened:
        yield opened


class TestPostgres(SinkContract):
    """Every promise of the contract."""
