"""How a kernel with one input does what a node says: its spec, the columns it wants of the rows below, and what cuts them apart.

Expressions stay text over the relation below; who lays the chain says where they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from millstream.plan import spec as specs
from millstream.plan.chain import WindowBound, micros
from millstream.relation import expression
from millstream.relation.nodes import (
    WINDOW_COLUMNS,
    Aggregate,
    Deduplicate,
    Emit,
    Explode,
    Frame,
    Hopping,
    Look,
    MapGroups,
    Ordering,
    Over,
    Session,
    Sliding,
    Top,
    Tumbling,
    Union,
    Windowed,
    output_columns,
)
from millstream.relation.operators.contract import lateness

OneInput = Aggregate | Windowed | Over | Top | Deduplicate | Union | Explode | MapGroups


@dataclass(frozen=True)
class Laid:
    """A kernel before it has a place: ``wanted`` are its columns and what they are below, ``spread`` what its buckets go by."""

    spec: specs.Spec
    wanted: Mapping[str, str]
    spread: tuple[str, ...]
    marks: bool = False


def lay(node: OneInput, emit: Emit, insert_only: bool) -> Laid:
    """Say how a kernel does what a node says."""
    match node:
        case Aggregate(window=Session()):
            return _session(node, emit, insert_only)
        case Aggregate(window=Sliding()):
            return _sliding(node, emit, insert_only)
        case Aggregate():
            return _reduce(node, emit, insert_only)
        case Over():
            return _over(node, emit, insert_only)
        case Top():
            return _top(node, emit, insert_only)
        case Deduplicate():
            return _deduplicate(node, emit, insert_only)
        case MapGroups():
            return _groups(node)
        case Windowed():
            return _windows(node)
        case Union() | Explode():
            below = output_columns(node if isinstance(node, Union) else node.input)
            wanted = {name: expression.quote(name) for name in below}
            if isinstance(node, Union):
                return Laid(specs.Pass(below), wanted, below, node.event_time() is not None)
            wanted["_array"] = node.array
            return Laid(specs.Pass(below, "_array", node.name), wanted, below[:1], node.event_time() is not None)


class _Names:
    """Columns for expressions: a column of the relation by its name, anything else under a name of ours."""

    def __init__(self, columns: tuple[str, ...] = ()) -> None:
        self.wanted = {name: expression.quote(name) for name in columns}
        self._known = {name.lower(): name for name in columns}

    def name(self, text: str) -> str:
        plain = (expression.plain_column(text) or "").lower()
        if plain in self._known:
            return self._known[plain]
        for name, known in self.wanted.items():
            if known == text:
                return name
        name = f"_a{len(self.wanted)}"
        self.wanted[name] = text
        return name

    def order(self, order: tuple[Ordering, ...]) -> tuple[specs.Order, ...]:
        return tuple(specs.Order(self.name(each.expression), each.descending) for each in order)


def _measures(node: Aggregate, names: _Names) -> tuple[specs.Measure, ...]:
    return tuple(
        specs.Measure(each.name, each.function, tuple(map(names.name, each.arguments)), each.fraction)
        for each in node.aggregates
    )


def _keyed(node: Aggregate) -> tuple[tuple[str, ...], dict[str, str], _Names]:
    keys = tuple(key.name for key in node.keys)
    return keys, {key.name: key.expression for key in node.keys}, _Names()


def _reduce(node: Aggregate, emit: Emit, insert_only: bool) -> Laid:
    keys, wanted, names = _keyed(node)
    size = every = None
    window = node.window
    if isinstance(window, Tumbling | Hopping):
        size = micros(window.size)
        every = micros(window.every) if isinstance(window, Hopping) else None
        wanted[WINDOW_COLUMNS[0]] = expression.quote(window.column)  # the kernel makes it the start of the window
    measures = _measures(node, names)
    late = micros(lateness(node)) if size else 0
    horizon = None if size else _horizon(node.settled(), keys)
    emit = emit if size else "changes"
    spec = specs.Reduce(keys, measures, size, emit, late, insert_only, every=every, horizon=horizon)
    return Laid(spec, {**wanted, **names.wanted}, keys, bool(size or horizon))


def _windows(node: Windowed) -> Laid:
    below = output_columns(node.input)
    size, every = micros(node.window.size), micros(getattr(node.window, "every", node.window.size))
    spec = specs.Pass(below, time=node.window.column, size=size, every=every)
    return Laid(spec, {name: expression.quote(name) for name in below}, (), True)


def hold(node: Windowed) -> Laid:
    """Say how rows of windows wait for the end of theirs."""
    columns = output_columns(node)
    wanted = {name: expression.quote(name) for name in columns}
    keys = (node.window.column,)
    return Laid(specs.Hold(keys, columns, WINDOW_COLUMNS[1]), wanted, keys, True)


def bounds(window: Tumbling, time: str) -> tuple[WindowBound, ...]:
    """The columns of windows side by side, over the text of a time. The texts are in layouts, so they stay as they are."""
    size, at = micros(window.size), f"unix_micros({time})"
    start = f"{at} - pmod({at}, {size})"
    texts = f"timestamp_micros({start})", f"timestamp_micros({start} + {size})"
    return tuple(WindowBound(text, name, time, size) for text, name in zip(texts, WINDOW_COLUMNS, strict=True))


def _session(node: Aggregate, emit: Emit, insert_only: bool) -> Laid:
    assert isinstance(node.window, Session)  # noqa: S101
    keys, wanted, names = _keyed(node)
    time = names.name(expression.quote(node.window.column))
    late = micros(lateness(node))
    spec = specs.Session(keys, _measures(node, names), time, micros(node.window.gap), emit, late, insert_only)
    return Laid(spec, {**wanted, **names.wanted}, keys, True)


def _sliding(node: Aggregate, emit: Emit, insert_only: bool) -> Laid:
    assert isinstance(node.window, Sliding)  # noqa: S101
    keys, wanted, names = _keyed(node)
    size = micros(node.window.size)
    time = names.name(expression.quote(node.window.column))
    frame = Frame("range", size, 0)
    looks = tuple(
        Look(each.name, each.function, each.arguments, frame, fraction=each.fraction) for each in _measures(node, names)
    )
    horizon = specs.Horizon(time, micros(lateness(node)))
    order = (specs.Order(time),)
    spec = specs.Over(keys, keys, order, looks, horizon, emit, size, insert_only)
    return Laid(spec, {**wanted, **names.wanted}, keys, True)


def _over(node: Over, emit: Emit, insert_only: bool) -> Laid:
    columns = output_columns(node.input)
    names = _Names(columns)
    keys = tuple(map(names.name, node.partition))
    order = names.order(node.order)
    looks = tuple(replace(each, arguments=tuple(map(names.name, each.arguments))) for each in node.looks)
    horizon = _horizon(node.input.settled(), (order[0].column,)) if order else None
    final = emit == "final" and node.ends()
    until = None if final else _horizon(node.input.settled(), keys)
    emit = "final" if final else "changes"
    spec = specs.Over(keys, columns, order, looks, horizon, emit, insert_only=insert_only, until=until)
    return Laid(spec, names.wanted, keys, bool(horizon or until))


def _top(node: Top, emit: Emit, insert_only: bool) -> Laid:
    columns = output_columns(node.input)
    names = _Names(columns)
    keys = tuple(map(names.name, node.per))
    horizon = _horizon(node.input.settled(), keys)
    spec = specs.Top(keys, columns, names.order(node.order), node.count, horizon, insert_only, ties=node.ties)
    if emit == "final" and node.windows_below():
        spec = replace(spec, emit=emit, lateness=micros(lateness(node)))
    return Laid(spec, names.wanted, keys, horizon is not None)


def _deduplicate(node: Deduplicate, emit: Emit, insert_only: bool) -> Laid:
    columns = output_columns(node.input)
    names = _Names(columns)
    keys = tuple(map(names.name, node.id))
    time = node.input.event_time()
    assert time is not None  # noqa: S101
    horizon = specs.Horizon(names.name(expression.quote(time)), micros(lateness(node)))
    within = micros(node.within) if node.within is not None else None
    spec = specs.Deduplicate(keys, columns, horizon, within, emit, insert_only)
    return Laid(spec, names.wanted, keys, True)


def _groups(node: MapGroups) -> Laid:
    below = output_columns(node.input)
    keys = tuple(key.name for key in node.key)
    wanted = {name: expression.quote(name) for name in below} | {key.name: key.expression for key in node.key}
    horizon = _horizon(node.settled(), keys)
    spec = specs.Groups(keys, below, node.columns, node.function, horizon)
    return Laid(spec, wanted, keys, horizon is not None)


def _horizon(settled: Mapping[str, timedelta], names: tuple[str, ...]) -> specs.Horizon | None:
    """The first of these columns that tells when its rows can change no more."""
    known = {name.lower(): micros(span) for name, span in settled.items()}
    return next((specs.Horizon(name, known[name.lower()]) for name in names if name.lower() in known), None)
