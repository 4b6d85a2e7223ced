"""Debezium's envelope of a change: its parts, what makes one unusable, and the number that tells a repeat.

``{"before": …, "after": …, "op": "c|u|d|r|t", "source": {…}, "ts_ms": …}``, plain or as the ``payload`` beside a ``schema``. A table's columns are those of
``after``; ``d`` deletes, and so does a record without a value. Whoever decodes goes by the words here, on every path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import Sequence as Numbering

UPSERTS: Final = ("c", "u", "r")
"""The operations that say what a row is now: created, updated, read by a snapshot."""
DELETE: Final = "d"
TRUNCATE: Final = "t"
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What stands for a value that the database did not send, because it lies out of line and has not changed."""

TRUNCATED: Final = (
    "op t: a TRUNCATE names no keys, so the rows are still there; let the connector skip it (skipped.operations=t), delete the rows by tombstones,"
    " or take a new snapshot into a new topic"
)
NOT_SENT: Final = f"a value is {UNAVAILABLE}: PostgreSQL sends an unchanged value that lies out of line only after ALTER TABLE … REPLICA IDENTITY FULL"
UNNUMBERED: Final = "deduplicate: its source has neither lsn (PostgreSQL) nor file and pos (MySQL, MariaDB), so a repeat cannot be told; leave deduplicate out"

POSITION: Final = {"lsn": "bigint", "file": "string", "pos": "bigint", "row": "int"}
"""The fields of ``source`` that say where in the database's own log a change was, by connector."""
OP: Final = "_op"
_FILE: Final = 1 << 40
"""A binary log's number counts this much: more than a place in a file can be. Rows of one event have one place, and each takes a byte of it at least."""


def position_column(field: str) -> str:
    """What a field of :data:`POSITION` is called beside the columns of a row."""
    return f"_{field}"


HIDDEN: Final = {OP: "string"} | {position_column(name): kind for name, kind in POSITION.items()} | {"_file": "bigint"}
"""What an envelope has beside the row, where repeats are to be told; a file is the number at the end of its name."""
FILE_NUMBER: Final = "([0-9]{1,18})$"
"""The number of a binary log in its name, ``mysql-bin.000017``."""

NUMBER: Final = (
    f"CASE WHEN {OP} = 'r' THEN cast(null AS bigint) WHEN _lsn IS NOT NULL THEN _lsn"
    f" ELSE _file * {_FILE} + _pos + coalesce(_row, 0) END"
)
"""Where a change was in the database's log, as a number. Rows of a snapshot have none: what was in flight then has numbers below its own."""


def repeats(key: Sequence[str], codec: str, what: str) -> Numbering:
    """What marks a repeat in a topic of changes: the key, and a number that only grows for each key."""
    if codec not in ("debezium", "debezium-avro"):
        raise PlanError(
            f"{what}: deduplicate goes by what Debezium says of the place of a change; found codec {codec}",
            hint='codec="debezium", or leave it out: of changes without a number none is known to be a repeat',
        )
    texts = [f"cast({expression.quote(name)} AS string)" for name in key]
    if len(texts) == 1:
        return Numbering(texts[0], NUMBER)
    parts = [f"cast(length({text}) AS string), ':', {text}" for text in texts]
    return Numbering(f"concat({', '.join(parts)})", NUMBER)
