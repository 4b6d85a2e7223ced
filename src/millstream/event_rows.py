"""Rows of several streams laid together for a pattern: the columns that it needs, its order, and which variables each row may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from millstream.errors import PlanError
from millstream.relation.nodes import Node, Where
from millstream.relation.properties import event_time, visible
from millstream.relation.relation import Relation
from millstream.relation.syntax import quote, words_of
from millstream.typecheck.inference import types_of
from millstream.typecheck.rules import say


@dataclass(frozen=True, slots=True)
class EventRows:
    """The rows, in the order of ``time``; of a variable that is not every row ``flags`` has the column that says which."""

    relation: Relation
    time: str
    flags: Mapping[str, str]
    times: Mapping[str, str]
    """What the event time of each variable is called in its own stream."""

    def renamed(self, text: str) -> str:
        """A text with the event time of each variable under the name that it has here."""
        if not isinstance(text, str):
            raise PlanError(f"pattern: expected an expression as text; found {text!r}")
        tokens, made, done = words_of(text, "pattern"), [], 0
        for variable, dot, column in zip(tokens, tokens[1:], tokens[2:], strict=False):
            own = self.times.get(variable.text)
            if dot.text == "." and own is not None and column.text.lower() == own.lower():
                made += [text[done : column.start], quote(self.time)]
                done = column.end + 1
        return "".join((*made, text[done:]))


@dataclass(frozen=True, slots=True)
class _Branch:
    """One stream, without the conditions that variables over it have, and those conditions."""

    node: Node
    conditions: Mapping[str, str]
    """By variable; nothing for one that is every row."""

    @property
    def first(self) -> str:
        """The variable by which errors call it."""
        return next(iter(self.conditions))


def event_rows(streams: Mapping[str, Relation], on: Sequence[str], texts: Sequence[str]) -> EventRows:
    """Lay the streams of a pattern together, with those of their columns that the texts name."""
    times = {name: _time_of(name, each) for name, each in streams.items()}
    time = next(iter(times.values()))
    branches = _branches(streams)
    words = {token.text.lower() for text in texts if isinstance(text, str) for token in words_of(text, "pattern")}
    found: dict[str, tuple[str, pl.DataType | None, str]] = {}
    for each in branches:
        types = {name.lower(): kind for name, kind in types_of(each.node).items()}
        own = times[each.first].lower()
        for column in each.node.output_columns():
            lower, is_time = column.lower(), column.lower() == own
            if is_time or (lower not in words and lower not in {name.lower() for name in on}):
                continue
            known = found.setdefault(lower, (column, types.get(lower), each.first))
            _refuse_two(column, known, types.get(lower), each.first, time)
    _check_on(on, streams)
    flags = _flags(branches, {*found, time.lower()})
    made = [
        _branch(
            each,
            times[each.first],
            time,
            [name for name, *_ in found.values()],
            {name: kind for name, kind, _ in found.values()},
            flags,
        )
        for each in branches
    ]
    whole = made[0].union(*made[1:]) if len(made) > 1 else made[0]
    return EventRows(whole, time, flags, times)


def _time_of(name: str, relation: Relation) -> str:
    time = event_time(relation.node)
    if time is None:
        raise PlanError(
            f"pattern: {name} has no event time; a sequence is one in time",
            hint='stream("name", …, time="at"), and keep its column',
        )
    return time


def _branches(streams: Mapping[str, Relation]) -> list[_Branch]:
    """Each stream once, with the conditions of the variables over it."""
    made: dict[Node, dict[str, str]] = {}
    for name, relation in streams.items():
        node, conditions = relation.node, list[str]()
        while isinstance(node, Where):
            conditions.insert(0, f"({node.condition})")
            node = node.input
        made.setdefault(node, {})[name] = " AND ".join(conditions)
    return [_Branch(node, conditions) for node, conditions in made.items()]


def _refuse_two(
    column: str, known: tuple[str, pl.DataType | None, str], kind: pl.DataType | None, name: str, time: str
) -> None:
    if column.lower() == time.lower():
        raise PlanError(
            f"pattern: {column} is the event time of another stream, and a column of {name}",
            hint=f'select(…, "{column} AS another_name")',
        )
    if known[1] is not None and kind is not None and kind != known[1]:
        raise PlanError(
            f"pattern: {column} is {say(known[1])} of {known[2]} and {say(kind)} of {name}; expected one type",
            hint=f'select(…, "{column} AS another_name")',
        )


def _check_on(on: Sequence[str], streams: Mapping[str, Relation]) -> None:
    for column in on:
        for name, relation in streams.items():
            if column.lower() not in {each.lower() for each in relation.columns}:
                raise PlanError(
                    f"pattern: on {column}: {name} has no such column; there are {', '.join(relation.columns)}",
                    hint=f'select(…, "its_name AS {column}")',
                )


def _flags(branches: Sequence[_Branch], taken: set[str]) -> dict[str, str]:
    """The column of each variable that says which rows may be its; none where all are."""
    made: dict[str, str] = {}
    for each in branches:
        for name, condition in each.conditions.items():
            if len(branches) == 1 and not condition:
                continue
            flag = f"is_{name}"
            while flag.lower() in taken:
                flag += "_event"
            made[name] = flag
            taken.add(flag.lower())
    return made


def _branch(
    branch: _Branch,
    own: str,
    time: str,
    columns: Sequence[str],
    types: Mapping[str, pl.DataType | None],
    flags: Mapping[str, str],
) -> Relation:
    """The rows of one stream that may be an event of the pattern, with all columns."""
    relation, conditions = Relation(branch.node), branch.conditions
    if all(conditions.values()):
        relation = relation.where(" OR ".join(dict.fromkeys(f"({each})" for each in conditions.values())))
    there = {name.lower() for name in visible(branch.node)}
    texts = [f"{quote(own)} AS {quote(time)}"]
    for name in columns:
        kind = types[name]
        if name.lower() in there:
            texts.append(f"{quote(name)} AS {quote(name)}")
        elif kind is None:
            raise PlanError(
                f"pattern: the type of {name} is not known before Spark runs, and another stream has no such column",
                hint=f'say it: select(…, "cast({name} AS string) AS {name}")',
            )
        else:
            texts.append(f"CAST(NULL AS {say(kind)}) AS {quote(name)}")
    alone = len(conditions) == 1
    for variable, flag in flags.items():
        condition = conditions.get(variable)
        text = "false" if condition is None else "true" if alone or not condition else f"({condition})"
        texts.append(f"{text} AS {quote(flag)}")
    return relation.select(*texts)
