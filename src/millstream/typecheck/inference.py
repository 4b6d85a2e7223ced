"""The types of a relation's columns, as far as they are known without Spark, and what is refused by them when a view is defined.

A type that is not known here is no mistake: Spark knows it, and what is wrong with it is found before the first record is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import polars as pl

from millstream.decode.decoder import META
from millstream.decode.timestamps import STAMP
from millstream.errors import PlanError
from millstream.kernel.operators.map_groups import type_of
from millstream.kernel.schemas import input_frames
from millstream.plan.build import Chain, Feed
from millstream.relation import expression
from millstream.relation.clauses import HEADERS
from millstream.relation.functions import Function, calling
from millstream.relation.nodes import (
    WINDOW_COLUMNS,
    Aggregate,
    Aggregation,
    Column,
    Deduplicate,
    Explode,
    History,
    Join,
    Look,
    MapBatches,
    MapGroups,
    Match,
    Named,
    Node,
    Over,
    Percolate,
    Place,
    Select,
    Source,
    Top,
    Union,
    Unpivot,
    Where,
    Windowed,
    inputs_of,
    output_columns,
)
from millstream.relation.operators.history import COLUMNS as HISTORY_COLUMNS
from millstream.relation.operators.match import PATTERN
from millstream.relation.pattern import Formula, Navigation
from millstream.relation.properties import has_aggregate
from millstream.relation.schema import fields_of, inner_of
from millstream.relation.sealed import sealed_columns
from millstream.relation.source_location import placed
from millstream.scalar.compile import compile_scalar
from millstream.typecheck.patterns import aggregations, check_order, known_of, measured, plain_slots
from millstream.typecheck.rules import ANY_MAP, MAKES_MAP, VARIANT, incomparable, map_of, refusal, say, widest

Types: TypeAlias = Mapping[str, pl.DataType]
Said: TypeAlias = Mapping[tuple[Node, str], pl.DataType]

_WHOLE = ("count", "count_distinct", "approx_count_distinct")
_UNNAMED = re.compile(r"agg_\d+")
_RANKS = ("row_number", "rank", "dense_rank")
_COMPARED = {
    **dict.fromkeys(("min", "max", "collect_set", "count_distinct", "approx_count_distinct"), 0),
    **dict.fromkeys(("min_by", "max_by"), 1),
}
"""Aggregates that compare values, and which argument."""


def check_types(nodes: Iterable[Node], chain: Chain, feeds: Mapping[int, pl.Schema] | None = None) -> None:
    """Refuse aggregates, unions and expressions between kernels that their types do not allow, each at its place.

    ``feeds`` are the types of the feeds' expressions, where Spark has said them.
    """
    reader, nodes = _Reader(_said(chain, feeds or {}), chain.functions), tuple(nodes)
    for node in nodes:
        sealed_columns(node)  # refuses what is computed with one
        reader.types(node)
    known = feeds or {
        feed.number: types for feed in chain.feeds if (types := _feed_types(feed, chain.functions)) is not None
    }
    if len(known) < len(chain.feeds):
        return
    try:
        input_frames(chain, known)
    except PlanError as error:
        raise _at_its_place(error, nodes, reader) from error


def types_of(node: Node, functions: tuple[Function, ...] = ()) -> Types:
    """The columns of a relation whose type is known without Spark."""
    return _Reader({}, functions).types(node)


def _said(chain: Chain, feeds: Mapping[int, pl.Schema]) -> Said:
    """What Spark has said of expressions over a source."""
    return {
        (feed.source, each.expression): feeds[feed.number][each.name]
        for feed in chain.feeds
        if feed.number in feeds
        for each in feed.expressions
    }


def _at_its_place(error: PlanError, nodes: Iterable[Node], reader: _Reader) -> PlanError:
    """The error with the place, and the text, of the expression that cannot be computed where it lies."""
    for text, below, place in (each for node in nodes for each in _between(node)):
        known = _lower(reader.types(below))
        if reader.type_of(text, below) is None and {path[0] for path in expression.paths(text)} <= set(known):
            shown = expression.substitute(text, _unnamed(below))
            return PlanError(f"{place}: `{shown}` {error.message.rpartition('` ')[2]}", hint=error.hint)
    return error


def _between(node: Node) -> Iterator[tuple[str, Node, Place]]:
    """The expressions over what kernels made, the lowest first, and the relation that they are over."""
    for side, each in enumerate(inputs_of(node)):
        yield from _between(each)
        if has_aggregate(each) and not isinstance(node, Union | Source):
            yield from ((text, each, node.place) for text in node.expressions(side))


def _unnamed(node: Node) -> dict[str, str]:
    """Aggregates that a query has not named, as they were written."""
    while isinstance(node, Where):
        node = node.input
    made = node.aggregates if isinstance(node, Aggregate) else ()
    return {each.name: each.written for each in made if _UNNAMED.fullmatch(each.name) and each.written}


class _Reader:
    """Reads the types of nodes, each once."""

    def __init__(self, said: Said, functions: tuple[Function, ...]) -> None:
        self._said, self._known, self._functions = said, dict[int, Types](), functions

    def type_of(self, sql: str, node: Node) -> pl.DataType | None:
        """The type of an expression over a relation, if it is known."""
        called = _call(sql)
        return ANY_MAP if called in MAKES_MAP else self._plain(sql, node) or self._of_source(sql, node)

    def _plain(self, sql: str, node: Node) -> pl.DataType | None:
        """The type of an expression; that of a call is what its function declares, also where only Spark can compute it."""
        found = _type(sql, self.types(node), self._functions)
        if found is None and not has_aggregate(node) and (made := calling(self._functions, sql)):
            return next((type_of(each.returns) for each in made if each.name.lower() == _call(sql)), None)
        return found

    def _of_source(self, sql: str, node: Node) -> pl.DataType | None:
        """What Spark has said of it, where only filters and selects are between it and its source."""
        while self._said and isinstance(node, Where | Select):
            if isinstance(node, Select):
                sql = expression.substitute(sql, {each.name: each.expression for each in node.columns})
            node = node.input
        return self._said.get((node, sql)) if isinstance(node, Source) else None

    def _named(self, columns: Sequence[Named], node: Node) -> dict[str, pl.DataType]:
        found = {each.name: self.type_of(each.expression, node) for each in columns}
        return {name: kind for name, kind in found.items() if kind is not None}

    def types(self, node: Node) -> Types:
        """The columns whose type is known."""
        if id(node) not in self._known:
            for side, below in enumerate(inputs_of(node)):
                for text in node.compared(side):
                    self._compared(text, text, below, node.place)
            self._known[id(node)] = self._read(node)
        return self._known[id(node)]

    def _compared(self, text: str, written: str, node: Node, place: Place) -> None:
        """Refuse an expression over a relation whose values would have to be compared, and cannot be."""
        kind = self.type_of(text, node) or self.type_of(_unfiltered(text), node)
        if kind is not None and (why := incomparable(kind)):
            raise PlanError(f"{place}: `{written}`: {why[0]}", hint=why[1])

    def _read(self, node: Node) -> Types:
        match node:
            case Source():
                return _declared(node.columns) | META | {HEADERS: map_of(pl.String(), pl.String())}
            case Select():
                return self._named(node.columns, node.input)
            case Aggregate():
                windows = dict.fromkeys(WINDOW_COLUMNS if node.window else (), STAMP)
                return self._named(node.keys, node.input) | windows | self._made(node.aggregates, node)
            case Over():
                return {**self.types(node.input), **self._made(node.looks, node)}
            case Windowed():
                return {**self.types(node.input), **dict.fromkeys(WINDOW_COLUMNS, STAMP)}
            case MapBatches():
                return _declared(node.columns)
            case MapGroups():
                return self._named(node.key, node.input) | _declared(node.columns)
            case Explode():
                below, array = self.types(node.input), self.type_of(node.array, node.input)
                if array is None:
                    return {name: kind for name, kind in below.items() if name.lower() != node.name.lower()}
                if not isinstance(array, pl.List):
                    hint = "map_entries(…) makes an array of a map, split(…, ',') one of text"
                    raise PlanError(f"{node.place}: explode: expected an array; found {say(array)}", hint=hint)
                return {**below, node.name: array.inner}  # type: ignore[dict-item]
            case Unpivot():
                value = self._one_of(node)
                return self._named(node.ids, node.input) | {node.variable: pl.String()} | value
            case Union():
                return self._union(node)
            case Join():
                left, right = self.types(node.left), self.types(node.right)
                if node.how in ("semi", "anti"):
                    return left
                differ = [name for name in node.merged if left.get(name) != _lower(right).get(name.lower())]
                return {name: kind for name, kind in {**right, **left}.items() if name not in differ}
            case Percolate():
                known = self.types(node.queries)
                return {**{name: known[name] for name in node.shown if name in known}, **self.types(node.stream)}
            case History():
                known = self.types(node.input)
                columns = {name: known[name] for name in output_columns(node.input) if name in known}
                return {**columns, **dict.fromkeys(HISTORY_COLUMNS, STAMP)}
            case Match():
                return self._matched(node)
            case Where() | Top() | Deduplicate():
                return self.types(node.input)

    def _matched(self, node: Match) -> Types:
        """The types of matches; a formula that cannot be computed over their rows is refused."""
        check_order(node, self.type_of(node.order[0].expression, node.input))
        below, text = self.types(node.input), {PATTERN: pl.String()} if node.named else {}
        kept = {name: below[name] for name in node.kept() if name in below}

        def slots(each: Formula) -> Types:
            sums = aggregations(each)
            of_rows = {
                name: self.type_of(slot.argument, node.input)
                for name, slot in each.slots
                if isinstance(slot, Navigation)
            }
            return {**known_of(of_rows), **self._made(sums, node), **plain_slots(each)}

        return self._named(node.partition, node.input) | text | kept | measured(node, slots)

    def _one_of(self, node: Unpivot) -> dict[str, pl.DataType]:
        """The type that all value columns have; those that differ are refused."""
        kinds = {each.name: self.type_of(each.expression, node.input) for each in node.values}
        known = {name: kind for name, kind in kinds.items() if kind not in (None, ANY_MAP)}
        first = next(iter(known.values()), None)
        if any(kind != first for kind in known.values()):
            wide = widest(list(known.values()))
            found = ", ".join(f"{name} {say(kind)}" for name, kind in known.items())
            raise PlanError(
                f"{node.place}: unpivot: expected value columns of one type; found {found}",
                hint=f"cast them to one: cast({node.values[0].name} AS {say(wide) if wide else '…'}) AS {node.values[0].name}",
            )
        return {node.value: first} if first is not None and None not in kinds.values() else {}

    def _union(self, node: Union) -> Types:
        """The types that all relations have; those that differ are refused."""
        names = output_columns(node)
        found = [[_lower(self.types(each)).get(name.lower()) for name in output_columns(each)] for each in node.inputs]
        made = {}
        for at, name in enumerate(names):
            kinds = [each[at] for each in found]
            one, other = kinds[0], next((each for each in kinds if each not in (None, kinds[0], ANY_MAP)), None)
            if one not in (None, ANY_MAP) and other is not None:
                wide = widest([each for each in kinds if each not in (None, ANY_MAP)])
                raise PlanError(
                    f"{node.place}: union: column {name} is {say(one)} in one relation and {say(other)} in another; expected one type",
                    hint=f"cast them to one: cast({name} AS {say(wide) if wide else '…'}) AS {name}",
                )
            if one is not None and None not in kinds:
                made[name] = one
        return made

    def _made(self, made: Sequence[Aggregation | Look], node: Aggregate | Over | Match) -> dict[str, pl.DataType]:
        """The types of aggregates; one that its arguments do not fit is refused."""
        found: dict[str, pl.DataType] = {}
        for each in made:
            kinds = [self.type_of(text, node.input) for text in each.arguments]
            if each.function in (*_WHOLE, *_RANKS):
                found[each.name] = pl.Int64() if each.function in _WHOLE else pl.Int32()
            if (at := _COMPARED.get(each.function)) is not None:
                self._compared(each.arguments[at], each.written, node.input, node.place)
            if (kind := kinds[0] if kinds else None) is None:
                continue
            with placed(node.place):
                if why := refusal(each.function, kind):
                    raise PlanError(f"`{each.written}`: {why[0]}", hint=why[1])
            match each.function:
                case "sum" if isinstance(kind, pl.Decimal):
                    found[each.name] = pl.Decimal(min(38, (kind.precision or 38) + 10), kind.scale)
                case "sum":
                    found[each.name] = pl.Float64() if kind.is_float() else pl.Int64()
                case "avg" | "percentile" | "approx_percentile":
                    found[each.name] = pl.Float64()
                case "collect_list" | "collect_set":
                    found[each.name] = pl.List(kind)
                case "min" | "max" | "min_by" | "max_by" | "lag" | "lead":
                    found[each.name] = kind
        return found


def _type(sql: str, columns: Types, functions: tuple[Function, ...]) -> pl.DataType | None:
    """The type of an expression, if it is known."""
    if (column := expression.plain_column(sql)) is not None:
        return _lower(columns).get(column.lower())
    made = compile_scalar(sql, {**columns, **dict(_fields(columns))}, utc=True, functions=functions)
    return made.dtype if made is not None else None


def _fields(columns: Types) -> Iterator[tuple[str, pl.DataType]]:
    """The fields of structs, however deep, under all names with dots between them."""
    for name, kind in columns.items():
        if isinstance(kind, pl.Struct):
            inner: Types = {f"{name}.{each.name}": each.dtype for each in kind.fields}  # type: ignore[misc]
            yield from inner.items()
            yield from _fields(inner)


def _call(sql: str) -> str:
    """The function of an expression that is one call; nothing for any other."""
    called = expression.call_of(sql, "expression") if sql.endswith(")") else None
    return called[0] if called else ""


def _unfiltered(sql: str) -> str:
    """What an aggregate with a FILTER takes where its condition is true; any other expression as it is."""
    filtered = sql.startswith("CASE WHEN ") and sql.lower().count("case") == 1
    return sql.rpartition(" THEN ")[2].removesuffix(" END") if filtered else sql


def _lower(types: Types) -> dict[str, pl.DataType]:
    return {name.lower(): kind for name, kind in types.items()}


def _declared(columns: Sequence[Column]) -> dict[str, pl.DataType]:
    found = {each.name: _of_ddl(each.type) for each in columns}
    return {name: kind for name, kind in found.items() if kind is not None}


def _of_ddl(declared: str) -> pl.DataType | None:
    if (plain := type_of(declared)) is not None:
        return plain
    if declared.lower() == "variant":
        return VARIANT
    fields, inner = fields_of(declared), [_of_ddl(each) for each in inner_of(declared)]
    kinds = {each.name: _of_ddl(each.type) for each in fields}
    if None in inner or None in kinds.values() or not (inner or kinds):
        return None
    if kinds:
        return pl.Struct(kinds)  # type: ignore[arg-type]
    return pl.List(inner[0]) if len(inner) == 1 else map_of(*inner)  # type: ignore[arg-type]


def _feed_types(feed: Feed, functions: tuple[Function, ...]) -> pl.Schema | None:
    """The types of a feed's expressions; None if only Spark knows one of them."""
    columns = _declared(feed.source.columns) | META
    found = {each.name: _type(each.expression, columns, functions) for each in feed.expressions}
    return None if None in found.values() else pl.Schema(found)  # type: ignore[arg-type]
