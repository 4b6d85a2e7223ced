"""Whether a server writes a binary log from which tables can be followed; each refusal says the line that mends it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pymysql

from millstream.capture.mysql.position import At
from millstream.capture.mysql.server import Ask, gone
from millstream.capture.mysql.statements import Name
from millstream.errors import CaptureError

_NEEDED = {
    "log_bin": ("ON", "log_bin = binlog in the server's configuration, and restart it"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = ROW; and the same in the server's configuration"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = FULL; and the same in the server's configuration"),
    "binlog_row_metadata": (
        "FULL",
        "SET GLOBAL binlog_row_metadata = FULL; and the same in the server's configuration",
    ),
}
_IF_KNOWN = {
    "binlog_row_value_options": ("", "SET GLOBAL binlog_row_value_options = '';"),
    "binlog_transaction_compression": ("OFF", "SET GLOBAL binlog_transaction_compression = OFF;"),
}
_REPLICA = {True: "SHOW ALL SLAVES STATUS", False: "SHOW REPLICA STATUS"}
_STATUS = ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
"""What asks for the end of the binary log: MySQL has another word for it since 8.2."""


def server_id(ask: Ask) -> str:
    """What tells a server from others, as far as it does: MySQL's has a number of its own, MariaDB's one that people give it."""
    identity = None if ask.mariadb else ask.variable("server_uuid")
    return identity or f"mariadb {ask.variable('server_id')}"


def folds(ask: Ask) -> bool:
    """Whether upper and lower case are one in the names of tables."""
    return ask.variable("lower_case_table_names") != "0"


def check_settings(ask: Ask, names: Iterable[Name]) -> None:
    """Refuse settings under which rows, columns or tables would be missing."""
    where = "the server"
    for name, (wanted, cure) in _NEEDED.items():
        found = ask.variable(name)
        if found != wanted:
            raise CaptureError(f"{where} has {name} = {found}, expected {wanted}", hint=cure)
    for name, (wanted, cure) in _IF_KNOWN.items():
        found = ask.variable(name)
        if found is not None and found != wanted:
            raise CaptureError(f"{where} has {name} = {found}, expected {wanted or 'nothing'}", hint=cure)
    _check_filters(ask, names)
    if ask.variable("log_slave_updates") == "OFF" or ask.variable("log_replica_updates") == "OFF":
        with suppress(pymysql.MySQLError):  # who may not ask may still capture
            if ask(_REPLICA[ask.mariadb]):
                raise CaptureError(
                    "the server is a replica and does not write what it replicates into its own binary log",
                    hint="log_slave_updates = ON in its configuration, and restart it; or capture from its source",
                )


def binlog_end(ask: Ask) -> tuple[str, int, str, str]:
    """File and byte at which the binary log ends, and the databases that it has alone, or leaves out."""
    for query in _STATUS:
        with suppress(pymysql.err.ProgrammingError):
            rows = ask(query)
            if rows:
                file, byte, only, without = rows[0][:4]
                return str(file), int(byte), str(only or ""), str(without or "")
    raise CaptureError("the server does not say where its binary log ends", hint=_NEEDED["log_bin"][1])


def check_reaches(ask: Ask, at: At) -> None:
    """Refuse a position that this server does not have, or has no longer."""
    found = server_id(ask)
    if found != at.server:
        raise gone(f"the position is of the server {at.server!r}, and this is {found!r}")
    sizes = {str(row[0]): int(row[1]) for row in ask("SHOW BINARY LOGS")}
    start = at.start
    if start.file not in sizes:
        first = min(sizes, default="none")
        raise gone(f"the server has no binary log {start.file} any more, its first is {first}")
    if start.byte > sizes[start.file]:
        raise gone(
            f"{start.file} has {sizes[start.file]} bytes, and the position is at {start.byte}: the server lost what it had written"
        )


def _check_filters(ask: Ask, names: Iterable[Name]) -> None:
    _, _, only, without = binlog_end(ask)
    for schema, table in names:
        if (only and schema not in only.split(",")) or schema in without.split(","):
            raise CaptureError(
                f"table {schema}.{table}: the server leaves its database out of the binary log",
                hint="take binlog_do_db and binlog_ignore_db out of the server's configuration, and restart it",
            )
