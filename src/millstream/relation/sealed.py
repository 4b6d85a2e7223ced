"""Sealed columns: which ones a relation has, where their tokens were sealed, and what may be done with them.

Invariant: a sealed value is passed on, under any name, and nothing is computed with it: no condition, key, order or function sees it. A token is
another each time, so comparing two of them says nothing; what equal values have in common is their pseudonym, a column like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.nodes import (
    Aggregate,
    Aggregation,
    Join,
    Look,
    MapBatches,
    MapGroups,
    Match,
    Named,
    Node,
    Over,
    Percolate,
    Select,
    Source,
    Union,
    Unpivot,
)
from millstream.relation.pattern import Aggregated, Formula, Navigation

Origins: TypeAlias = Mapping[str, frozenset[tuple[str, str]]]
"""Sealed columns by their names in lower case: the topics and fields where their tokens were sealed."""

_PASS_ON = ("count", "min_by", "max_by", "lag", "lead")
"""Aggregates whose first argument is counted or passed on, and not looked at."""


def sealed_columns(node: Node) -> Origins:
    """The sealed columns of a relation; PlanError, at its place, where something is computed with one."""
    return _Reader().of(node)


def refuse_sealed(source: Source, what: str) -> None:
    """Refuse a source whose key, time or numbering would be read from a sealed column."""
    sealed = _of_source(source)
    texts = [("key", expression.quote(each)) for each in source.key]
    if source.time and source.time.said:
        texts.append(("time", source.time.said))
    if source.sequence:
        texts += [("sequence", source.sequence.producer), ("sequence", source.sequence.number)]
    for where, text in texts:
        _refuse([text], sealed, f"{what}: {where}: ")


def refuse_sealed_key(node: Node, key: Iterable[str], what: str) -> None:
    """Refuse a view whose rows would be told apart by a sealed column."""
    _refuse(map(expression.quote, key), sealed_columns(node), f"{what}: key: ")


class _Reader:
    """Reads nodes, each once."""

    def __init__(self) -> None:
        self._known: dict[int, Origins] = {}

    def of(self, node: Node) -> Origins:
        if id(node) not in self._known:
            below = [self.of(each) for each in node.input_nodes()]
            for side, columns in enumerate(below):
                if columns:
                    _refuse(_computed(node, side), columns, f"{node.place}: ")
                if columns and isinstance(node, MapBatches | MapGroups):
                    raise PlanError(
                        f"{node.place}: a function gets whole rows, and {min(columns)} is sealed",
                        hint="leave it out before, select(…), and join it again behind",
                    )
            self._known[id(node)] = _made(node, below)
        return self._known[id(node)]


def _refuse(texts: Iterable[str], sealed: Origins, where: str) -> None:
    for text in texts:
        for name in sorted({path[0] for path in expression.paths(text)} & sealed.keys()):
            (_, field), *_ = sorted(sealed[name])
            raise PlanError(
                f"{where}`{text.strip('`')}`: {name} is sealed, so nothing can be computed with it or compared by it",
                hint=f'use its pseudonym: pseudonyms = ["{field}"] where it is sealed gives each record {field}_pseudonym;'
                f" select, max_by and joins pass {name} on as it is",
            )


def _computed(node: Node, side: int) -> Iterator[str]:
    """The expressions of a node that do more with a value of one input than pass it on."""
    match node:
        case Select():
            yield from _not_plain(node.columns)
        case Unpivot():
            yield from _not_plain(node.ids)
            yield from (each.expression for each in node.values)
        case Aggregate():
            yield from (each.expression for each in node.keys)
            yield from _arguments(node.aggregates)
        case Over():
            yield from node.compared(side)
            yield from _arguments(node.looks)
        case Match():
            yield from node.compared(side)
            for search in node.searches:
                for each in search.conditions:
                    yield from _looked_at(each)
                for each in search.measures:
                    if _passed(each) is None:
                        yield from _looked_at(each)
        case Percolate() if side == 0:
            yield from (expression.quote(each.name) for each in node.columns)
        case _:
            yield from node.expressions(side)


def _not_plain(columns: Iterable[Named]) -> Iterator[str]:
    return (each.expression for each in columns if expression.plain_column(each.expression) is None)


def _arguments(made: Iterable[Aggregation | Look]) -> Iterator[str]:
    for each in made:
        passes = each.function in _PASS_ON and expression.plain_column(each.arguments[0]) if each.arguments else None
        yield from each.arguments[1:] if passes else each.arguments


def _looked_at(formula: Formula) -> Iterator[str]:
    for _, slot in formula.slots:
        if isinstance(slot, Navigation):
            yield slot.argument
        elif isinstance(slot, Aggregated):
            yield from slot.arguments


def _passed(measure: Formula) -> str | None:
    """The column whose value a measure passes on, if it does no more."""
    slot = measure.slots[0][1] if measure.expression == "_s0" else None
    return expression.plain_column(slot.argument) if isinstance(slot, Navigation) else None


def _made(node: Node, below: list[Origins]) -> Origins:
    """The sealed columns of a node over those of its inputs."""
    match node:
        case Source():
            return _of_source(node)
        case Select():
            return _named(node.columns, below[0])
        case Unpivot():
            return _named(node.ids, below[0])
        case Aggregate():
            return _taken(node.aggregates, below[0])
        case Over():
            return {**below[0], **_taken(node.looks, below[0])}
        case Match():
            kept = {name.lower(): below[0][name.lower()] for name in node.kept() if name.lower() in below[0]}
            passed = {
                each.name.lower(): below[0][name.lower()]
                for search in node.searches
                for each in search.measures
                if (name := _passed(each)) is not None and name.lower() in below[0]
            }
            return {**kept, **passed}
        case MapBatches() | MapGroups():
            return {}
        case Union():
            return _united(node, below)
        case Join() if node.how in ("semi", "anti"):
            return below[0]
        case Join() | Percolate():
            return {**below[1], **below[0]}
        case _:
            return below[0]


def _of_source(source: Source) -> Origins:
    return {each.name.lower(): frozenset({(source.topic, each.name)}) for each in source.columns if each.sealed}


def _named(columns: Iterable[Named], below: Origins) -> Origins:
    plain = {each.name.lower(): (expression.plain_column(each.expression) or "").lower() for each in columns}
    return {name: below[column] for name, column in plain.items() if column in below}


def _taken(made: Iterable[Aggregation | Look], below: Origins) -> Origins:
    """The columns of aggregates that are a value of some row."""
    plain = {
        each.name.lower(): (expression.plain_column(each.arguments[0]) or "").lower()
        for each in made
        if each.arguments and each.function in _PASS_ON and each.function != "count"
    }
    return {name: below[column] for name, column in plain.items() if column in below}


def _united(node: Union, below: list[Origins]) -> Origins:
    found: dict[str, frozenset[tuple[str, str]]] = {}
    for at, name in enumerate(node.output_columns()):
        columns = [each.output_columns()[at].lower() for each in node.inputs]
        sealed = [origins.get(column) for origins, column in zip(below, columns, strict=True)]
        if any(sealed) and not all(sealed):
            raise PlanError(
                f"{node.place}: union: column {name} is sealed in one relation and plain in another; expected the same in all",
                hint="seal it in all of their topics, or leave it out",
            )
        if all(sealed):
            found[name.lower()] = frozenset().union(*(each for each in sealed if each))
    return found
