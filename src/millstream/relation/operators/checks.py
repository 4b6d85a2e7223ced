"""What the checks of several operators share: texts given one by one or as a list, columns with names, names that are taken."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import WINDOW_COLUMNS, Column, Named
from millstream.relation.foreign_names import is_spark_column
from millstream.relation.schema import parse_columns

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


def as_list(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One text or several, as several."""
    if given is None:
        return ()
    if isinstance(given, str) or is_spark_column(given):
        return (given,)  # type: ignore[return-value]  # a Column of PySpark is refused where the text is read
    return tuple(given)


def partition_of(node: Node, given: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """The expressions that rows must have in common."""
    texts = as_list(given)
    for text in texts:
        expression.check(text, node.visible(), what)
    return texts


def named_column(text: str, node: Node, what: str) -> Named:
    """One column of a select or a group, its plain columns in their declared spelling."""
    named = expression.parse_named(text)
    used = expression.check(named.expression, node.visible(), what)
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
    if named.name.lower() in WINDOW_COLUMNS and not expression.is_column(named.expression, named.name):
        raise PlanError(f"{what} `{text}`: {named.name} is reserved for windows; expected another name")
    return named


def new_column(name: object, what: str, example: str) -> None:
    """Refuse what is no name for a column that is made."""
    if not isinstance(name, str) or expression.plain_column(name) is None:
        raise PlanError(f"{what}: expected the name of a column; found {name!r}", hint=example)
    if name.lower() in WINDOW_COLUMNS:
        raise PlanError(f"{what}: {name} is reserved for windows; expected another name")


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse names that are Millstream's own, and one that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name.startswith("_"):
            raise PlanError(f"{what}: {name}: names beginning with _ are Millstream's own; expected another name")
        if "`" in name:
            raise PlanError(f"{what}: {name}: a backquote in a name; expected another name")
        if name.lower() in seen:
            raise PlanError(
                f"{what}: the column {name} is there twice; expected different names", hint="rename one with AS"
            )
        seen.add(name.lower())


_GIVEN = re.compile(
    r"(array<)*(boolean|tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|string|binary|date|timestamp"
    r"|timestamp_ntz|(decimal|dec|numeric)(\(\d+(,\d+)?\))?)>*"
)


def given_columns(what: str, schema: str) -> tuple[Column, ...]:
    """The columns that a function declares."""
    columns = parse_columns(schema)
    for column in columns:
        if not _GIVEN.fullmatch(column.type.replace(" ", "").lower()):
            raise PlanError(f"{what}: a function cannot give {column.name} {column.type}; only plain types and arrays")
    return columns
