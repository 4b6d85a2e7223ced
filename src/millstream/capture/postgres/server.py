"""Connections to a PostgreSQL server, and its errors under our names.

Values come as text, in UTC and in one form whatever the role or the database has set, so a snapshot and the stream have the same ones.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias

from millstream.address import PostgresAddress
from millstream.errors import CaptureError, CaptureGap, CaptureUnavailable, ConfigError, MachineError, MillstreamError

try:
    import psycopg
    from psycopg import errors as pg
    from psycopg import sql
except ImportError as error:  # pragma: no cover
    raise MachineError("capture from PostgreSQL needs its client", hint="pip install 'millstream[postgres]'") from error

Pg: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

OLDEST = 150_000
WAITS = timedelta(seconds=60)
"""How long the making of a slot, and a lock on a table, may wait for the transactions of others."""
_CONNECTION = {
    "connect_timeout": "10", "application_name": "millstream capture", "tcp_user_timeout": "30000",
    "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
}  # fmt: skip
_SETTINGS = {
    "datestyle": "ISO", "timezone": "UTC", "intervalstyle": "iso_8601", "extra_float_digits": "1", "bytea_output": "hex",
    "search_path": "pg_catalog", "row_security": "off", "statement_timeout": "0", "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0", "lock_timeout": str(int(WAITS.total_seconds() * 1000)), "default_transaction_isolation": "read\\ committed",
    "client_min_messages": "warning",
}  # fmt: skip
"""What decides how values look and which rows are seen; a role's or a database's own settings do not count."""
_AWAY = ("08", "53", "57")
_REFUSED = {
    r"password authentication failed|no password supplied": "check the user and the password in the address or in PGPASSWORD",
    r'database ".*" does not exist': "name the database that has the tables",
    r'role ".*" does not exist|no pg_hba\.conf entry|authentication failed|not permitted to log in': "check the user in the address, and pg_hba.conf",
    r"must be superuser or replication role|permission denied to start WAL sender": "ALTER ROLE {} REPLICATION;",
}
"""What a server says to who may not come in, and what to do; libpq gives no code for it."""
_FORGOTTEN = (
    "can no longer|invalidated|has already been removed|cannot read from logical replication slot|exceeded the maximum"
)


class Server:
    """A server and one database of it: connections that the caller closes."""

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address

    def connect(self, *, replication: bool = False) -> Pg:
        """A new connection, for questions or for replication."""
        settings: dict[str, Any] = {**_CONNECTION, **self.address.resolved()}
        if "," in settings.get("host", ""):
            settings.setdefault("target_session_attrs", "read-write")
        said = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        settings["options"] = f"{settings.get('options', '')} {said}".strip()
        if replication:
            settings["replication"] = "database"
        with self.words():
            db = psycopg.connect(
                **settings,
                client_encoding="utf8",
                autocommit=True,
                prepare_threshold=None,
            )
        if db.info.server_version < OLDEST:
            db.close()
            raise CaptureError(
                f"{self.address}: found PostgreSQL {db.info.server_version // 10000}, expected 15 or later",
                hint="upgrade the server",
            )
        return db

    @contextmanager
    def asking(self, *, replication: bool = False) -> Iterator[Ask]:
        """A connection for questions."""
        db = self.connect(replication=replication)
        try:
            with self.words():
                yield Ask(db)
        finally:
            db.close()

    @contextmanager
    def words(self) -> Iterator[None]:
        """The server's errors as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise self.named(error) from error

    def named(self, error: psycopg.Error) -> MillstreamError:
        """An error of the server as ours."""
        why, where, user = first_line(error), self.address, quoted(self.address.options.get("user", "USER"))
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            for words, hint in _REFUSED.items():
                if found := re.search(f"(FATAL|fe_sendauth): +(.*({words}).*)", str(error)):
                    return CaptureError(f"{where}: {found[2]}", hint=hint.format(user))
        match error:
            case pg.InternalError_():
                return CaptureError(
                    f"{where}: {why}", hint="the message is the server's; take a new snapshot if it stays"
                )
            case pg.InsufficientPrivilege():
                return CaptureError(f"{where}: {why}", hint=_right(why, user))
            case pg.ObjectInUse():
                return CaptureUnavailable(
                    f"{where}: {why}",
                    hint="another process reads with this capture's name: stop it, or give this capture another name",
                )
            case pg.LockNotAvailable():
                return CaptureUnavailable(
                    f"{where}: another session held a lock for {WAITS.seconds} s: {why}",
                    hint="look for it in pg_stat_activity",
                )
            case pg.UndefinedObject() if "publication" in why or "replication slot" in why:
                return gone(f"{where}: {why}")
            case pg.ConfigurationLimitExceeded():
                return CaptureError(
                    f"{where}: {why}",
                    hint="ALTER SYSTEM SET max_replication_slots = 20; max_wal_senders = 20 too; and restart it",
                )
            case psycopg.Error() if re.search(_FORGOTTEN, why):
                return gone(f"{where}: {why}")
            case psycopg.OperationalError() if (error.sqlstate or "08")[:2] in _AWAY:
                return CaptureUnavailable(
                    f"{where}: {why}", hint="check the address and whether the server runs, then start again"
                )
            case psycopg.ProgrammingError() if error.sqlstate is None:
                return ConfigError(f"{where}: {why}", hint="behind the '?' stand schema and options of libpq")
            case psycopg.InterfaceError():
                return CaptureUnavailable(f"{where}: {why}", hint="check whether the server runs, then start again")
        return CaptureError(f"{where}: {why}", hint="the message is the server's")


class Ask:
    """Questions to a server."""

    def __init__(self, db: Pg) -> None:
        self.db = db

    def __call__(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of an answer; none of a statement that has no answer."""
        cursor = self.db.execute(query, values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def patiently(self, command: str) -> list[tuple[Any, ...]]:
        """Ask what waits until the transactions that are open now have ended, with a bound."""
        timer = threading.Timer(WAITS.total_seconds(), self.db.cancel)
        timer.start()
        try:
            return self(command)
        except pg.QueryCanceled as error:
            raise CaptureUnavailable(
                f"a replication slot waits since {WAITS.seconds} s for transactions that were open before it",
                hint="end them: SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY 2;",
            ) from error
        finally:
            timer.cancel()


def undecodable(error: CaptureError) -> bool:
    """Whether the server could not make changes of its log; one that streams open transactions may be able to when it does not.

    PostgreSQL 15 was seen to fail so ("could not map filenode … to relation OID") where a part of an open transaction that had altered a
    table was rolled back.
    """
    return isinstance(error.__cause__, pg.InternalError_)


def gone(why: str) -> CaptureGap:
    """The error for what the server no longer has, or never had."""
    return CaptureGap(
        f"{why}; what was committed after the position cannot be read, and going on would leave a gap",
        hint="take a new snapshot; and let the server keep what a slot needs for longer than a capture may be down"
        " (max_slot_wal_keep_size)",
    )


def quoted(*names: str) -> str:
    """Names as SQL."""
    return sql.Identifier(*names).as_string(None)


def literal(text: str) -> str:
    """Text as SQL, for statements that take no parameters."""
    return sql.Literal(text).as_string(None)


def first_line(error: psycopg.Error) -> str:
    """The message of the server, in one line."""
    said = error.diag.message_primary or str(error).strip().partition("\n")[0] or type(error).__name__
    return said.strip()


def _right(why: str, user: str) -> str:
    if found := re.search(r"permission denied for table (\S+)", why):
        return f"GRANT SELECT ON {found[1]} TO {user};"
    if "schema" in why:
        return f"GRANT USAGE ON SCHEMA … TO {user};"
    if "row-level security" in why:
        return f"ALTER ROLE {user} BYPASSRLS; rows that a policy hides would be missing from the snapshot"
    if "replication" in why:
        return f"ALTER ROLE {user} REPLICATION;"
    return f"GRANT the right to {user}, or let an owner of the tables do it"
