"""Connections to a server of MariaDB or MySQL, and its errors under our names.

Values of a query come as text, in UTC, as :func:`millstream.capture.mysql.values.converter` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.address import MysqlAddress
from millstream.errors import CaptureError, CaptureGap, CaptureUnavailable, ConfigError, MachineError, MillstreamError

try:
    import pymysql
    from pymysql.converters import encoders
except ImportError as error:  # pragma: no cover
    raise MachineError(
        "capture from MariaDB and MySQL needs its client", hint="pip install 'millstream[capture-mysql]'"
    ) from error

SILENCE = 15
"""Seconds without a sign of life after which a connection is given up; a stream has a heartbeat twice a second."""
GRANTS = "GRANT SELECT, REPLICATION SLAVE, {} ON *.* TO {};"

_LOST = (
    1053,
    1077,
    1079,
    1152,
    1158,
    1159,
    1160,
    1161,
    1189,
    1317,
    1927,
    2002,
    2003,
    2005,
    2006,
    2013,
    2014,
    2055,
    3169,
    4031,
)
_DENIED = (1044, 1045, 1142, 1143, 1227, 1370)
_GONE = 1236


class Server:
    """A server and one database of it: connections that the caller closes."""

    def __init__(self, address: MysqlAddress) -> None:
        self.address = address

    def connect(self, *, patience: int = 60, stream: bool = False) -> pymysql.Connection[Any]:
        """A new connection. ``patience`` is how many seconds an answer may take; with ``stream`` rows come one by one."""
        where, options = self.address, self.address.resolved()
        identity = options.pop("ssl_verify_identity", "").lower()
        if identity not in ("", "true", "false"):
            raise ConfigError(f"capture: found ssl_verify_identity={identity!r}, expected true or false")
        with self.words():
            return pymysql.connect(
                host=where.host,
                port=where.port,
                user=where.user,
                database=where.database,
                charset="utf8mb4",
                conv=dict(encoders),  # no values read: only texts are exact
                init_command="SET time_zone = '+00:00', net_write_timeout = 3600, wait_timeout = 28800",
                cursorclass=pymysql.cursors.SSCursor if stream else pymysql.cursors.Cursor,
                connect_timeout=10,
                read_timeout=patience,
                write_timeout=SILENCE,
                autocommit=True,
                program_name="millstream capture",
                ssl_verify_identity=identity == "true" or None,
                **options,
            )

    @contextmanager
    def asking(self) -> Iterator[Ask]:
        """A connection for questions."""
        connection = self.connect()
        try:
            with self.words():
                yield Ask(connection)
        finally:
            connection.close()

    @contextmanager
    def words(self) -> Iterator[None]:
        """The server's errors as ours."""
        try:
            yield
        except pymysql.MySQLError as error:
            raise self.named(error) from error
        except RuntimeError as error:  # "'cryptography' package is required"
            raise CaptureError(
                f"{self.address}: {error}", hint="pip install 'pymysql[rsa]', or use TLS: ?ssl_ca=PATH"
            ) from error
        except OSError as error:
            raise CaptureUnavailable(f"{self.address}: {error}", hint="is the server running?") from error

    def named(self, error: pymysql.MySQLError) -> MillstreamError:
        """An error of the server as ours."""
        code, said = (*error.args, "", "")[:2] if error.args else (0, str(error))
        why = f"{self.address}: {said or code} ({code})" if said else f"{self.address}: {error}"
        if lost(error):
            return CaptureUnavailable(why, hint="check the address and whether the server runs, then start again")
        if code in _DENIED:
            grants = " ".join(GRANTS.format(right, self.address.user) for right in ("BINLOG MONITOR",))
            return CaptureError(why, hint=f"{grants} on MySQL REPLICATION CLIENT in place of BINLOG MONITOR")
        if code == _GONE and "same server" in str(said):
            return CaptureError(why, hint="another replica has our number: stop it, or give this capture another name")
        if code == _GONE:
            return gone(f"{self.address}: {said}")
        return CaptureError(why, hint="the message is the server's")


class Ask:
    """Questions to a server; answers are rows of text."""

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self.connection = connection

    def __call__(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of an answer."""
        with self.connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall())

    def variable(self, name: str) -> str | None:
        """A setting of the server; None if it has none of that name."""
        rows = self("SHOW GLOBAL VARIABLES LIKE %s", (name.replace("_", r"\_"),))
        return str(rows[0][1]) if rows else None

    @property
    def mariadb(self) -> bool:
        """Whether it is MariaDB."""
        return "mariadb" in str(self.connection.get_server_info()).lower()


def lost(error: BaseException) -> bool:
    """Whether the same question may be answered on a new connection."""
    if not isinstance(error, pymysql.MySQLError) or isinstance(error, pymysql.err.InterfaceError):
        return isinstance(error, pymysql.err.InterfaceError)
    return (
        not error.args or not isinstance(error.args[0], int) or error.args[0] in _LOST
    )  # no number: of the client itself


def gone(why: str) -> CaptureGap:
    """The error for a place that the server no longer has, or never had."""
    return CaptureGap(
        f"{why}; what was committed after the position cannot be read, and going on would leave a gap",
        hint="take a new snapshot; and let the server keep its binary log for longer than a capture may be down"
        " (binlog_expire_logs_seconds)",
    )


def quoted(*names: str) -> str:
    """Names as SQL."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)
