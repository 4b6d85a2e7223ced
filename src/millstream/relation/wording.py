"""Clauses as one line of text each, as relations print them."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.relation import expression
from millstream.relation.clauses import Aggregation, Hopping, Look, Named, Ordering, Session, Sliding, Tumbling, Window
from millstream.relation.schema import format_duration


def describe_window(window: Window) -> str:
    """A window as one says it."""
    match window:
        case Tumbling() | Sliding():
            return f"{type(window).__name__.lower()}({window.column}, {format_duration(window.size)})"
        case Hopping():
            every = format_duration(window.every)
            return f"hopping({window.column}, {format_duration(window.size)}, every {every})"
        case Session():
            return f"session({window.column}, {format_duration(window.gap)})"


def describe_column(named: Named) -> str:
    """A column as a select has it: its expression, and its name where that is another."""
    own = expression.is_column(named.expression, named.name)
    return named.expression if own else f"{named.expression} AS {named.name}"


def describe_columns(columns: Sequence[Named]) -> str:
    """Columns with commas between them."""
    return ", ".join(map(describe_column, columns))


def describe_call(each: Aggregation) -> str:
    """An aggregate as one writes it."""
    if each.function == "count_distinct":
        return f"count(DISTINCT {each.arguments[0]})"
    fraction = [str(each.fraction)] if each.function.endswith("percentile") else []
    return f"{each.function}({', '.join((*each.arguments, *fraction)) or '*'})"


def describe_order(order: Sequence[Ordering]) -> str:
    """An order as one writes it."""
    return ", ".join(f"{each.expression} DESC" if each.descending else each.expression for each in order)


def describe_look(each: Look) -> str:
    """What a row gets from its neighbours."""
    if each.frame is None:
        return f"{each.function}({', '.join((*each.arguments, *([str(each.offset)] if each.arguments else [])))})"
    bounds = ["all" if bound is None else str(bound) for bound in (each.frame.before, each.frame.after)]
    call = describe_call(Aggregation(each.name, each.function, each.arguments, each.fraction))  # type: ignore[arg-type]
    return f"{call} over {each.frame.kind} {bounds[0]} before, {bounds[1]} after"
