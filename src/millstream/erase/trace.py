"""Which columns of a view are a subject's: those of a source that identify somebody, passed on as they are, under whatever name."""

from __future__ import annotations

from millstream.relation import expression
from millstream.relation.nodes import Aggregate, Node, Select, Source, inputs_of


def subject_columns(node: Node) -> dict[str, str]:
    """The columns of a relation that identify somebody, with the kind of subject."""
    if isinstance(node, Source):
        return {column: kind for kind, column in node.personal.subjects} if node.personal else {}
    below = {name.lower(): kind for each in reversed(inputs_of(node)) for name, kind in subject_columns(each).items()}
    if isinstance(node, Select | Aggregate):
        named = node.columns if isinstance(node, Select) else node.keys
        plain = {each.name: expression.lower_column(each.expression) for each in named}
        return {name: below[column] for name, column in plain.items() if column in below}
    return {name: below[name.lower()] for name in node.output_columns() if name.lower() in below}
