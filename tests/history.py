"""A history checker: what writers were told, against what the log holds in the end.

A history is a list of JSON lines. ``invoke`` is written before an append, then one of ``ok`` (acknowledged, with
partitions and offsets), ``fail`` (certainly not kept) or ``info`` (nobody knows); a writer that was killed leaves an
``invoke`` alone, which means the same as ``info``. Every record's value is ``producer:sequence:index``, so each can be
traced to its append. Nothing may be

* lost: acknowledged, and not there, or not where the acknowledgement said;
* aborted: there, although its append certainly failed and was never repeated;
* duplicated: there twice;
* torn: some events of a batch are there, and some are not;
* reordered: within a partition, a producer's events in another order than it sent them;
* invented: there, although nobody sent it;
* a hole: an offset without a record (for topics that are not cleaned).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal["lost", "aborted", "duplicated", "torn", "reordered", "invented", "hole"]
Batch = tuple[str, int]


class Problem(NamedTuple):
    """One thing that must not be."""

    kind: Kind
    what: str


class Line(NamedTuple):
    """One line of a history."""

    type: Literal["invoke", "ok", "fail", "info"]
    producer: str
    sequence: int
    count: int  # type: ignore[assignment]  # of a tuple too, but nobody counts in one
    partitions: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()

    def dump(self) -> str:
        """As JSON, with the end of the line."""
        return json.dumps(self._asdict()) + "\n"


class Stored(NamedTuple):
    """A record of the final log."""

    partition: int
    offset: int
    value: str


def value(producer: str, sequence: int, index: int) -> str:
    """The value of one event of a batch."""
    return f"{producer}:{sequence}:{index}"


def load(path: Path) -> list[Line]:
    """Read a history; a line that a killed writer left half-written says nothing."""
    lines: list[Line] = []
    for text in path.read_text().splitlines():
        try:
            fields: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            continue
        lines.append(Line(**fields | {name: tuple(fields[name]) for name in ("partitions", "offsets")}))
    return lines


def check(lines: Iterable[Line], records: Iterable[Stored], *, dense: bool = True) -> list[Problem]:
    """Everything that is wrong; an empty list is a proof, as far as the history goes."""
    lines, records = list(lines), list(records)
    counts: dict[Batch, int] = {}
    outcomes: dict[Batch, set[str]] = defaultdict(set)
    for line in lines:
        counts[line.producer, line.sequence] = line.count
        outcomes[line.producer, line.sequence].add(line.type)
    problems: list[Problem] = []
    places: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    for record in sorted(records):
        event = _event(record.value)
        if event is None or event[:2] not in counts or not 0 <= event[2] < counts[event[:2]]:
            problems.append(Problem("invented", f"{record.value} at {record.partition}/{record.offset}"))
        else:
            places[event].append((record.partition, record.offset))
    for event, found in places.items():
        if len(found) > 1:
            problems.append(Problem("duplicated", f"{value(*event)} at {found}"))
    present = Counter(event[:2] for event in places)
    for (producer, sequence), count in counts.items():
        there = present[producer, sequence]
        if 0 < there < count:
            problems.append(Problem("torn", f"{producer}:{sequence} has {there} of {count}"))
        # A repeat after a failure opens the question again, so only failures alone are certain.
        if there and outcomes[producer, sequence] <= {"invoke", "fail"} and _all_failed(lines, producer, sequence):
            problems.append(Problem("aborted", f"{producer}:{sequence} failed, and {there} of it are there"))
    problems += _lost(lines, places)
    problems += _reordered(records)
    if dense:
        problems += _holes(records)
    return problems


def _event(text: str) -> tuple[str, int, int] | None:
    producer, _, rest = text.partition(":")
    sequence, _, index = rest.partition(":")
    return (producer, int(sequence), int(index)) if sequence.isdecimal() and index.isdecimal() else None


def _all_failed(lines: list[Line], producer: str, sequence: int) -> bool:
    types = Counter(line.type for line in lines if (line.producer, line.sequence) == (producer, sequence))
    return types["fail"] >= types["invoke"]


def _lost(lines: list[Line], places: dict[tuple[str, int, int], list[tuple[int, int]]]) -> list[Problem]:
    problems: list[Problem] = []
    for line in lines:
        if line.type != "ok":
            continue
        told = list(zip(line.partitions, line.offsets, strict=True))
        for index in range(line.count):
            event = (line.producer, line.sequence, index)
            if event not in places:
                problems.append(Problem("lost", f"{value(*event)}, acknowledged at {told[index]}"))
            elif told[index] not in places[event]:
                problems.append(Problem("lost", f"{value(*event)} is at {places[event]}, not at {told[index]}"))
    return problems


def _reordered(records: list[Stored]) -> list[Problem]:
    problems: list[Problem] = []
    last: dict[tuple[int, str], tuple[int, int]] = {}
    for record in sorted(records):
        if event := _event(record.value):
            place, order = (record.partition, event[0]), event[1:]
            if place in last and order < last[place]:
                problems.append(Problem("reordered", f"{record.value} at {record.partition}/{record.offset}"))
            last[place] = order
    return problems


def _holes(records: list[Stored]) -> list[Problem]:
    offsets: dict[int, set[int]] = defaultdict(set)
    for record in records:
        offsets[record.partition].add(record.offset)
    return [
        Problem("hole", f"{partition}/{missing}")
        for partition, found in offsets.items()
        for missing in sorted(set(range(max(found) + 1)) - found)
    ]
