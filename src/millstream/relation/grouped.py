"""Rows gathered, by keys or among their neighbours: nothing until it is said what to make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.approximate import check_approximate
from millstream.relation.foreign_names import group_error
from millstream.relation.nodes import WINDOW_COLUMNS, Aggregate, Frame, Named, Node, Window, output_columns
from millstream.relation.operators import over
from millstream.relation.operators.checks import check_names
from millstream.relation.properties import visible
from millstream.relation.source_location import here, placed

if TYPE_CHECKING:
    from millstream.relation.relation import Relation


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows gathered by keys; nothing until it is aggregated."""

    node: Node = field(repr=False)
    keys: tuple[Named, ...]
    window: Window | None

    def agg(self, *unnamed: str, **aggregates: str) -> Relation:
        """Give one row for each group: its keys, the window's start and end, and these, as ``n="count(*)"``."""
        from millstream.relation.relation import Relation

        place = here()
        with placed(place):
            if unnamed:
                raise PlanError(f"agg: {unnamed[0]!r} has no name", hint='names stand before: agg(n="count(*)")')
            if not aggregates:
                raise PlanError(
                    "agg: expected at least one aggregate; found none", hint='agg(n="count(*)") counts rows'
                )
            made = tuple(
                expression.parse_aggregate(name, text, visible(self.node)) for name, text in aggregates.items()
            )
            for each in made:
                if each.name.lower() in WINDOW_COLUMNS:
                    raise PlanError(f"agg: {each.name} is reserved for windows; expected another name")
            check_names([*(key.name for key in self.keys), *(each.name for each in made)], "agg")
            check_approximate(made, self.node, self.window)
        return Relation(Aggregate(self.node, self.keys, self.window, made, place))

    def distinct(self) -> Relation:
        """Give one row for each group: its keys, and the window's start and end; nothing else."""
        from millstream.relation.relation import Relation

        return Relation(Aggregate(self.node, self.keys, self.window, (), here()))

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is called otherwise here."""
            raise group_error(name)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Rows among others; nothing until columns are added."""

    node: Node = field(repr=False)
    partition: str | Sequence[str] | None
    order: str | None
    frame: Frame | None

    def add(self, **looks: str) -> Relation:
        """Add columns to each row: ``row_number()``, ``rank()``, ``dense_rank()``, ``lag(e, n)``, ``lead(e, n)``, aggregates."""
        from millstream.relation.relation import Relation

        place = here()
        with placed(place):
            made = over.over(self.node, self.partition, self.order, self.frame, looks, place)
            check_names(list(output_columns(made)), "over")
        return Relation(made)
