"""What the engine is told: the user's file of properties, as Debezium's pages have them, and what is ours to say.

Invariant: where the engine is, what it reads again and how it writes are ours, since what is in the log depends on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import ConfigError
from millstream.secret import check_settings, resolve

URLS = {
    "io.debezium.connector.postgresql.PostgresConnector": "jdbc:postgresql://{hostname}:{port}/{dbname}",
    "io.debezium.connector.mysql.MySqlConnector": "jdbc:mysql://{hostname}:{port}/",
    "io.debezium.connector.sqlserver.SqlServerConnector": "jdbc:sqlserver://{hostname}:{port};databaseName={names};encrypt=true;trustServerCertificate=true",
    "io.debezium.connector.oracle.OracleConnector": "jdbc:oracle:thin:@{hostname}:{port}/{dbname}",
    "io.debezium.connector.db2.Db2Connector": "jdbc:db2://{hostname}:{port}/{dbname}",
}
"""How the driver of each connector is told where its database is, to ask for the keys and columns of tables."""
_PORTS = {"postgresql": "5432", "mysql": "3306", "sqlserver": "1433", "oracle": "1521", "db2": "50000"}
_OURS = {
    "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
    "offset.storage.file.filename": "",
    "offset.flush.interval.ms": "1000",
    "snapshot.mode": "initial",
    "provide.transaction.metadata": "true",
    "tombstones.on.delete": "false",
    "include.schema.changes": "false",
    "skipped.operations": "none",
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "binary.handling.mode": "base64",
    "interval.handling.mode": "string",
    "hstore.handling.mode": "json",
    "heartbeat.interval.ms": "500",
    "topic.heartbeat.prefix": "millstream-heartbeat",
    "topic.transaction": "millstream-transaction",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "table.include.list": "",
    "topic.prefix": "",
    "name": "",
}
_PREFIXES = ("transforms", "predicates", "converters", "signal.", "notification.", "key.converter", "value.converter")
"""What would change the records that we read."""
_COMMENT, _PAIR = re.compile(r"\s*[#!]"), re.compile(r"\s*([^=:\s]+)\s*[=:]\s*(.*?)\s*")
_TABLE = re.compile(r"[^.\s]+\.[^.\s]+")


@dataclass(frozen=True, slots=True)
class Properties:
    """What the engine of a capture is told, with secrets by reference; ``url`` is the database for its driver."""

    name: str
    values: Mapping[str, str]
    url: str

    def resolved(self, offsets: Path) -> dict[str, str]:
        """The same with secrets in it, and where the engine finds its offsets. Never to be printed."""
        made = {name: resolve(value) for name, value in self.values.items()}
        return made | {"offset.storage.file.filename": str(offsets)}


def read_properties(path: Path, tables: Sequence[str], name: str) -> Properties:
    """The properties of a file, completed for a capture of this name.

    :raises ConfigError: if the file cannot be read, says what is ours to say, or lacks something
    """
    what = f"capture {name}: {path}"
    given = _pairs(path, what)
    for said in given:
        if said in _OURS or said.startswith(_PREFIXES):
            raise ConfigError(f"{what}: {said} is ours to say; found {given[said]!r}", hint="leave it out")
    check_settings(given, what=str(path))
    connector = given.get("connector.class", "")
    if connector not in URLS:
        raise ConfigError(
            f"{what}: found connector.class {connector!r}, expected one of {', '.join(URLS)}",
            hint='other connectors write to Kafka, by Kafka Connect; their topics are read with codec="debezium"',
        )
    if strange := [each for each in tables if not _TABLE.fullmatch(each)]:
        raise ConfigError(f"{what}: found the table {strange[0]!r}, expected SCHEMA.TABLE", hint="--table public.users")
    kind = connector.split(".")[3]
    place = {"hostname": "localhost", "port": _PORTS[kind]}
    place |= {each.removeprefix("database."): value for each, value in given.items() if each.startswith("database.")}
    try:
        url = URLS[connector].format(**place)
    except KeyError as error:
        raise ConfigError(f"{what}: no database.{error.args[0]}") from error
    values = _defaults(kind, path, name) | given | _OURS
    values |= {"name": name, "topic.prefix": name, "table.include.list": ",".join(re.escape(each) for each in tables)}
    return Properties(name, values, url)


def _defaults(kind: str, path: Path, name: str) -> dict[str, str]:
    """What a user need not say."""
    called = re.sub(r"[^a-z0-9_]", "_", f"millstream_{name}".lower())
    if kind == "postgresql":
        return {
            "plugin.name": "pgoutput",
            "slot.name": called,
            "publication.name": called,
            "publication.autocreate.mode": "filtered",
            "slot.max.retries": "120",  # what was killed may hold it for a moment
            "slot.retry.delay.ms": "500",
            "poll.interval.ms": "100",
        }
    return {
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(path.with_suffix(f".{name}.history").absolute()),
        "poll.interval.ms": "100",
    }


def _pairs(path: Path, what: str) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: cannot be read: {error}", hint="debezium:FILE.properties") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or _COMMENT.match(line):
            continue
        pair = _PAIR.fullmatch(line)
        if pair is None or line.endswith("\\"):
            raise ConfigError(f"{what}, line {number}: expected NAME=VALUE on one line")
        found[pair[1]] = pair[2]
    return found
