"""The parts of a chain: feeds, operators, views, and the ports between them. Frozen, and free of how they were found.

A *port* says where rows go next and as which columns. Numbers of feeds, operators and views are one series, so that a
number alone names the place a chunk is going to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from millstream.plan.spec import Reduce, Spec, Top
from millstream.relation.expression import substitute
from millstream.relation.functions import Function, calling
from millstream.relation.nodes import Emit, Named, Node, Policy, Source

ADMIT = 0
"""The stage of admission; kernels come after it."""

DRIVER = 1_000
"""The stage of what goes to the driver: later than any kernel's."""

ORIGIN = ("_topic", "_partition", "_offset")
"""Where a row of an append-only view comes from; its identity."""


@dataclass(frozen=True, slots=True)
class WindowBound:
    """An expression that is a bound of the window that holds a time, of windows of ``size`` (µs) side by side: its start or its end.

    ``name`` is what its author calls it, ``time`` the expression of the time.
    """

    expression: str
    name: str
    time: str
    size: int

    def over(self, columns: Mapping[str, str]) -> WindowBound:
        """The same with expressions in the place of columns."""
        expression, time = (substitute(text, columns) for text in (self.expression, self.time))
        return replace(self, expression=expression, time=time)


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that is made of others between two kernels, and the expression as its author wrote it.

    Layouts have what is written, so it is the author's text and none of ours.
    """

    name: str
    expression: str
    written: str
    window: WindowBound | None = None
    """What it is, if it is the bound of a window."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An expression that a feed computes for its readers: the name of its column, and for which records it is computed.

    ``guard`` is a condition that is never null; for a record where it is false the column is null, and the expression is not
    computed. Without one it is computed for every record. ``written`` is what errors show.
    """

    name: str
    expression: str
    guard: str = ""
    written: str = ""
    total: bool = False
    """Whether it has a value for every record, so that it cannot fail."""
    window: WindowBound | None = None
    """What it is, if it is the bound of a window."""


@dataclass(frozen=True, slots=True)
class Port:
    """Where rows go: the stage and number of their reader, the columns (name there, name here), what to keep.

    ``keep`` is a column, or a condition over columns. ``computed`` are columns made of those that are here, for the rows that
    are kept. ``side`` is which input of its target it feeds. ``spread`` are the columns (as named there) whose hash chooses one of ``buckets``. ``marks`` says that watermarks are wanted.
    """

    stage: int
    target: int
    columns: tuple[tuple[str, str], ...]
    keep: str | None = None
    spread: tuple[str, ...] = ()
    buckets: int = 1
    marks: bool = False
    tasks: int = 1
    """Into how many tasks Spark deals the buckets; see :mod:`millstream.kernel.exchange.bucket_labels`."""
    late: bool = False
    """Takes the rows that admission rejects as late, and no others."""
    side: int = 0
    step: int | None = None
    """The leader of the step that its target runs in, if that is another kernel; see :mod:`millstream.plan.fuse`."""
    computed: tuple[Computed, ...] = ()
    unread: Output | None = None
    """The view whose rows these are, if nobody gets them: they are computed, and stay where they are."""
    sums: Reduce | None = None
    """What its target adds up, if rows go there by a shuffle: it may be sent sums in place of rows."""
    first: Top | None = None
    """Set if the target wants the first rows alone and nothing is taken back: rows that cannot be among them need not be sent."""
    said: str = ""
    """The condition to keep rows as its author wrote it."""
    broadcast: bool = False
    """Whether its rows go to every bucket of its target."""
    appended: bool = False
    """Whether its rows come with their append time, ``_a``."""
    functions: tuple[Function, ...] = ()
    """The functions of the pipeline that its expressions call."""

    @property
    def leader(self) -> int:
        """The number of the operator by whose buckets the rows are cut."""
        return self.target if self.step is None else self.step


@dataclass(frozen=True, slots=True)
class Feed:
    """All that a pipeline takes from one topic: distinct expressions over its columns, and where their values go."""

    number: int
    source: Source
    expressions: tuple[Asked, ...]
    ports: tuple[Port, ...]
    clocks: tuple[Port, ...] = ()
    """As-of joins that must know how its watermarks go on; see :mod:`millstream.plan.watermarks`."""

    @property
    def judged(self) -> bool:
        """Whether admission needs state: a stream with event time, or with producers that repeat themselves."""
        return self.source.time is not None or self.source.sequence is not None


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel in its place: its number, its stage, its inputs, and where its changes go.

    ``sides`` is how many frames it takes at a time. ``hold`` is, for each input, by how much (µs) what the kernel sends may lie
    before the mark of that input; None for an input that tells no time and so holds nothing back. None given: no hold.
    """

    number: int
    stage: int
    spec: Spec
    inputs: tuple[int, ...]
    ports: tuple[Port, ...]
    sides: int = 1
    hold: tuple[int | None, ...] = ()
    step: int | None = None
    """The leader of the step that it runs in, if that is another kernel; see :mod:`millstream.plan.fuse`."""
    clocks: tuple[tuple[int, int], ...] = ()
    """Of an as-of join: the feeds that tell its left side's time, and by how much (µs) that is held back."""

    @property
    def passes(self) -> bool:
        """Whether it keeps nothing and runs where its rows are made."""
        return self.spec.passes()

    @property
    def leader(self) -> int:
        """The number of the operator in whose buckets it runs: the first of its step."""
        return self.number if self.step is None else self.step


@dataclass(frozen=True, slots=True)
class Output:
    """A view as its store gets it: raw columns from the chain, then scalar expressions, then a table with a key."""

    number: int
    name: str
    to: str
    columns: tuple[str, ...]
    select: tuple[Named, ...]
    where: tuple[str, ...]
    key: tuple[str, ...]
    append: bool = False
    refused: Policy = "stop"
    kept: bool = True
    """Whether its rows are stored; the ledger of its pipeline is in ``to`` all the same."""
    functions: tuple[Function, ...] = ()
    """The functions of the pipeline that its expressions call."""

    @property
    def plain(self) -> bool:
        """Whether the raw columns are the view's columns, under other names at most."""
        return not self.where and all(column.expression in self.columns for column in self.select)


@dataclass(frozen=True, slots=True)
class Chain:
    """The whole of a pipeline, ready to be laid onto Spark."""

    feeds: tuple[Feed, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[Output, ...]
    buckets: int
    tasks: int = 1
    early: bool = False
    """Whether streams that only tell time are judged where their records are read: their watermarks come along with the offsets."""
    windows: tuple[WindowBound, ...] = ()
    """The bounds of windows that its expressions are made of."""
    functions: tuple[Function, ...] = ()
    """The functions of the pipeline."""

    def staged(self, feed: Feed) -> bool:
        """Whether a feed's admission has state of its own, so that it is a stage."""
        return feed.judged and (not self.early or feed.source.sequence is not None)

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages there are; admission is one where a feed needs it."""
        admission = {ADMIT} if any(map(self.staged, self.feeds)) else set()
        return tuple(sorted(admission | {operator.stage for operator in self.operators if not operator.passes}))

    def feed(self, number: int) -> Feed:
        """The feed of that number."""
        return next(feed for feed in self.feeds if feed.number == number)

    def readers(self, ports: tuple[Port, ...], column: str | None) -> Iterator[str]:
        """The views that read a column sent by these ports; None asks for any column."""
        for port in ports:
            if column is not None and column != port.keep and column not in (here for _, here in port.columns):
                continue
            if port.stage == DRIVER:
                yield from (output.name for output in self.outputs if output.number == port.target)
            else:
                operator = next(each for each in self.operators if each.number == port.target)
                yield from self.readers(operator.ports, None)

    def calling(self, functions: tuple[Function, ...]) -> Chain:
        """The same chain with the functions that its expressions call."""
        if not functions:
            return self

        def told(ports: tuple[Port, ...]) -> tuple[Port, ...]:
            return tuple(
                replace(
                    port, functions=calling(functions, port.keep or "", *(each.expression for each in port.computed))
                )
                for port in ports
            )

        return replace(
            self,
            functions=functions,
            feeds=tuple(replace(feed, ports=told(feed.ports)) for feed in self.feeds),
            operators=tuple(replace(each, ports=told(each.ports)) for each in self.operators),
            outputs=tuple(
                replace(each, functions=calling(functions, *each.where, *(column.expression for column in each.select)))
                for each in self.outputs
            ),
        )

    def unread(self, views: Collection[str]) -> Chain:
        """The same chain if nobody gets the rows of these views: each is computed in full, and no further than that."""
        outputs = {output.number: output for output in self.outputs if output.name in views}

        def marked(ports: tuple[Port, ...]) -> tuple[Port, ...]:
            return tuple(replace(port, unread=outputs.get(port.target)) for port in ports)

        return replace(
            self,
            feeds=tuple(replace(feed, ports=marked(feed.ports)) for feed in self.feeds),
            operators=tuple(replace(each, ports=marked(each.ports)) for each in self.operators),
        )


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """What the chain needs to know of a view."""

    name: str
    node: Node
    to: str
    emit: Emit
    key: tuple[str, ...]
    refused: Policy = "stop"
    kept: bool = True
