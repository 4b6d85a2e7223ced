"""`map_batches`: rows that pass, as what a function makes of each. Nothing is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from millstream.plan.operators.contract import Laid, StatelessSpec, quoted
from millstream.plan.operators.wording import Say
from millstream.relation import nodes
from millstream.relation.clauses import Column


@dataclass(frozen=True, slots=True)
class Batches(StatelessSpec):
    """What a function makes of each row: ``made`` columns; ``time`` is the column of event time among these, if any."""

    tag: ClassVar[str] = "Batches"
    columns: tuple[str, ...]
    made: tuple[Column, ...]
    function: Callable[[Any], Any]
    time: str = ""
    place: str = field(default="", compare=False)
    """Where the user defined it."""
    retract: bool = True

    def title(self) -> str:
        return "map batches"

    def does(self, say: Say) -> str:
        name = getattr(self.function, "__name__", "a function")
        return f"each row as what a function makes of it: {', '.join(each.name for each in self.made)} = {name}(row)"


def lay(node: nodes.MapBatches) -> Laid:
    """Say how a function over batches maps rows."""
    below, time = node.input.output_columns(), node.event_time()
    spec = Batches(below, node.columns, node.function, time or "", str(node.place))
    return Laid(spec, quoted(below), below[:1], time is not None)
