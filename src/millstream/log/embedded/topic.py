"""Topics as the embedded log stores them: their rows, their settings as text, the tables of their partitions.

Every change of a topic raises its version, in the same transaction; a writer that has read the topic before compares it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.database import Db
from millstream.errors import ConfigError, TopicExists
from millstream.log.contract import Topic, TopicSettings
from millstream.log.embedded.file import create_records_table, identify, records_table


class TopicRow(NamedTuple):
    """A topic as stored; ``version`` grows with every change, which is how a writer notices one."""

    id: int
    version: int
    topic: Topic


def stored(db: Db, name: str) -> tuple[int, int, str] | None:
    """Id, version and settings of a topic."""
    found: tuple[int, int, str] | None = db.execute(
        "SELECT id, version, settings FROM topic WHERE name = ?", (name,)
    ).fetchone()
    return found


def described(db: Db, name: str, number: int, version: int, settings: str) -> TopicRow:
    """The topic that these are of."""
    count = db.execute("SELECT count(*) FROM partition WHERE topic = ?", (number,)).get
    return TopicRow(number, version, Topic(name, count, msgspec.json.decode(settings, type=TopicSettings)))


def create(db: Db, topic: Topic) -> None:
    """Store a topic that is not there yet, with its partitions."""
    if db.execute("SELECT 1 FROM topic WHERE name = ?", (topic.name,)).get:
        raise TopicExists(
            f"topic {topic.name} exists already", hint=f"`millstream topics describe {topic.name}` shows it"
        )
    db.execute("INSERT INTO topic (name, settings, version) VALUES (?, ?, 1)", (topic.name, _dump(topic.settings)))
    number = db.last_insert_rowid()
    add_partitions(db, number, range(topic.partitions))
    _index(db, number, topic.partitions, wanted=topic.settings.indexed)
    identify(db, number)


def change(db: Db, row: TopicRow, partitions: int, settings: TopicSettings) -> None:
    """Store settings, and that the topic has changed; it has so many partitions by now."""
    if settings.indexed or row.topic.settings.indexed:
        _index(db, row.id, partitions, wanted=settings.indexed)
    db.execute("UPDATE topic SET settings = ?, version = version + 1 WHERE id = ?", (_dump(settings), row.id))


def drop(db: Db, row: TopicRow) -> None:
    """Drop its tables and everything that refers to it."""
    for partition in range(row.topic.partitions):
        db.execute(f"DROP TABLE {records_table(row.id, partition)}")
    for table in ("partition", "time_index", "sequence", "group_offset", "delivery", "queue"):
        db.execute(f"DELETE FROM {table} WHERE topic = ?", (row.id,))
    db.execute("DELETE FROM topic WHERE id = ?", (row.id,))  # its row of `ahead` may stay: no other gets its id


def check_partitions(partitions: int) -> int:
    """Give the number back if a topic may have so many."""
    if not 1 <= partitions <= 1000:
        raise ConfigError(f"partitions: found {partitions}, expected 1 to 1000")
    return partitions


def add_partitions(db: Db, topic: int, partitions: range) -> None:
    """Make partitions without records."""
    for partition in partitions:
        db.execute("INSERT INTO partition (topic, partition) VALUES (?, ?)", (topic, partition))
        create_records_table(db, topic, partition)


def _index(db: Db, topic: int, partitions: int, *, wanted: bool) -> None:
    """Make the index by key of each partition, or drop it. A version that does not know of indices keeps them all the same."""
    for table in (records_table(topic, partition) for partition in range(partitions)):
        if wanted:  # a rowid, which the offset is, ends every entry: those of one key are in its order
            db.execute(f"CREATE INDEX IF NOT EXISTS {table}_key ON {table} (key)")
        else:
            db.execute(f"DROP INDEX IF EXISTS {table}_key")


def _dump(settings: TopicSettings) -> str:
    return msgspec.json.encode(settings).decode()
