"""A PostgreSQL server: connections to it, work done in transactions, and its troubles under our names.

Invariant: whatever is given to :meth:`Server.run` may run twice. A connection that is lost leaves the outcome of its transaction
unknown; the work is then done again, and finds in the database whether it was done already.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from millstream.address import PostgresAddress
from millstream.errors import ConfigError, MachineError, MillstreamError, ViewError, ViewStoreUnavailable
from millstream.store.identifier import quote

try:
    import psycopg
    import psycopg.sql
    from psycopg import errors as pg
except ImportError as error:  # pragma: no cover
    raise MachineError("views in PostgreSQL need its client", hint="pip install 'millstream[postgres]'") from error

Pg: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
T = TypeVar("T")

FORMAT = 3
"""Since 2 heartbeats are kept."""
OLDEST = 150_000
"""The oldest server: it can hold null to be equal to null in a key."""
PATIENCE = timedelta(seconds=30)
"""How long work goes on trying when a server that was there is away, as in a restart."""
IDLE = timedelta(seconds=15)
"""How long the server lets a transaction of ours wait for us: a process that is stopped must not hold its locks for ever."""
LOCKS = timedelta(seconds=60)
"""How long we wait for a lock of others."""

_CONNECTION = {
    "connect_timeout": "10", "application_name": "millstream", "tcp_user_timeout": "30000",
    "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
}  # fmt: skip
_AWAY = ("08", "28", "3D", "53", "57")
"""Classes of errors that are about reaching the server, not about what was asked."""
_LOST = (
    pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.IdleInTransactionSessionTimeout, pg.ConnectionException,
    pg.SerializationFailure, pg.DeadlockDetected,
)  # fmt: skip

_REFUSED = {
    r"password authentication failed|no password supplied": "check the user and the password in the address or in PGPASSWORD",
    r'database ".*" does not exist': "CREATE DATABASE makes it; or name another one in the address",
    r'role ".*" does not exist|no pg_hba\.conf entry|authentication failed|not permitted to log in': "check the user in the address, and pg_hba.conf",
}
"""What a server says to who may not come in, and what to do. libpq gives no code for it (class 28, 3D000), only these words."""

_HEARTBEATS = """
CREATE TABLE millstream_heartbeats (
    pipeline text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL,
    time bigint NOT NULL, appended bigint NOT NULL, ends jsonb NOT NULL, topic_id text NOT NULL,
    checkpoint text COLLATE "C" NOT NULL, batch bigint NOT NULL, PRIMARY KEY (pipeline, topic, partition, "offset", time)
);
"""
_UPGRADES = {1: _HEARTBEATS, 2: "ALTER TABLE millstream_admission ADD COLUMN erased bigint NOT NULL DEFAULT 0"}
"""What makes a schema of each older format one of the next."""

_SCHEMA = """
CREATE TABLE millstream_format (version integer NOT NULL);
CREATE TABLE millstream_lease (
    pipeline text COLLATE "C" PRIMARY KEY, fence bigint NOT NULL, owner text NOT NULL, host text NOT NULL, machine text NOT NULL,
    pid bigint NOT NULL, started bigint, since timestamptz NOT NULL, expires timestamptz NOT NULL
);
CREATE TABLE millstream_ledger (
    pipeline text COLLATE "C" NOT NULL, number bigint NOT NULL, checkpoint text COLLATE "C" NOT NULL, batch bigint NOT NULL,
    fence bigint NOT NULL, offsets jsonb NOT NULL, counts jsonb NOT NULL, state jsonb NOT NULL, committed_at timestamptz NOT NULL,
    PRIMARY KEY (pipeline, number), UNIQUE (pipeline, checkpoint, batch)
);
CREATE TABLE millstream_views (
    view text COLLATE "C" PRIMARY KEY, number bigint GENERATED ALWAYS AS IDENTITY, pipeline text NOT NULL, fingerprint text NOT NULL,
    columns jsonb NOT NULL, key jsonb NOT NULL, append boolean NOT NULL, arrow_schema bytea NOT NULL
);
CREATE UNIQUE INDEX ON millstream_views (lower(view));
CREATE TABLE millstream_dead_letters (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, pipeline text COLLATE "C" NOT NULL, batch bigint NOT NULL,
    topic text COLLATE "C" NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL, time timestamptz,
    append_time timestamptz, reason text NOT NULL, detail text
);
CREATE INDEX ON millstream_dead_letters (pipeline, topic, partition, "offset");
CREATE TABLE millstream_admission (
    pipeline text COLLATE "C" NOT NULL, checkpoint text COLLATE "C" NOT NULL, batch bigint NOT NULL, topic text COLLATE "C" NOT NULL,
    partition integer NOT NULL, records bigint NOT NULL, admitted bigint NOT NULL, late bigint NOT NULL, duplicate bigint NOT NULL,
    future bigint NOT NULL, malformed bigint NOT NULL, erased bigint NOT NULL DEFAULT 0, wild bigint NOT NULL, heartbeats bigint NOT NULL, watermark timestamptz,
    PRIMARY KEY (pipeline, checkpoint, batch, topic, partition)
);
"""


class Server:
    """Connections to one schema of one database; may be used from many threads, and on both sides of a fork."""

    def __init__(self, address: PostgresAddress, *, patience: timedelta = PATIENCE) -> None:
        self.address, self._patience = address, patience.total_seconds()
        self._idle: list[Pg] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for each in idle:
                each.close()

    def open(self, *, create: bool) -> None:
        """Connect for the first time; make our tables if ``create`` says so, and check that they are of a known format."""
        with self._words(), self._lease() as db, db.transaction():
            found = _format(db, self.address.schema)
            if found is None and create:
                # Two may come at once, and "if not exists" does not wait for the other.
                db.execute(
                    "SELECT pg_advisory_xact_lock(hashtext('millstream views'), hashtext(%s))", [self.address.schema]
                )
                # It may be there, made by someone who let us write in it but make no others.
                if db.execute("SELECT to_regnamespace(%s)", [quote(self.address.schema)]).fetchall() == [(None,)]:
                    db.execute(f"CREATE SCHEMA {quote(self.address.schema)}")
                found = _format(db, self.address.schema)
                if found is None:
                    db.execute(_SCHEMA + _HEARTBEATS)
                    db.execute("INSERT INTO millstream_format VALUES (%s)", [FORMAT])
                    found = FORMAT
            if found is not None and found < FORMAT and create:
                found = self._upgrade(db)
        if found is None:
            self.close()
            raise ViewStoreUnavailable(f"no views at {self.address}", hint="`millstream run FILE` makes them")
        if found > FORMAT:
            self.close()
            raise ViewError(
                f"{self.address} has format {found}, this version reads up to {FORMAT}",
                hint="pip install --upgrade millstream",
            )

    def _upgrade(self, db: Pg) -> int:
        """Bring our tables up to this format; give the one that is there then."""
        db.execute("SELECT pg_advisory_xact_lock(hashtext('millstream views'), hashtext(%s))", [self.address.schema])
        found = _format(db, self.address.schema) or FORMAT
        for version in range(found, FORMAT):
            db.execute(_UPGRADES[version])
        db.execute("UPDATE millstream_format SET version = %s WHERE version < %s", [FORMAT, FORMAT])
        return max(found, FORMAT)

    def describe(self) -> str:
        """What is there, in one line; ViewError if views can neither be read nor made there."""
        with self._words(), self._lease() as db, db.transaction():
            version, schema = db.info.parameter_status("server_version"), quote(self.address.schema)
            there = _format(db, self.address.schema) is not None
            ((found, may_make, may_write),) = db.execute(
                "SELECT to_regnamespace(%s), has_database_privilege(current_database(), 'CREATE'),"
                " coalesce(has_schema_privilege(to_regnamespace(%s), 'CREATE'), false)",
                [schema, schema],
            ).fetchall()
        if not there and not (may_write if found else may_make):
            raise ViewError(
                f"{self.address}: no views, and no right to make them",
                hint=f"GRANT CREATE ON SCHEMA {schema} TO the user",
            )
        return f"{self.address}, PostgreSQL {version}" + ("" if there else " (no views yet; they can be made there)")

    def run(self, work: Callable[[Pg], T], *, reading: bool = False) -> T:
        """Do work in one transaction, again if the connection is lost in it; ``reading`` sees one snapshot and cannot write."""
        deadline: float | None = None
        while True:
            try:
                with self._lease() as db, db.transaction():
                    if reading:
                        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    return work(db)
            except psycopg.Error as error:
                deadline = deadline or time.monotonic() + self._patience
                if not _lost(error) or time.monotonic() > deadline:
                    raise self._named(error) from error
            time.sleep(0.1)

    @contextmanager
    def alone(self) -> Iterator[Pg]:
        """A connection of its own, for statements that are not ours."""
        with self._words():
            db = self._connect()
            db.execute(f"SET search_path TO {quote(self.address.schema)}, public")
        try:
            yield db
        finally:
            db.close()

    @contextmanager
    def _lease(self) -> Iterator[Pg]:
        """An idle connection, or a new one; it goes back unless it broke."""
        if self._closed:
            raise ViewStoreUnavailable(f"{self.address}: the views are closed")
        with self._lock:
            if self._pid != os.getpid():  # they belong to the process that was forked
                self._pid, self._idle = os.getpid(), []
            db = self._idle.pop() if self._idle else None
        if db is None:
            db = self._connect()
        try:
            yield db
        except BaseException:
            db.close()
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(db)
                return
        db.close()

    def _connect(self) -> Pg:
        settings = {**_CONNECTION, **self.address.resolved()}
        if "," in settings.get("host", ""):  # a standby may be behind, so it is read only by who asks for one
            settings.setdefault("target_session_attrs", "read-write")
        db = psycopg.connect(**settings, client_encoding="utf8", autocommit=True)  # type: ignore[arg-type]
        try:
            info = db.info
            if info.server_version < OLDEST:
                raise ViewError(
                    f"{self.address}: found PostgreSQL {info.parameter_status('server_version')}, expected 15 or later",
                    hint="upgrade the server",
                )
            if info.parameter_status("server_encoding") != "UTF8":
                raise ViewError(
                    f"{self.address}: the database has the encoding {info.parameter_status('server_encoding')}, expected UTF8",
                    hint="CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
                )
            db.execute(
                f"SET search_path TO {quote(self.address.schema)}; SET TIME ZONE 'UTC'; SET datestyle TO iso; SET intervalstyle TO postgres;"
                f" SET extra_float_digits TO 1; SET bytea_output TO hex; SET lock_timeout TO {_millis(LOCKS)};"
                f" SET idle_in_transaction_session_timeout TO {_millis(IDLE)}; SET client_min_messages TO warning;"
                # A commit that was confirmed to Spark must not be lost by a crash of the server.
                " SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _words(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._refusal(error) or self._named(error) from error

    def _refusal(self, error: psycopg.Error) -> ViewError | None:
        """A server that answers, and says no to a first connection: it would say so again."""
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            for words, hint in _REFUSED.items():
                if found := re.search(f"(FATAL|fe_sendauth): +(.*({words}).*)", str(error)):
                    return ViewError(f"{self.address}: {found[2]}", hint=hint)
        return None

    def _named(self, error: psycopg.Error) -> MillstreamError:
        """The server's error as ours."""
        where, why = self.address, first_line(error)
        match error:
            case pg.DiskFull() | pg.OutOfMemory():
                return ViewStoreUnavailable(
                    f"{where}: no room on the server ({why}); nothing of the batch was kept, every batch before it is",
                    hint="free some space and run again",
                )
            case pg.LockNotAvailable():
                return ViewStoreUnavailable(
                    f"{where}: another session held a lock for {LOCKS.seconds} s; nothing was written",
                    hint="look for it in pg_stat_activity; only views that nobody locks can be kept up to date",
                )
            case pg.ReadOnlySqlTransaction():
                return ViewStoreUnavailable(
                    f"{where}: {why}; nothing was written",
                    hint="the server takes no writes: promote it if it is a standby, or name all hosts: postgresql://USER@A,B/DATABASE",
                )
            case pg.InsufficientPrivilege():
                return ViewError(
                    f"{where}: {why}; nothing was written",
                    hint="GRANT the user CREATE on the schema, or name another one",
                )
            case pg.ProgramLimitExceeded():
                return ViewError(
                    f"{where}: {why}; nothing was written",
                    hint="keys of up to some 2,700 bytes can be kept in an index",
                )
            case psycopg.OperationalError() if (error.sqlstate or "08")[:2] in _AWAY:
                return ViewStoreUnavailable(
                    f"{where}: {why}",
                    hint="check the address, the password and whether the server runs, then run again",
                )
            case psycopg.ProgrammingError() if error.sqlstate is None:
                return ConfigError(f"{where}: {why}", hint="behind the '?' stand schema and options of libpq")
            case _:
                return ViewError(f"{where}: {why}; nothing was written")


def literal(text: str) -> str:
    """Text as SQL, for statements that take no parameters."""
    return psycopg.sql.Literal(text).as_string(None)


def first_line(error: psycopg.Error) -> str:
    """The message of the server, in one line."""
    said = error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
    return said.strip()


def _lost(error: psycopg.Error) -> bool:
    """Whether the same work may succeed on a new connection."""
    return isinstance(error, _LOST) or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)


def _format(db: Pg, schema: str) -> int | None:
    if db.execute("SELECT to_regclass(%s)", [f"{quote(schema)}.millstream_format"]).fetchall() == [(None,)]:
        return None
    found = db.execute(f"SELECT version FROM {quote(schema)}.millstream_format").fetchone()
    return int(found[0]) if found else None


def _millis(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
