"""Views in PostgreSQL with a standby: the primary is killed, the standby is promoted, and who writes goes on there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from millstream.address import PostgresAddress, parse_address
from millstream.errors import ViewStoreUnavailable
from millstream.store import open_reader
from millstream.store.postgres.writer import postgres_writer
from millstream.testing import PostgresServer
from tests.contracts.store import PIPELINE, Batches
from tests.store.test_faults import commit_batch, expect
from tests.store.writing import writing
from tests.waiting import until


class Standby(PostgresServer):
    """A copy of another server that follows it."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def _prepare(self) -> None:
        source = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "millstream"]
        how = ["-D", str(self._data), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        self._do([str(self._programs / "pg_basebackup"), *source, *how])

    def _ready(self, log: str) -> bool:
        return "ready to accept read-only connections" in log

    def promote(self) -> None:
        """Become a primary."""
        assert tell(self, "SELECT pg_promote()") == [(True,)]


def tell(server: PostgresServer, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.address, autocommit=True) as db:
        done = db.execute(statement)
        return done.fetchall() if done.description else []


@pytest.fixture
def standby(own_postgres: PostgresServer) -> Iterator[Standby]:
    with Standby(own_postgres) as server:
        yield server


def test_after_a_failover_the_promoted_standby_has_every_batch_and_gets_the_next(
    own_postgres: PostgresServer, standby: Standby
) -> None:
    hosts = f"127.0.0.1:{standby.port},127.0.0.1:{own_postgres.port}"  # the one that takes no writes comes first
    address = f"postgresql://millstream@{hosts}/postgres?schema=shop"
    tell(own_postgres, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    tell(own_postgres, "SELECT pg_reload_conf()")
    done: list[int] = []
    with writing(address, done) as more:
        more(10)
        own_postgres.kill()  # in the middle of a batch, or between two
        standby.promote()
        more(10)
    with open_reader(address) as store:
        expect(store, len(done))
        assert store.query("SELECT pg_is_in_recovery()").rows == [(False,)]


def test_a_server_that_takes_no_writes_is_away_for_who_writes_and_there_for_who_reads(
    own_postgres: PostgresServer,
) -> None:
    address = f"{own_postgres.address}?schema=shop"
    parsed = parse_address(address)
    assert isinstance(parsed, PostgresAddress)
    with postgres_writer(parsed, patience=timedelta(0)) as writer, open_reader(address) as store:
        batches = Batches(writer)
        assert commit_batch(batches, 0)
        for mode in ("on", "off"):
            tell(own_postgres, f"ALTER SYSTEM SET default_transaction_read_only = {mode}")
            tell(own_postgres, "SELECT pg_reload_conf()")
            until(lambda: tell(own_postgres, "SHOW default_transaction_read_only") == [(mode,)])  # noqa: B023
            if mode == "on":
                with pytest.raises(ViewStoreUnavailable, match="read-only transaction; nothing was written") as caught:
                    commit_batch(batches, 1)
                assert "takes no writes" in caught.value.hint
                expect(store, 1)
        assert commit_batch(batches, 1)
        expect(store, 2)
        assert writer.last(PIPELINE) is not None
