"""What a node must answer: what it is made of, what its rows are like, and what may be moved below it.

Every answer is an abstract method, so that mypy refuses an operator that leaves one out: no operator inherits
an answer. Nothing here refuses anything; whoever asks decides what the answer means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from textwrap import indent
from typing import TYPE_CHECKING, ClassVar, cast

from millstream.relation import expression
from millstream.relation.clauses import WINDOW_COLUMNS, Emit, Hopping, Named, Place, Tumbling
from millstream.relation.kinds import Kind

if TYPE_CHECKING:
    from millstream.relation.nodes import Node
    from millstream.relation.operators.source import Source


class NodeContract(ABC):
    """What every node answers. A node is a frozen dataclass; its ``tag`` and the names of its fields are stored, so they stay."""

    __slots__ = ()
    tag: ClassVar[str]

    @property
    @abstractmethod
    def place(self) -> Place:
        """Where the user defined it."""

    # what it is made of

    @abstractmethod
    def input_nodes(self) -> tuple[Node, ...]:
        """The relations that it is made of; none for a source."""

    @abstractmethod
    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        """The same over other relations."""

    @abstractmethod
    def output_columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""

    @abstractmethod
    def visible(self) -> tuple[str, ...]:
        """What an expression over it may use: its columns, and directly on a source what a record has besides."""

    @abstractmethod
    def expressions(self, side: int | None = None) -> list[str]:
        """Its expressions over its input, as they were written; of a join those over one side, or over both."""

    @abstractmethod
    def compared(self, side: int) -> Sequence[str]:
        """Those of its expressions over one input by which rows are distinguished or ordered."""

    @abstractmethod
    def kinds(self) -> dict[str, Kind]:
        """The columns, in lower case, of whose type something is known; see :mod:`millstream.relation.kinds`."""

    @abstractmethod
    def lines(self) -> list[str]:
        """One line for each node, the source first."""

    # what its rows are like

    @abstractmethod
    def is_stream(self) -> bool:
        """Whether its rows are facts that happened, rather than the present rows of a table, a group or a join of those."""

    @abstractmethod
    def is_insert_only(self, emit: Emit = "changes") -> bool:
        """Whether none of its rows is ever taken back; of final rows none is, if nothing that comes late amends them."""

    @abstractmethod
    def event_time(self) -> str | None:
        """The column of a stream's event time, as long as it is there, under whatever name, unchanged and never null."""

    @abstractmethod
    def settled(self) -> dict[str, timedelta]:
        """Columns that tell when a row can change no more: as soon as the mark is beyond the time there and this span."""

    @abstractmethod
    def natural_key(self) -> tuple[str, ...]:
        """The columns that identify its rows; none for a stream, or where a select left out one of them."""

    @abstractmethod
    def never_null(self) -> frozenset[str]:
        """Columns that have a value in every row: a table's key, an event time, and what is made of these as it is."""

    # what runs for it

    @abstractmethod
    def has_kernel(self) -> bool:
        """Whether its rows are made by a kernel, so that they are not those of one source."""

    @abstractmethod
    def is_bounded(self) -> bool:
        """Whether what is kept for it, not for those below, stops growing on endless input."""

    @abstractmethod
    def ends(self) -> bool:
        """Whether its rows, not those below, become final."""

    @abstractmethod
    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        """What a condition over its rows, about the columns ``used``, is over each of its inputs; nothing where it is none there."""


def sources_of(node: Node) -> tuple[Source, ...]:
    """The sources at the bottom of a relation, each once, the left one first."""
    inputs = node.input_nodes()
    if not inputs:
        return (cast("Source", node),)
    return tuple(dict.fromkeys(source for each in inputs for source in sources_of(each)))


def lateness(node: Node) -> timedelta:
    """How late a row may be and still be admitted: the most that any of its streams allows."""
    return max((source.time.lateness for source in sources_of(node) if source.time), default=timedelta(0))


def settled_by_time(node: Node) -> dict[str, timedelta]:
    """Of rows that change no more once nothing of their time is late."""
    name = node.event_time()
    return {name: lateness(node)} if name else {}


def settled_by_windows(window: Tumbling | Hopping, late: timedelta) -> dict[str, timedelta]:
    """Of rows with windows: the columns are the start and the end of the window."""
    return {WINDOW_COLUMNS[0]: window.size + late, WINDOW_COLUMNS[1]: late}


def settled_by_keys(node: Node, keys: Sequence[str]) -> dict[str, timedelta]:
    """The keys of groups of rows that tell when these can change no more."""
    plain = {expression.lower_column(each) for each in keys}
    return {name: span for name, span in node.settled().items() if name.lower() in plain}


def renamed(columns: Iterable[Named]) -> dict[str, str]:
    """What columns that are plain ones of the input, in lower case, are called; the last name of each."""
    return {expression.lower_column(each.expression): each.name for each in columns}


def texts_by_name(columns: Iterable[Named]) -> Mapping[str, str]:
    """What each column is."""
    return {each.name: each.expression for each in columns}


def lower(names: Iterable[str]) -> set[str]:
    """Names as they compare."""
    return {name.lower() for name in names}


def written(node: Node) -> str:
    """A relation as text, a line for each node, each deeper than the one before."""
    return "\n".join(indent(line, "  " * depth) for depth, line in enumerate(node.lines()))
