"""A SELECT becomes a relation."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.errors import PlanError
from millstream.plan.nodes import Place
from millstream.plan.place import said_at
from millstream.plan.relation import Relation

Origin = Place
_START = Place("", 1, 1)
_SIMPLE = re.compile(r"SELECT\s+(.*?)\s+FROM\s+(\w+)(?:\s+WHERE\s+(.*?))?(?:\s+GROUP BY\s+(.*))?", re.I | re.S)


def compile_query(text: str, relations: Mapping[str, Relation], origin: Origin = _START) -> Relation:
    """Compile one SELECT."""
    found = _SIMPLE.fullmatch(text.strip())
    if not found:
        raise PlanError(f"{origin}: not a query")
    columns, name, where, group = found.groups()
    known = {each.lower(): relation for each, relation in relations.items()}
    if name.lower() not in known:
        raise PlanError(f"{origin}: there is no {name}; there are {', '.join(relations)}")
    relation = known[name.lower()]
    with said_at(origin):
        if where:
            relation = relation.where(where)
        if group:
            return relation.group_by(*group.split(",")).agg(n="count(*)")
        return relation.select(*(each.strip() for each in columns.split(",")))
