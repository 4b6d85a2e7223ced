"""The columns of CREATE STREAM and CREATE TABLE, with what else stands among them: PRIMARY KEY and WATERMARK."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from millstream.errors import PlanError
from millstream.relation.nodes import Place
from millstream.relation.schema import parse_columns
from millstream.relation.source_location import placed
from millstream.sql.script import Reader


class Key(NamedTuple):
    """A PRIMARY KEY."""

    columns: tuple[str, ...]
    place: Place


class Computed(NamedTuple):
    """A column that is computed: ``at AS timestamp_millis(ms)``."""

    text: str
    place: Place


class Time(NamedTuple):
    """A WATERMARK: the column that is the event's time, or an expression and its name, and how far it may be behind."""

    column: str
    delay: timedelta
    place: Place


def read_columns(reader: Reader, kind: str, name: str) -> tuple[str, Key | None, Time | None]:
    """The columns in brackets, as text; with PRIMARY KEY and WATERMARK, if they are among them."""
    texts: list[str] = []
    keys: list[Key] = []
    times: list[Time] = []
    computed: dict[str, Computed] = {}
    for item in reader.items():
        place = item.place
        if item.skip("PRIMARY KEY"):
            keys.append(Key(tuple(each.name("a column's name") for each in item.items()), place))
            item.finish()
        elif item.skip("WATERMARK", "FOR"):
            times.append(_watermark(item, place))
        elif item.word(1) == "AS":
            column = item.name("a column's name")
            computed[column.lower()] = Computed(item.statement.between(item.index + 1, item.end), place)
        else:
            if item.statement.word(item.end - 1) == "PRIMARY KEY":
                item.end -= 1
                keys.append(Key((Reader(item.statement, item.index).name("a column's name"),), place))
            text = item.statement.between(item.index, item.end)
            with placed(place):
                parse_columns(text, source=True)
            texts.append(text)
    for several, what in ((keys, "PRIMARY KEY"), (times, "WATERMARK")):
        if len(several) > 1:
            hint = "of several columns: PRIMARY KEY (a, b)" if what == "PRIMARY KEY" else ""
            raise PlanError(f"{several[1].place}: {kind} {name}: expected one {what}; found another", hint=hint)
    time = times[0] if times else None
    for column, made in computed.items():
        if time is None or column != time.column.lower() or len(computed) > 1:
            raise PlanError(
                f"{made.place}: {kind} {name}: only the event time is computed among the columns; found {column}",
                hint="WATERMARK FOR the column makes it the event time; compute others in a SELECT",
            )
        time = time._replace(column=f"{made.text} AS `{time.column}`")
    return ", ".join(texts), keys[0] if keys else None, time


def _watermark(item: Reader, place: Place) -> Time:
    column = item.name("a column's name")
    item.expect("AS", hint=f"WATERMARK FOR {column} AS {column} - INTERVAL 10 SECONDS")
    again = item.place
    if item.name("the column again").lower() != column.lower():
        raise PlanError(
            f"{again}: WATERMARK: expected {column} again, less an interval",
            hint=f"WATERMARK FOR {column} AS {column} - INTERVAL 10 SECONDS",
        )
    delay = item.interval() if item.skip("-") else timedelta(0)
    item.finish()
    return Time(column, delay, place)
