"""Operations that look at a row among others: ranks, frames, the first rows, repeats, and what a function makes of a group.

Here they are read from what the user says and checked; each gives a node of the plan.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, get_args

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.approximate import EXACT, refused
from millstream.relation.foreign_names import is_spark_column
from millstream.relation.nodes import (
    Deduplicate,
    Explode,
    Frame,
    Look,
    MapGroups,
    Named,
    Node,
    Ordering,
    Over,
    Place,
    Ranking,
    Ties,
    Top,
    Union,
    output_columns,
    source_of,
)
from millstream.relation.properties import event_time, visible
from millstream.relation.schema import parse_columns, parse_duration

WHOLE = Frame("rows", None, None)
SO_FAR = Frame("range", None, 0)
_GIVEN = re.compile(
    r"(array<)*(boolean|tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|string|binary|date|timestamp"
    r"|timestamp_ntz|(decimal|dec|numeric)(\(\d+(,\d+)?\))?)>*"
)


def as_list(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One text or several, as several."""
    if given is None:
        return ()
    if isinstance(given, str) or is_spark_column(given):
        return (given,)  # type: ignore[return-value]  # a Column is told where it is read
    return tuple(given)


def partition_of(node: Node, given: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """The expressions that rows must have in common."""
    texts = as_list(given)
    for text in texts:
        expression.check(text, visible(node), what)
    return texts


def look(name: str, text: str, node: Node, order: tuple[Ordering, ...], frame: Frame | None) -> Look:
    """Read one look at a row's neighbours: a rank, ``lag(e, n)`` or ``lead(e, n)``, or an aggregate over the frame."""
    what = f"over {name}"
    call = expression.call_of(text, what)
    if call is None or call[0] not in get_args(Ranking):
        made = expression.parse_aggregate(name, text, visible(node))
        if made.function in EXACT:
            raise refused(made, "a frame")
        chosen = frame or (SO_FAR if order else WHOLE)
        return Look(name, made.function, made.arguments, chosen, fraction=made.fraction, written=made.written)
    function, arguments = call
    if not order:
        raise PlanError(f"{what} `{text}`: {function} of what order?", hint='over(…, order="at")')
    if function not in ("lag", "lead"):
        if arguments:
            raise PlanError(f"{what} `{text}`: {function} takes no argument; found {len(arguments)}")
        return Look(name, function)  # type: ignore[arg-type]
    if len(arguments) not in (1, 2) or not (arguments[1:] or ("1",))[0].isdigit():
        raise PlanError(
            f"{what} `{text}`: expected {function}(expression) or {function}(expression, how many rows away)",
            hint=f"for a default: coalesce({name}, …) in a select() after",
        )
    expression.check(arguments[0], visible(node), what)
    return Look(name, function, arguments[:1], offset=int((arguments[1:] or ("1",))[0]))  # type: ignore[arg-type]


def over(
    node: Node, partition: Any, order: str | None, frame: Frame | None, looks: dict[str, str], place: Place
) -> Over:
    """Each row, and what its neighbours make of it."""
    if not looks:
        raise PlanError("over: expected at least one column to add; found none", hint='.add(n="row_number()")')
    keys = partition_of(node, partition, "over: partition")
    ordering = expression.parse_order(order, visible(node), "over: order") if order is not None else ()
    if frame is not None and not ordering:
        raise PlanError("over: a frame needs an order", hint='over(…, order="at")')
    if frame is not None and frame.kind == "range" and (frame.before or frame.after) and len(ordering) != 1:
        raise PlanError("over: a frame of distances needs an order by one column", hint="frame.rows(…) counts rows")
    made = tuple(look(name, text, node, ordering, frame) for name, text in looks.items())
    return Over(node, keys, ordering, made, place)


def top(node: Node, count: int, by: str, per: Any, ties: Ties | None, place: Place) -> Top:
    """The first rows of each group."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise PlanError(f"top: expected how many rows, above zero; found {count!r}")
    order = expression.parse_order(by, visible(node), "top: by")
    if ties is not None and ties not in get_args(Ties):
        raise PlanError(f"top: expected ties to be {' or '.join(get_args(Ties))}; found {ties!r}")
    return Top(node, count, order, partition_of(node, per, "top: per"), ties, place)


def deduplicate(node: Node, ids: Any, within: str | timedelta | None, place: Place) -> Deduplicate:
    """The rows that are no repeats of an earlier one."""
    keys = partition_of(node, ids, "deduplicate")
    if not keys:
        raise PlanError("deduplicate: expected the columns that tell repeats; found none", hint="distinct() takes all")
    if event_time(node) is None:
        raise PlanError(
            f"deduplicate: which of several comes first is a matter of event time, and {source_of(node).name} has none here",
            hint='stream(…, time="at"), or top(1, by="…", per="id") for another order',
        )
    if within is not None and not parse_duration(within):
        raise PlanError(f"deduplicate: expected a duration above zero; found {within!r}")
    return Deduplicate(node, keys, parse_duration(within) if within is not None else None, place)


def union(nodes: tuple[Node, ...], place: Place) -> Union:
    """The rows of several relations."""
    columns = [output_columns(node) for node in nodes]
    for each in columns[1:]:
        if [name.lower() for name in each] != [name.lower() for name in columns[0]]:
            raise PlanError(
                f"union: expected the same columns; found {', '.join(columns[0])} and {', '.join(each)}",
                hint="choose and order them with select(…)",
            )
    flat = [inner for node in nodes for inner in (node.inputs if isinstance(node, Union) else (node,))]
    return Union(tuple(flat), place)


def explode(node: Node, array: str, name: str, place: Place) -> Explode:
    """Each row once for each element of an array."""
    expression.check(array, visible(node), "explode")
    if not isinstance(name, str) or expression.plain_column(name) is None:
        raise PlanError(f"explode: expected the name of the element's column; found {name!r}", hint='as_="tag"')
    return Explode(node, array, name, place)


def map_groups(
    node: Node, function: Callable[[Any], Any], key: tuple[Named, ...], schema: str, place: Place
) -> MapGroups:
    """What a function makes of the rows of each key."""
    if not callable(function):
        raise PlanError(f"map_groups: expected a function of a Polars frame; found {function!r}")
    columns = parse_columns(schema)
    for column in columns:
        if not _GIVEN.fullmatch(column.type.replace(" ", "").lower()):
            raise PlanError(
                f"map_groups: a function cannot give {column.name} {column.type}; only plain types and arrays"
            )
    return MapGroups(node, key, columns, _digest(function), function, place)


def _digest(function: Callable[[Any], Any]) -> str:
    """What tells a function from another: its text, or its name where there is no text to be had."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
