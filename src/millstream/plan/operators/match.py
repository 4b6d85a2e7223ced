"""`match`: rows in a pattern, within the rows of a key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, Order, micros
from millstream.plan.operators.contract import Laid, Names, SpecContract
from millstream.relation import expression, nodes
from millstream.relation.clauses import Emit
from millstream.relation.pattern import Aggregated, Formula, Navigation, Search, Slot


@dataclass(frozen=True, slots=True)
class Match(SpecContract):
    """The matches of one or several patterns among the rows of a key, in this order; ties are broken by the whole row.

    Rows of the output are the ``keys``, then, where there are several searches or ``named``, the search's name as ``pattern``, then, if any search shows all
    rows, the ``columns``; then the measures, which are of equal names and types in all searches. With a ``horizon``, whose time is the first column of the
    order, ascending, what no change can reach any more is forgotten. With ``emit="final"`` a match appears as soon as
    no row at or after the mark can change it; ``horizon.span`` is how much later rows still come.
    """

    tag: ClassVar[str] = "Match"
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: tuple[Order, ...]
    searches: tuple[Search, ...]
    horizon: Horizon | None = None
    emit: Emit = "changes"
    insert_only: bool = True
    retract: bool = True
    named: bool = False


def lay(node: nodes.Match, emit: Emit, insert_only: bool) -> Laid:
    """Say how rows are searched for patterns."""
    keys, columns = {each.name: each.expression for each in node.partition}, node.kept()
    names = Names(columns)
    names.wanted = {**keys, **names.wanted}
    order = names.order(node.order)
    searches = tuple(_over_columns(each, names) for each in node.searches)
    final = emit == "final" and node.ends()
    time = expression.lower_column(node.order[0].expression)
    spans = [span for name, span in node.input.settled().items() if name.lower() == time and not order[0].descending]
    horizon = Horizon(order[0].column, micros(spans[0])) if spans else None
    spec = Match(
        tuple(keys), columns, order, searches, horizon, "final" if final else "changes", insert_only, named=node.named
    )
    return Laid(spec, names.wanted, tuple(keys), horizon is not None)


def _over_columns(search: Search, names: Names) -> Search:
    """A search whose slots name columns."""

    def slot(each: Slot) -> Slot:
        if isinstance(each, Navigation):
            return replace(each, argument=names.name(each.argument))
        return replace(each, arguments=tuple(map(names.name, each.arguments))) if isinstance(each, Aggregated) else each

    def formula(each: Formula) -> Formula:
        return replace(each, slots=tuple((name, slot(one)) for name, one in each.slots))

    return replace(
        search, conditions=tuple(map(formula, search.conditions)), measures=tuple(map(formula, search.measures))
    )
