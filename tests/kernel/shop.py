"""Two streams and a table for random plans, and functions of groups, which must have a text of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.relation.nodes import Column, EventTime, Sequence, Source
from tests.kernel.local import STAMP

SECOND = 1_000_000
TYPES: dict[str, dict[str, Any]] = {
    "a": {
        "k": pl.Int64, "i": pl.Int64, "f": pl.Float64, "s": pl.String, "xs": pl.List(pl.Int64), "at": STAMP,
        "who": pl.String, "nth": pl.Int64,
    },
    "b": {"k": pl.Int64, "j": pl.Int64, "t": pl.String, "bt": STAMP},
    "u": {"id": pl.Int64, "c": pl.String, "n": pl.Int64},
}  # fmt: skip
SQL = {pl.Int64: "long", pl.Float64: "double", pl.String: "string", STAMP: "timestamp"}
KINDS = {pl.Int64: "int", pl.Float64: "float", pl.String: "text", STAMP: "time"}
"""What a column can be used for; anything else is a list of integers."""


def kinds(name: str) -> dict[str, str]:
    """The columns of a source that plans look at."""
    return {column: KINDS.get(kind, "list") for column, kind in TYPES[name].items() if column not in ("who", "nth")}


def sources(chance: Random) -> dict[str, Source]:
    """The sources, with some delay each, and some lateness or none."""
    late = chance.random() < 0.5
    return {"a": _stream("a", "at", chance, late), "b": _stream("b", "bt", chance, late), "u": _source("u", "table")}


def _stream(name: str, column: str, chance: Random, late: bool) -> Source:
    delay, lateness = (timedelta(seconds=chance.choice(few)) for few in ((0, 3, 10), (0, 4, 25)))
    time = EventTime(column, delay, lateness if late else timedelta(0), "correct" if late and lateness else "drop")
    return _source(name, "stream", time)


def _source(name: str, kind: Any, time: EventTime | None = None) -> Source:
    columns = tuple(Column(column, SQL.get(kind, "array<bigint>")) for column, kind in TYPES[name].items())
    sequence = Sequence("who", "nth") if name == "a" else None
    return Source(kind, name, name, columns, key=("id",) if name == "u" else (), time=time, sequence=sequence)


def sizes(count: str, least: str, of: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """A function of a group: one row with how many rows it has, and the least of a column."""

    def made(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(pl.len().alias(count), pl.col(of).min().alias(least))

    return made


def numbers(count: str, least: str, of: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """A function of a group: its rows by number, from 0, each with that column."""

    def made(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.select(pl.int_range(pl.len()).alias(count), pl.col(of).alias(least))

    return made


def pairs(
    one: str, two: str, of: str, time: str | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function of batches: for each row with a number two rows, of the number and of what it is beside 10, and none for null."""

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                {one: row[of], two: each} | ({time: row[time]} if time else {})
                for row in batch.to_pylist()
                if row[of] is not None
                for each in (row[of], 10 - row[of])
            ]
            kinds = [(one, pa.int64()), (two, pa.int64()), *([(time, pa.timestamp("us", "UTC"))] if time else [])]
            yield pa.RecordBatch.from_pylist(rows, pa.schema(kinds))

    return made
