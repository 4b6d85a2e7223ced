"""What a spec must answer: the words that describe its kernel, and how long the kernel keeps its state.

A spec says what a kernel does: it names columns of its input and spans in microseconds, and nothing of where it runs. Every answer
is an abstract method, so that mypy refuses a kernel that leaves one out. What the words say of state is what the kernel does with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from millstream.plan.operators.clauses import Measure, Order
from millstream.plan.operators.wording import USE_WINDOWS, Say
from millstream.relation import expression
from millstream.relation.clauses import Ordering
from millstream.relation.nodes import Aggregate

if TYPE_CHECKING:
    from millstream.plan.spec import Spec


class SpecContract(ABC):
    """What every spec answers. A spec is a frozen dataclass; its ``tag`` and the names of its fields are stored, so they stay.

    Where a method takes ``say``, that turns a column of the input, and the side it comes from, into what its author wrote.
    """

    __slots__ = ()
    tag: ClassVar[str]

    # in words

    @abstractmethod
    def title(self) -> str:
        """The kind of kernel."""

    @abstractmethod
    def does(self, say: Say) -> str:
        """What it makes of its rows."""

    @abstractmethod
    def keeps(self, say: Say) -> str:
        """What it keeps between batches, and why."""

    @abstractmethod
    def drops(self, say: Say) -> str:
        """When it lets go of what it keeps."""

    @abstractmethod
    def bounded_by(self) -> str:
        """What makes it let go, as a hint where it keeps something of every event for ever."""

    # how long it keeps what it keeps

    @abstractmethod
    def passes(self) -> bool:
        """Whether it keeps nothing, so that it runs wherever its rows are made."""

    @abstractmethod
    def is_bounded(self) -> bool:
        """Whether what it keeps stops growing on endless input: never truer than what the kernel does with its state."""

    @abstractmethod
    def is_replayable(self) -> bool:
        """Whether a replay gives the same rows, wherever batches end."""

    @abstractmethod
    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        """Whether one that never stops growing keeps something of each event, rather than of each key.

        ``endless`` says of each input whether its rows are facts of which there are ever more, ``own`` of a column whether it is an
        event's own: its time, or its place in the log.
        """

    @abstractmethod
    def is_endless(self, endless: Sequence[bool]) -> bool:
        """Whether its rows are facts of which there are ever more, not the present rows of keys or windows."""

    # where it runs

    @abstractmethod
    def holding(self, name: str, here: str) -> set[str]:
        """The columns of its rows that hold a column of its key, which its first sender has as ``here``."""

    @abstractmethod
    def sends_as_many(self) -> bool:
        """Whether it sends about as many rows as come: a sum gets sums where that is less."""


class StatelessSpec(SpecContract):
    """A spec of rows that pass, of which nothing is kept: what is left to say is what it makes of them."""

    __slots__ = ()

    def keeps(self, say: Say) -> str:
        return "nothing"

    def drops(self, say: Say) -> str:
        return "nothing to drop"

    def bounded_by(self) -> str:
        return USE_WINDOWS

    def passes(self) -> bool:
        return True

    def is_bounded(self) -> bool:
        return True

    def is_replayable(self) -> bool:
        return True

    def keeps_events(self, endless: Sequence[bool], own: Callable[[str], bool]) -> bool:
        return False

    def is_endless(self, endless: Sequence[bool]) -> bool:
        return any(endless)

    def holding(self, name: str, here: str) -> set[str]:
        return set()

    def sends_as_many(self) -> bool:
        return False


@dataclass(frozen=True)
class Laid:
    """A kernel before it has a place: ``wanted`` are its columns and what they are below, ``spread`` what its buckets go by."""

    spec: Spec
    wanted: Mapping[str, str]
    spread: tuple[str, ...]
    marks: bool = False


class Names:
    """Columns for expressions: a column of the relation by its name, anything else under a name of ours."""

    def __init__(self, columns: tuple[str, ...] = ()) -> None:
        self.wanted = quoted(columns)
        self._known = {name.lower(): name for name in columns}

    def name(self, text: str) -> str:
        """The column that holds an expression."""
        plain = expression.lower_column(text)
        if plain in self._known:
            return self._known[plain]
        for name, known in self.wanted.items():
            if known == text:
                return name
        name = f"_a{len(self.wanted)}"
        self.wanted[name] = text
        return name

    def order(self, order: tuple[Ordering, ...]) -> tuple[Order, ...]:
        """An order by columns."""
        return tuple(Order(self.name(each.expression), each.descending) for each in order)

    def measures(self, node: Aggregate) -> tuple[Measure, ...]:
        """The aggregates of a node over columns."""
        return tuple(
            Measure(each.name, each.function, tuple(map(self.name, each.arguments)), each.fraction)
            for each in node.aggregates
        )


def quoted(columns: Sequence[str]) -> dict[str, str]:
    """Columns as expressions, under their own names."""
    return {name: expression.quote(name) for name in columns}
