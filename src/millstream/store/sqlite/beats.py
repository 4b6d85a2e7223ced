"""The heartbeats of pipelines in SQLite: what is known of the time of partitions that are silent.

Invariant: a batch's heartbeats are there exactly if its entry is. They stay when views are forgotten, as records in a topic would.
"""

from __future__ import annotations

import json

from millstream.database import Db
from millstream.log.heartbeat import Beat
from millstream.store.contract import Batch, Told

_TABLE = "millstream_heartbeats"
_COLUMNS = "topic, partition, offset, time, appended, ends, topic_id"
_SAME = "pipeline = ?1 AND topic = ?2 AND partition = ?3 AND offset = ?4 AND appended = ?5 AND checkpoint = ?6"


def write(db: Db, pipeline: str, batch: Batch, keep: int) -> None:
    """Enter the heartbeats of a batch; of older ones of one place and append time only the latest stays."""
    db.executemany(
        f"INSERT OR REPLACE INTO {_TABLE} (pipeline, {_COLUMNS}, checkpoint, batch) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (pipeline, *beat._replace(ends=json.dumps(beat.ends)), batch.checkpoint, batch.batch)  # type: ignore[arg-type]
            for beat in batch.beats
        ],
    )
    db.executemany(
        f"DELETE FROM {_TABLE} WHERE {_SAME} AND batch < (SELECT max(batch) FROM {_TABLE} WHERE {_SAME} AND batch <= ?7)",
        [
            (pipeline, beat.topic, beat.partition, beat.offset, beat.appended, batch.checkpoint, batch.batch - keep)
            for beat in batch.beats
        ],
    )


def heartbeats(db: Db, pipeline: str) -> list[Told]:
    """The heartbeats of a pipeline, in the order of their places."""
    rows = db.execute(
        f"SELECT checkpoint, batch, {_COLUMNS} FROM {_TABLE} WHERE pipeline = ?"
        " ORDER BY topic, partition, offset, time",
        (pipeline,),
    )
    return [
        Told(checkpoint, batch, Beat(topic, partition, offset, time, appended, json.loads(ends), topic_id))
        for checkpoint, batch, topic, partition, offset, time, appended, ends, topic_id in rows
    ]


def rename(db: Db, pipeline: str, other: str) -> None:
    """Let another pipeline have the heartbeats of one, in place of its own."""
    db.execute(f"DELETE FROM {_TABLE} WHERE pipeline = ?", (other,))
    db.execute(f"UPDATE {_TABLE} SET pipeline = ? WHERE pipeline = ?", (other, pipeline))
