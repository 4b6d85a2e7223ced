"""The events of a folder laid out so that a peer can read them in order: the same lines, before any clock runs.

Both peers drop what is late by their watermark. Flink's readers take the files of a folder in no order, so each reader gets one
file, and lines are dealt to them in turn, or, where the order of bids of one time matters, by their auction. Spark takes files by their age, which says little about files that were copied. On Kafka
they read the topic that we read; Spark, for windows, a copy of it with an end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from millstream.bench.nexmark.data import auction_of, fill, read_folder

READERS = 2
_HAND = 1_000
_SMALL = 8 << 20
"""Bytes up to which one reader could be through its file before the other has begun, and would take both, in the wrong order."""
_CLOSING = "2100-01-01 00:00:00.000"


@dataclass(frozen=True, slots=True)
class Input:
    """The events that a peer reads: those of a folder, or, where there is a broker, the same ones from a topic of it."""

    folder: Path
    bootstrap: str = ""
    topic: str = ""

    @property
    def closed(self) -> str:
        """The topic with an end behind the events, for Spark."""
        return f"{self.topic}_closed"


def dealt(folder: Path, target: Path, *, by_auction: bool = False) -> Path:
    """One file for each of Flink's readers; one alone where there is little."""
    target.mkdir(parents=True)
    small = sum(path.stat().st_size for path in folder.glob("*.jsonl")) <= _SMALL
    files = [(target / f"{number}.jsonl").open("wb") for number in range(1 if small else READERS)]
    turn = 0
    for lines in read_folder(folder):
        for first in range(0, len(lines), _HAND):
            hand = lines[first : first + _HAND]
            if by_auction:
                for line in hand:
                    files[(auction_of(line) or 0) % len(files)].write(line + b"\n")
            else:
                files[turn % len(files)].write(b"\n".join(hand) + b"\n")
            turn += 1
    for file in files:
        file.close()
    return target


def aged(folder: Path, target: Path) -> Path:
    """The files in order of name, each a second younger than the one before; ``closing`` beside it ends every window.

    Spark closes a window only when something later comes. So one event of each kind does, of nobody, and is in a window that stays open.
    """
    (target / "events").mkdir(parents=True)
    (target / "closing").mkdir()
    number = 0
    for number, lines in enumerate(read_folder(folder)):
        path = target / "events" / f"{number:06}.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n")
        os.utime(path, (number, number))
    last = target / "closing" / "closing.jsonl"
    last.write_bytes(b"".join(line + b"\n" for line in _closing()))
    os.utime(last, (number + 1, number + 1))
    return target


def fill_closed(log: str, given: Input) -> None:
    """Fill the topic that Spark reads for windows: the events, and behind them one of each kind that ends every window."""
    lines: Iterator[list[bytes]] = chain(read_folder(given.folder), [_closing()])
    fill(log, lines, topic=given.closed)


def _closing() -> list[bytes]:
    nobody: dict[str, dict[str, int]] = {"person": {}, "auction": {}, "bid": {}}
    return [json.dumps({"event_type": kind, **nobody, "dateTime": _CLOSING}).encode() for kind in range(3)]


def written_iso(folder: Path) -> bool:
    """Whether times are written with a ``T`` and a ``Z``, which Flink must be told."""
    first = next(read_folder(folder))[0]
    return "T" in json.loads(first)["dateTime"]
