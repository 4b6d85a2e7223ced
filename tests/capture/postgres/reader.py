"""A process that captures into a file: each transaction is a line, on the disk before the next is asked for and before it is acknowledged.

It begins where the file ends; a line that is not whole is one that was not written. An empty file begins with a snapshot.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from millstream.capture.contract import Change, Table
from millstream.capture.postgres.source import PostgresSource


def written(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def changes_of(lines: list[dict[str, Any]]) -> list[Change]:
    return [
        Change(Table("", name, (), tuple(key)), op, before, after)
        for line in lines
        for name, key, op, before, after in line["changes"]
    ]


def _write(file: IO[bytes], position: Any, changes: list[Any]) -> None:
    said = json.dumps({"position": position, "changes": changes}).encode() + b"\n"
    for part in (said[: len(said) // 2], said[len(said) // 2 :]):  # a kill may come between them
        file.write(part)
        file.flush()
    os.fsync(file.fileno())


def main(address: str, name: str, path: Path, *tables: str) -> None:
    lines = written(path)
    path.touch()
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    source = PostgresSource(address, tables, name)
    source.prepare(lines[-1]["position"] if lines else None)
    with path.open("ab") as file:
        if not lines:
            found = source.tables()
            with source.snapshot(found) as snapshot:
                rows = [
                    (table.name, table.key, "c", None, row)
                    for table in found
                    for piece in snapshot.rows(table)
                    for row in piece
                ]
            _write(file, snapshot.position, rows)
        position = lines[-1]["position"] if lines else snapshot.position
        for transaction in source.changes(position):
            if transaction is None:
                continue
            changes = [
                (each.table.name, each.table.key, each.op, each.before, each.after) for each in transaction.changes
            ]
            _write(file, transaction.position, changes)
            source.acknowledge(transaction.position)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
