"""A process that captures into a file: each transaction is a line, on the disk before the next is asked for, and then acknowledged.

It begins where the file ends; a line that is not whole is one that was not written.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from millstream.capture.contract import Change, Table
from millstream.capture.sqlite.source import SqliteSource


def written(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def count(path: Path) -> int:
    """How many whole lines there are."""
    return path.read_bytes().count(b"\n")


def said_of(lines: list[dict[str, Any]]) -> list[Change]:
    return [
        Change(Table("", name, (), tuple(key)), op, before, after)
        for line in lines
        for name, key, op, before, after in line["changes"]
    ]


def main(address: str, path: Path, *tables: str) -> None:
    lines = written(path)
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    source = SqliteSource(address, tables, "shop")
    source.prepare(lines[-1]["position"])
    with path.open("ab") as file:
        for transaction in source.changes(lines[-1]["position"]):
            if transaction is None:
                continue
            changes = [
                (each.table.name, each.table.key, each.op, each.before, each.after) for each in transaction.changes
            ]
            said = json.dumps({"position": transaction.position, "changes": changes}).encode() + b"\n"
            for part in (said[: len(said) // 2], said[len(said) // 2 :]):  # a kill may come between them
                file.write(part)
                file.flush()
            os.fsync(file.fileno())
            source.acknowledge(transaction.position)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
