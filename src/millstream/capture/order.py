"""Which of two positions of one source comes first: each says where in the database's own log it is.

MariaDB and MySQL say a file and a byte in it, PostgreSQL an LSN, SQLite the number of a change, Debezium's engine that of a step.
"""

from __future__ import annotations

from millstream.capture.contract import Position
from millstream.errors import CaptureError


def order_of(position: Position) -> tuple[int, ...]:
    """Numbers that are greater for later positions of a source.

    >>> order_of({"file": "binlog.000010", "byte": 4}) > order_of({"file": "binlog.000009", "byte": 900})
    True
    >>> order_of({"lsn": "1/0"}) > order_of({"lsn": "0/FFFFFFFF"}), order_of({"seq": 7})
    (True, (7,))
    """
    if "file" in position:
        return int(str(position["file"]).rpartition(".")[2]), int(position["byte"])
    if "lsn" in position:
        lsn = position["lsn"]
        if isinstance(lsn, str):
            high, _, low = lsn.partition("/")
            return (int(high, 16) << 32 | int(low, 16),)
        return (int(lsn),)
    if "seq" in position:
        return (int(position["seq"]),)
    raise CaptureError(f"found the position {dict(position)!r}, expected one with a file, an lsn or a seq")
