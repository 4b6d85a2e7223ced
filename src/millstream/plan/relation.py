"""Relations: what a pipeline's author holds and builds views from.

A relation is a node of the plan and nothing else, so building one runs nothing, and each method gives a new one. Whatever does
not hold together is refused here, in the line that says it: every error begins with the place in the user's file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from millstream.errors import PlanError
from millstream.plan import expression
from millstream.plan.nodes import (
    META_COLUMNS,
    WINDOW_COLUMNS,
    Aggregate,
    Aggregation,
    Named,
    Node,
    Place,
    Select,
    Source,
    Tumbling,
    Where,
    output_columns,
    source_of,
)
from millstream.plan.schema import format_duration, parse_duration

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def here() -> Place:
    """The line of the caller nearest to us that is not Millstream's own; its file as Python knows it, relative if below the
    working directory."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if os.path.isabs(file) and file.startswith(inside := os.path.join(os.getcwd(), "")):
        file = file.removeprefix(inside)
    return Place(file, frame.f_lineno)


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Put the place in front of what goes wrong inside."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"{place}: {error.message}", hint=error.hint) from error.__cause__


@dataclass(frozen=True, slots=True, repr=False)
class Relation:
    """A stream, a table, or what was made of one; two that say the same are equal."""

    node: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return output_columns(self.node)

    def where(self, condition: str) -> Relation:
        """Keep the rows for which a Spark SQL condition is true."""
        place = here()
        with placed(place):
            expression.check(condition, _visible(self.node), "where")
        return Relation(Where(self.node, condition, place))

    def select(self, *columns: str) -> Relation:
        """Give each row these columns: ``"page"``, ``"amount * 2 AS twice"``, or ``"*"`` for those there are."""
        place = here()
        with placed(place):
            if not columns:
                raise PlanError("select: expected at least one column; found none")
            named: list[Named] = []
            for text in columns:
                if isinstance(text, str) and text.strip() == "*":
                    named += [Named(name, expression.quote(name)) for name in self.columns]
                else:
                    named.append(_named(text, self.node, "select"))
            _check_names([each.name for each in named], "select")
        return Relation(Select(self.node, tuple(named), place))

    def group_by(self, *keys: str | Tumbling) -> Grouped:
        """Gather rows with equal keys, and of one window if there is one; ``.agg`` says what to make of them.

        Keys are columns or expressions with a name. Without any, all rows are one group.
        """
        place = here()
        with placed(place):
            windows = [key for key in keys if isinstance(key, Tumbling)]
            if len(windows) > 1:
                raise PlanError(f"group_by: expected at most one window; found {len(windows)}")
            named = tuple(_named(key, self.node, "group_by") for key in keys if not isinstance(key, Tumbling))
            _check_names([key.name for key in named], "group_by")
            window = _checked_window(windows[0], self.node) if windows else None
            if window and (taken := [key.name for key in named if key.name.lower() in WINDOW_COLUMNS]):
                raise PlanError(f"group_by: {taken[0]} is a column of the window already")
        return Grouped(self.node, named, window)

    def __str__(self) -> str:
        return "\n".join("  " * depth + line for depth, line in enumerate(_lines(self.node)))

    def __repr__(self) -> str:
        return f"<Relation\n{self}\n>"


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows gathered by keys; nothing until it is aggregated."""

    node: Node = field(repr=False)
    keys: tuple[Named, ...]
    window: Tumbling | None

    def agg(self, **aggregates: str) -> Relation:
        """Give one row for each group: its keys, the window's start and end, and these, as ``n="count(*)"``."""
        place = here()
        with placed(place):
            if not aggregates:
                raise PlanError(
                    "agg: expected at least one aggregate; found none", hint='agg(n="count(*)") counts rows'
                )
            made = tuple(
                expression.parse_aggregate(name, text, _visible(self.node)) for name, text in aggregates.items()
            )
            for each in made:
                if each.name.lower() in WINDOW_COLUMNS:
                    raise PlanError(f"agg: {each.name} is reserved for windows; expected another name")
            _check_names([*(key.name for key in self.keys), *(each.name for each in made)], "agg")
            _check_stacked(self.node, self.keys, made)
        return Relation(Aggregate(self.node, self.keys, self.window, made, place))


def tumbling(column: str, size: str | timedelta) -> Tumbling:
    """Windows of one size side by side, aligned to the epoch, for ``group_by``.

    >>> tumbling("at", "1 minute")
    Tumbling(column='at', size=datetime.timedelta(seconds=60))
    """
    with placed(here()):
        if not isinstance(column, str) or (name := expression.plain_column(column)) is None:
            raise PlanError(f"tumbling: expected the stream's time column; found {column!r}")
        length = parse_duration(size)
        if not length:
            raise PlanError(f"tumbling: expected a size above zero; found {size!r}")
    return Tumbling(name, length)


def event_time(node: Node) -> str | None:
    """The column of a stream's event time, as long as it is there under its name and unchanged."""
    match node:
        case Source():
            return node.time.column if node.time else None
        case Where():
            return event_time(node.input)
        case Select():
            name = event_time(node.input)
            kept = name and any(each.name == name and _is_column(each.expression, name) for each in node.columns)
            return name if kept else None
        case Aggregate():
            return None


def natural_key(node: Node) -> tuple[str, ...]:
    """The columns that tell a relation's rows apart; none for a stream, or where a select left out one of them."""
    match node:
        case Source():
            return node.key if node.kind == "table" else ()
        case Where():
            return natural_key(node.input)
        case Select():
            names: dict[str, str] = {}
            for each in node.columns:
                names.setdefault((expression.plain_column(each.expression) or "").lower(), each.name)
            key = [names.get(name.lower()) for name in natural_key(node.input)]
            return tuple(name for name in key if name) if None not in key else ()
        case Aggregate():
            return (*(key.name for key in node.keys), *(WINDOW_COLUMNS[:1] if node.window else ()))


def has_window(node: Node) -> bool:
    """Whether there is a windowed aggregate anywhere in it."""
    while not isinstance(node, Source):
        if isinstance(node, Aggregate) and node.window:
            return True
        node = node.input
    return False


def has_aggregate(node: Node) -> bool:
    """Whether there is an aggregate anywhere in it."""
    while not isinstance(node, Source | Aggregate):
        node = node.input
    return isinstance(node, Aggregate)


def _is_column(sql: str, name: str) -> bool:
    return (expression.plain_column(sql) or "").lower() == name.lower()


def _visible(node: Node) -> tuple[str, ...]:
    """What an expression over a relation may use: its columns, and directly on a source what a record has besides."""
    bottom = node
    while isinstance(bottom, Where):
        bottom = bottom.input
    return (*output_columns(node), *(META_COLUMNS if isinstance(bottom, Source) else ()))


def _named(text: str, node: Node, what: str) -> Named:
    """One column of a select or a group, its plain columns in their declared spelling."""
    named = expression.parse_named(text)
    used = expression.check(named.expression, _visible(node), what)
    column = expression.plain_column(named.expression)
    if column is not None:
        (declared,) = used
        kept = named.name == column  # not renamed, so it keeps the spelling it has, whatever the case here
        named = Named(declared if kept else named.name, expression.quote(declared))
    if named.name.startswith("_"):
        raise PlanError(
            f"{what} `{text}`: names beginning with _ are Millstream's own",
            hint=f"give it a name: {named.expression} AS {named.name.lstrip('_') or 'name'}",
        )
    if named.name.lower() in WINDOW_COLUMNS and not _is_column(named.expression, named.name):
        raise PlanError(f"{what} `{text}`: {named.name} is reserved for windows; expected another name")
    return named


def _check_names(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name.startswith("_"):
            raise PlanError(f"{what}: {name}: names beginning with _ are Millstream's own; expected another name")
        if name.lower() in seen:
            raise PlanError(
                f"{what}: the column {name} is there twice; expected different names", hint="rename one with AS"
            )
        seen.add(name.lower())


def _checked_window(window: Tumbling, node: Node) -> Tumbling:
    source, below = source_of(node), event_time(node)
    wanted = f"a window over {window.column}"
    if _below(node)[0] is not None:
        raise PlanError(
            f"group_by: {wanted} on top of an aggregate; expected a window over a stream",
            hint="group by window_start and window_end of the aggregate below",
        )
    if source.kind == "table":
        raise PlanError(f"group_by: {wanted} of table {source.name}; tables have no windows, only streams do")
    if source.time is None:
        raise PlanError(
            f"group_by: {wanted}, but stream {source.name} has no event time",
            hint=f'windows need event time: stream("{source.name}", …, time="{window.column}")',
        )
    if below is None:
        raise PlanError(
            f"group_by: {wanted}, but a select has left out, renamed or changed the event time {source.time.column}",
            hint=f'keep it as it is: select("{source.time.column}", …)',
        )
    if window.column.lower() != below.lower():
        raise PlanError(
            f"group_by: {wanted}; expected {below}, which is the event time of stream {source.name}",
            hint=f'windows need event time: tumbling("{below}", …)',
        )
    return Tumbling(below, window.size)


def _below(node: Node) -> tuple[Aggregate | None, list[Where | Select]]:
    """The aggregate under a relation, if any, and what lies between."""
    between: list[Where | Select] = []
    while isinstance(node, Where | Select):
        between.append(node)
        node = node.input
    return (node if isinstance(node, Aggregate) else None), between


def _check_stacked(node: Node, keys: tuple[Named, ...], made: tuple[Aggregation, ...]) -> None:
    """Between two aggregates nothing is computed: those rows never come back to Spark."""
    aggregate, between = _below(node)
    if aggregate is None:
        return
    found = ""
    for each in reversed(between):
        texts = [each.condition] if isinstance(each, Where) else [column.expression for column in each.columns]
        computed = [text for text in texts if isinstance(each, Where) or expression.plain_column(text) is None]
        if computed and not found:
            found = f"{'where' if isinstance(each, Where) else 'select'} `{computed[0]}` at {each.place}"
    inner = [("key", key.expression) for key in keys]
    inner += [(f"aggregate {each.name}", text) for each in made for text in each.arguments]
    for what, text in inner:
        if not found and expression.plain_column(text) is None:
            found = f"{what} `{text}`"
    if found:
        raise PlanError(
            f"agg: an aggregate of an aggregate (at {aggregate.place}) may only select and rename columns between the two;"
            f" found {found}",
            hint="compute before the first aggregate or after the last",
        )


def _lines(node: Node) -> list[str]:
    """One line for each node, the source first."""
    match node:
        case Source():
            columns = ", ".join(f"{column.name} {column.type}" for column in node.columns)
            key = f" key {', '.join(node.key)}" if node.key else ""
            return [f"{node.kind} {node.name} ({columns}){key}"]
        case Where():
            return [*_lines(node.input), f"where {node.condition}"]
        case Select():
            return [*_lines(node.input), f"select {', '.join(map(_text, node.columns))}"]
        case Aggregate():
            keys = [_text(key) for key in node.keys]
            if node.window:
                keys.append(f"tumbling({node.window.column}, {format_duration(node.window.size)})")
            made = ", ".join(f"{each.name} = {_call(each)}" for each in node.aggregates)
            return [*_lines(node.input), f"group by {', '.join(keys) or 'nothing'}: {made}"]


def _text(named: Named) -> str:
    return named.expression if _is_column(named.expression, named.name) else f"{named.expression} AS {named.name}"


def _call(each: Aggregation) -> str:
    if each.function == "count_distinct":
        return f"count(DISTINCT {each.arguments[0]})"
    return f"{each.function}({', '.join(each.arguments) or '*'})"
