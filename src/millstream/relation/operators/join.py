"""Joins: pairs of rows of two relations. The module :mod:`millstream.relation.join` reads their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from millstream.relation import expression
from millstream.relation.clauses import NOWHERE, Emit, Equality, How, Place
from millstream.relation.kinds import Kind, without_fields
from millstream.relation.operators.contract import NodeContract, lower, settled_by_time, written
from millstream.relation.schema import format_duration

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


@dataclass(frozen=True, slots=True)
class Join(NodeContract):
    """Pairs of rows of two relations, and with an outer join the rows that have no partner.

    ``within`` bounds right time − left time where both are streams. ``as_of`` is the stream's time column, where the right
    is a table as it was then; with ``latest`` it is the table as it is when a row of the stream is processed. A regular join
    has none of these: it is of all rows of both sides, tables or streams.
    """

    tag: ClassVar[str] = "Join"
    left: Node
    right: Node
    on: tuple[Equality, ...]
    how: How = "inner"
    within: tuple[timedelta, timedelta] | None = None
    as_of: str | None = None
    latest: bool = False
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def regular(self) -> bool:
        """Whether no time bounds it, so that all rows of both sides are kept."""
        return self.within is None and self.as_of is None and not self.latest

    @property
    def replayable(self) -> bool:
        """Whether a replay gives the same rows: what is latest depends on where batches ended."""
        return not self.latest

    @property
    def nullable(self) -> tuple[bool, bool]:
        """Whether the columns of the left, of the right, are null where a row has no partner."""
        return self.how in ("right", "full"), self.how in ("left", "full")

    @property
    def merged(self) -> tuple[str, ...]:
        """The columns that are one of both."""
        return tuple(each.name for each in self.on if each.name)

    def input_nodes(self) -> tuple[Node, ...]:
        return self.left, self.right

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return replace(self, left=inputs[0], right=inputs[1])

    def output_columns(self) -> tuple[str, ...]:
        left = self.left.output_columns()
        if self.how in ("semi", "anti"):
            return left
        merged = lower(self.merged)
        return (*left, *(name for name in self.right.output_columns() if name.lower() not in merged))

    def visible(self) -> tuple[str, ...]:
        return self.output_columns()

    def expressions(self, side: int | None = None) -> list[str]:
        return [text for each in self.on for at, text in enumerate((each.left, each.right)) if side in (None, at)]

    def compared(self, side: int) -> Sequence[str]:
        return self.expressions(side)

    def kinds(self) -> dict[str, Kind]:
        left, right = self.left.kinds(), self.right.kinds()
        if self.how in ("semi", "anti"):
            return without_fields(left)
        differ = [name.lower() for name in self.merged if left.get(name.lower()) != right.get(name.lower())]
        return without_fields({name: kind for name, kind in (right | left).items() if name not in differ})

    def lines(self) -> list[str]:
        right = [f"  {line}" for line in written(self.right).split("\n")]
        return [*self.left.lines(), "\n".join([f"{_described(self)} with", *right])]

    def is_stream(self) -> bool:
        both = self.regular and self.how not in ("semi", "anti")
        return self.left.is_stream() or (both and self.right.is_stream())

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        if self.within or self.regular:
            return self.how in ("inner", "semi") and all(each.is_insert_only(emit) for each in self.input_nodes())
        return self.latest and self.left.is_insert_only(emit)

    def event_time(self) -> str | None:
        """That of a join is its left's, of a right join its right's; a full join has none, and neither has a regular one, whose
        rows may appear at any time after those that they are made of.
        """
        if not self.is_stream() or self.how == "full" or self.regular:
            return None
        return (self.right if self.how == "right" else self.left).event_time()

    def settled(self) -> dict[str, timedelta]:
        return self._met() if self.regular else settled_by_time(self)

    def natural_key(self) -> tuple[str, ...]:
        left, right = self.left.natural_key(), self.right.natural_key()
        if self.is_stream() or not left or (not right and self.how not in ("semi", "anti")):
            return ()
        if self.how in ("semi", "anti"):
            return left
        if self.how == "full" and not self._apart(left, right):
            return ()
        merged = {name.lower(): name for name in self.merged}
        return tuple(dict.fromkeys((*left, *(merged.get(name.lower(), name) for name in right))))

    def never_null(self) -> frozenset[str]:
        left, right = (each.never_null() for each in self.input_nodes())
        both = frozenset(name for name in self.merged if {name.lower()} <= lower(left) & lower(right))
        left, right = (frozenset() if null else each for each, null in zip((left, right), self.nullable, strict=True))
        return left if self.how in ("semi", "anti") else left | right | both

    def has_kernel(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return self.within is not None or (self.regular and bool(self.meetings()))

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        """What a condition over its rows is over its sides. One about a key that both share holds for both."""
        merged, names = lower(self.merged), lower(used)
        texts = [{each.name: (each.left, each.right)[side] for each in self.on if each.name} for side in (0, 1)]
        if names <= merged:
            return [expression.substitute(part, text) for text in texts]
        for side, (below, null) in enumerate(zip(self.input_nodes(), self.nullable, strict=True)):
            if names <= lower(below.output_columns()) | merged and not null:
                found = expression.substitute(part, texts[side])
                return (None, found) if side else (found, None)
        return ()

    def meetings(self) -> dict[int, timedelta]:
        """Which equalities are of times that tell on both sides when a row can change no more, and how long after."""
        sides = [{name.lower(): span for name, span in each.settled().items()} for each in self.input_nodes()]
        made = {}
        for index, each in enumerate(self.on):
            names = [expression.lower_column(text) for text in (each.left, each.right)]
            if all(name in side for name, side in zip(names, sides, strict=True)):
                made[index] = max(side[name] for name, side in zip(names, sides, strict=True))
        return made

    def _met(self) -> dict[str, timedelta]:
        """The columns that tell when a row can change no more: times that meet, but for those that may be null."""
        names = {name.lower(): name for name in self.output_columns()}
        left_null, right_null = self.nullable
        right_null |= self.how in (
            "semi",
            "anti",
        )  # its columns are not there, and the left may have some of these names
        found: dict[str, timedelta] = {}
        for index, span in self.meetings().items():
            each = self.on[index]
            shown = [text for text, null in ((each.left, left_null), (each.right, right_null)) if not null or each.name]
            plain = [expression.lower_column(text) for text in shown]
            found |= {names[name]: span for name in plain if name in names}
        return found

    def _apart(self, left: tuple[str, ...], right: tuple[str, ...]) -> bool:
        """Whether the keys of both sides tell a row of the left without partner from one of the right: each has nulls for the other.

        A column of one side does, if it is never null there. So do columns that are one of both, if they are all that is compared:
        rows that are equal in them are partners, but for nulls, which match nothing.
        """
        merged = lower(self.merged)
        known = [lower(each.never_null()) for each in self.input_nodes()]
        keys = [lower(each) for each in (left, right)]
        if any((key & names) - merged for key, names in zip(keys, known, strict=True)):
            return True
        return all(each.name.lower() in (keys[0] | keys[1]) & (known[0] | known[1]) for each in self.on)


def _described(node: Join) -> str:
    """A join in one line."""
    on = " AND ".join(each.name or f"{each.left} = {each.right}" for each in node.on)
    time = f" as of {node.as_of}" if node.as_of else " latest" if node.latest else ""
    if node.within:
        time = f" within {_signed(node.within[0])} and {_signed(node.within[1])}"
    return f"{node.how} join on {on}{time}"


def _signed(span: timedelta) -> str:
    return f"-{format_duration(-span)}" if span < timedelta(0) else format_duration(span)
