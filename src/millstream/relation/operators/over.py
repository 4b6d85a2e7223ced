"""`over`: each row, and what its neighbours make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.approximate import EXACT, refused
from millstream.relation.clauses import NOWHERE, Emit, Frame, Look, Ordering, Place, Ranking
from millstream.relation.kinds import Kind, of_made, without_fields
from millstream.relation.operators.checks import partition_of
from millstream.relation.operators.contract import NodeContract, lateness, lower, settled_by_keys
from millstream.relation.wording import describe_look, describe_order

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Over(NodeContract):
    """Each row of ``input``, and what its neighbours of equal ``partition``, in this order, make of it."""

    tag: ClassVar[str] = "Over"
    input: Node
    partition: tuple[str, ...]
    order: tuple[Ordering, ...]
    looks: tuple[Look, ...]
    place: Place = field(default=NOWHERE, compare=False)

    def input_nodes(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, input=inputs[0])

    def output_columns(self) -> tuple[str, ...]:
        return (*self.input.output_columns(), *(each.name for each in self.looks))

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [*self.compared(0), *(text for each in self.looks for text in each.arguments)]

    def compared(self, side: int) -> Sequence[str]:
        return [*self.partition, *(each.expression for each in self.order)]

    def kinds(self) -> dict[str, Kind]:
        below = self.input.kinds()
        return without_fields(below | of_made(self.looks, below))

    def lines(self) -> list[str]:
        by = f"partition {', '.join(self.partition) or 'all'}" + (
            f" order {describe_order(self.order)}" if self.order else ""
        )
        made = ", ".join(f"{each.name} = {describe_look(each)}" for each in self.looks)
        return [*self.input.lines(), f"over {by}: {made}"]

    def is_stream(self) -> bool:
        return self.input.is_stream()

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return emit == "final" and self.ends() and not lateness(self)

    def event_time(self) -> str | None:
        """The column of its event time, of rows that become final."""
        return self.input.event_time() if self.ends() else None

    def settled(self) -> dict[str, timedelta]:
        return self.input.settled() if self._in_time() else settled_by_keys(self.input, self.partition)

    def natural_key(self) -> tuple[str, ...]:
        return self.input.natural_key()

    def never_null(self) -> frozenset[str]:
        return self.input.never_null()

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        frames = [each.frame for each in self.looks]
        near = all(each and each.kind == "range" and None not in (each.before, each.after) for each in frames)
        by_time = bool(self.order) and expression.lower_column(self.order[0].expression) in lower(self.input.settled())
        return (by_time and near) or bool(settled_by_keys(self.input, self.partition))

    def ends(self) -> bool:
        """Whether a row is what it is as soon as the mark has passed its event time."""
        time = self.input.event_time() or ""
        return bool(self.order) and expression.is_column(self.order[0].expression, time) and self._in_time()

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        plain = {expression.lower_column(text) for text in self.partition}
        return (part,) if lower(used) <= plain else ()

    def _in_time(self) -> bool:
        """Whether a row depends only on rows that are not after it, in time."""
        first = self.order[0] if self.order else None
        return (
            first is not None
            and not first.descending
            and expression.lower_column(first.expression) in lower(self.input.settled())
            and all(each.function != "lead" and (each.frame is None or each.frame.after == 0) for each in self.looks)
        )


_WHOLE = Frame("rows", None, None)
_SO_FAR = Frame("range", None, 0)


def over(
    node: Node, partition: Any, order: str | None, frame: Frame | None, looks: dict[str, str], place: Place
) -> Over:
    """Each row, and what its neighbours make of it."""
    if not looks:
        raise PlanError("over: expected at least one column to add; found none", hint='.add(n="row_number()")')
    keys = partition_of(node, partition, "over: partition")
    ordering = expression.parse_order(order, node.visible(), "over: order") if order is not None else ()
    if frame is not None and not ordering:
        raise PlanError("over: a frame needs an order", hint='over(…, order="at")')
    if frame is not None and frame.kind == "range" and (frame.before or frame.after) and len(ordering) != 1:
        raise PlanError("over: a frame of distances needs an order by one column", hint="frame.rows(…) counts rows")
    made = tuple(_look(name, text, node, ordering, frame) for name, text in looks.items())
    return Over(node, keys, ordering, made, place)


def _look(name: str, text: str, node: Node, order: tuple[Ordering, ...], frame: Frame | None) -> Look:
    """Read one look at a row's neighbours: a rank, ``lag(e, n)`` or ``lead(e, n)``, or an aggregate over the frame."""
    what = f"over {name}"
    call = expression.call_of(text, what)
    if call is None or call[0] not in get_args(Ranking):
        made = expression.parse_aggregate(name, text, node.visible())
        if made.function in EXACT:
            raise refused(made, "a frame")
        chosen = frame or (_SO_FAR if order else _WHOLE)
        return Look(name, made.function, made.arguments, chosen, fraction=made.fraction, written=made.written)
    function, arguments = call
    if not order:
        raise PlanError(f"{what} `{text}`: {function} needs an order", hint='over(…, order="at")')
    if function not in ("lag", "lead"):
        if arguments:
            raise PlanError(f"{what} `{text}`: {function} takes no argument; found {len(arguments)}")
        return Look(name, function)  # type: ignore[arg-type]
    if len(arguments) not in (1, 2) or not (arguments[1:] or ("1",))[0].isdigit():
        raise PlanError(
            f"{what} `{text}`: expected {function}(expression) or {function}(expression, how many rows away)",
            hint=f"for a default: coalesce({name}, …) in a select() after",
        )
    expression.check(arguments[0], node.visible(), what)
    return Look(name, function, arguments[:1], offset=int((arguments[1:] or ("1",))[0]))  # type: ignore[arg-type]
