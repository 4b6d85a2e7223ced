"""A process that writes and writes, transfers between accounts of two tables among other things, until it is stopped or its parent is gone."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from contextlib import suppress

ACCOUNTS = 20
TABLES = (
    "CREATE TABLE a (id INTEGER PRIMARY KEY, v int NOT NULL)",
    "CREATE TABLE b (id INTEGER PRIMARY KEY, v int NOT NULL)",
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, place int UNIQUE, word text COLLATE NOCASE UNIQUE)",
    *(f"INSERT INTO {table} VALUES ({number}, 100)" for table in "ab" for number in range(ACCOUNTS)),
)


def step(db: sqlite3.Connection, chance: random.Random) -> None:
    """One transaction."""
    db.execute("BEGIN IMMEDIATE")
    amount, one, other = chance.randrange(50), chance.randrange(ACCOUNTS), chance.randrange(ACCOUNTS)
    db.execute("UPDATE a SET v = v - ? WHERE id = ?", (amount, one))
    for _ in range(chance.randrange(6)):
        number, place, word = (
            chance.randrange(60),
            chance.randrange(60),
            chance.choice("abcdefgHIJKLMN") * chance.randrange(1, 300),
        )
        clause = chance.choice(["OR REPLACE", "OR REPLACE", "OR IGNORE"])
        db.execute(f"INSERT {clause} INTO notes VALUES (?, ?, ?)", (number, place, word))
        # Not both at once: see the limits in docs/capture-sqlite.md.
        db.execute(f"UPDATE {clause} notes SET place = ? WHERE id = ?", (place + 1, number))
        db.execute(f"UPDATE {clause} notes SET id = id + 1 WHERE id = ?", (number,))
        db.execute("DELETE FROM notes WHERE id = ?", (place,))
    db.execute("UPDATE b SET v = v + ? WHERE id = ?", (amount, other))
    db.execute(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))


def main(path: str, seed: int) -> None:
    chance = random.Random(seed)
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.execute(f"PRAGMA recursive_triggers = {seed % 2}")
    parent = os.getppid()
    while os.getppid() == parent:  # a test that is killed leaves nobody behind
        with suppress(sqlite3.OperationalError):
            step(db, chance)
        time.sleep(0.002)  # leave something of the processor to the readers


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
