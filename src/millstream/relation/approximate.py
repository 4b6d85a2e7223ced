"""Approximate aggregates: which there are, and where they may stand.

They keep a sketch instead of values, and a value cannot be taken out of a sketch. So they are for relations whose rows only
come, and refused everywhere else when they are defined.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from millstream.errors import MachineError, PlanError
from millstream.relation.clauses import Aggregation, Sliding, Window

if TYPE_CHECKING:
    from millstream.relation.nodes import Node

EXACT = {"approx_percentile": "percentile(e, p)", "approx_count_distinct": "count(DISTINCT e)"}
"""The approximate aggregates, and what gives the exact answer."""


def check_approximate(aggregates: Iterable[Aggregation], node: Node, window: Window | None) -> None:
    """Refuse an approximate aggregate over rows that may be taken back, or where all rows are kept anyway."""
    for each in aggregates:
        if each.function not in EXACT:
            continue
        exact = EXACT[each.function]
        if isinstance(window, Sliding):
            raise refused(each, "a sliding window")
        if not node.is_insert_only():
            raise PlanError(
                f"aggregate {each.name}: {each.function} is for rows that only come; those here can be taken back",
                hint=f"{exact} is exact, and right under changes",
            )
        if find_spec("datasketches") is None:
            raise MachineError(
                f"aggregate {each.name}: {each.function} needs the library datasketches, which is not installed",
                hint=f"`pip install 'millstream[sketches]'`; or {exact}, which is exact and keeps the values",
            )


def refused(each: Aggregation, where: str) -> PlanError:
    """The error for a place whose rows are all kept, so that a sketch would save nothing."""
    return PlanError(
        f"aggregate {each.name}: {each.function} saves nothing over {where}, which keeps its rows",
        hint=f"{EXACT[each.function]} is exact",
    )
