"""`match`: rows in a pattern, within the rows of a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.clauses import Horizon, Order
from millstream.plan.operators.contract import SpecContract
from millstream.relation.clauses import Emit
from millstream.relation.pattern import Search


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
