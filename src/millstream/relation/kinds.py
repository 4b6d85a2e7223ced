"""What kind of values a column has, as far as it matters for what cannot fail; a column whose kind is not known has none here.

Kinds go by names in lower case. So do those of fields of structs, under their names with dots between them, but only where no
kernel is below: between kernels fields cannot be computed. A name that has a dot itself is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from sqlglot import TokenType

from millstream.relation import expression
from millstream.relation.clauses import Aggregation, Column, Look, Named
from millstream.relation.schema import fields_of, tokens_of

Kind: TypeAlias = Literal["integer", "double", "text", "boolean", "date", "timestamp"]
Kinds: TypeAlias = Mapping[str, Kind]

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"), "integer"),
    "double": "double", "string": "text", "boolean": "boolean", "date": "date", "timestamp": "timestamp",
}  # fmt: skip
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


def declared(columns: Sequence[Column], above: str = "") -> Iterator[tuple[str, Kind]]:
    """The kinds of declared columns, and of the fields of structs among them."""
    names = Counter(each.name.lower() for each in columns)
    for each in columns:
        name = each.name.lower()
        if "." in name or names[name] > 1 or each.sealed:
            continue
        if (kind := _KINDS.get(each.type.lower())) is not None:
            yield f"{above}{name}", kind
        yield from declared(fields_of(each.type), f"{above}{name}.")


def without_fields(kinds: Kinds) -> dict[str, Kind]:
    """The kinds of columns alone, as a kernel has them."""
    return {name: kind for name, kind in kinds.items() if "." not in name}


def of_named(columns: Sequence[Named], below: Kinds) -> dict[str, Kind]:
    """The kinds of expressions with names."""
    found = {each.name.lower(): kind_of(each.expression, below) for each in columns}
    return {name: kind for name, kind in found.items() if kind}


def kind_of(sql: str, below: Kinds) -> Kind | None:
    """The kind of an expression that is a column, or a field of one, and nothing else."""
    tokens = tokens_of(sql)
    names, dots = tokens[::2], tokens[1::2]
    if any(each.token_type != TokenType.DOT for each in dots) or any("." in each.text for each in names):
        return None
    if expression.plain_column(sql) is None and any(each.token_type not in _NAMES for each in names):
        return None
    return below.get(".".join(each.text for each in names).lower())


def of_made(made: Sequence[Aggregation | Look], below: Kinds) -> dict[str, Kind]:
    """The kinds of aggregates and of what rows get from their neighbours."""
    found: dict[str, Kind] = {}
    for each in made:
        value = kind_of(each.arguments[0], below) if each.arguments else None
        kind: Kind | None = None
        if each.function in ("count", "count_distinct", "row_number", "rank", "dense_rank"):
            kind = "integer"
        elif each.function in ("avg", "percentile"):
            kind = "double"
        elif each.function == "sum":
            kind = value if value in ("integer", "double") else None
        elif each.function in ("min", "max", "min_by", "max_by", "lag", "lead"):
            kind = value
        if kind:
            found[each.name.lower()] = kind
    return found
