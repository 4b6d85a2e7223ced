"""The heartbeats of pipelines in PostgreSQL: what is known of the time of partitions that are silent.

Invariant: a batch's heartbeats are there exactly if its entry is. They stay when views are forgotten, as records in a topic would.
"""

from __future__ import annotations

import json

from millstream.log.heartbeat import Beat
from millstream.store.contract import Batch, Told
from millstream.store.postgres.server import Pg

_TABLE = "millstream_heartbeats"
_COLUMNS = 'topic, partition, "offset", time, appended, ends, topic_id'
_SAME = (
    'pipeline = %(pipeline)s AND topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s'
    " AND appended = %(appended)s AND checkpoint = %(checkpoint)s"
)


def write(db: Pg, pipeline: str, batch: Batch, keep: int) -> None:
    """Enter the heartbeats of a batch; of older ones of one place and append time only the latest stays."""
    if not batch.beats:
        return
    named = [
        {
            **beat._asdict(), "ends": json.dumps(beat.ends), "pipeline": pipeline, "checkpoint": batch.checkpoint,
            "batch": batch.batch, "bound": batch.batch - keep,
        }
        for beat in batch.beats
    ]  # fmt: skip
    with db.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {_TABLE} (pipeline, {_COLUMNS}, checkpoint, batch) VALUES (%(pipeline)s, %(topic)s, %(partition)s,"
            " %(offset)s, %(time)s, %(appended)s, %(ends)s, %(topic_id)s, %(checkpoint)s, %(batch)s)"
            ' ON CONFLICT (pipeline, topic, partition, "offset", time) DO UPDATE SET appended = excluded.appended,'
            " ends = excluded.ends, topic_id = excluded.topic_id, checkpoint = excluded.checkpoint, batch = excluded.batch",
            named,
        )
        cursor.executemany(
            f"DELETE FROM {_TABLE} WHERE {_SAME}"
            f" AND batch < (SELECT max(batch) FROM {_TABLE} WHERE {_SAME} AND batch <= %(bound)s)",
            named,
        )


def heartbeats(db: Pg, pipeline: str) -> list[Told]:
    """The heartbeats of a pipeline, in the order of their places."""
    rows = db.execute(
        f"SELECT checkpoint, batch, {_COLUMNS} FROM {_TABLE} WHERE pipeline = %s"
        ' ORDER BY topic, partition, "offset", time',
        [pipeline],
    ).fetchall()
    return [Told(checkpoint, batch, Beat(*place)) for checkpoint, batch, *place in rows]


def rename(db: Pg, pipeline: str, other: str) -> None:
    """Let another pipeline have the heartbeats of one, in place of its own."""
    db.execute(f"DELETE FROM {_TABLE} WHERE pipeline = %s", [other])
    db.execute(f"UPDATE {_TABLE} SET pipeline = %s WHERE pipeline = %s", [other, pipeline])
