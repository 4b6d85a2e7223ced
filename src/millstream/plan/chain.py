"""A pipeline as one linear chain: which expressions of which topic feed which kernels, in which stages, into which views.

Spark runs a DataFrame that is used twice twice, with its state. So everything that a pipeline does with a topic is one
*feed*, every kernel of one depth is hosted by one *stage*, and what a stage does not know passes through it. A *port*
says where rows go next and as which columns. Numbers of feeds, operators and views are one series, so that a number
alone names the place a chunk is going to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from millstream.plan import expression
from millstream.plan.nodes import (
    META_COLUMNS,
    WINDOW_COLUMNS,
    Aggregate,
    Emit,
    Named,
    Node,
    Select,
    Source,
    Where,
    output_columns,
    source_of,
)
from millstream.plan.spec import Changelog, Measure, Reduce, Spec

ADMIT = 0
"""The stage of admission; kernels come after it."""

SINK = 1_000
"""The stage of what goes to the sink: later than any kernel's."""

ORIGIN = ("_topic", "_partition", "_offset")
"""Where a row of an append-only view comes from; its identity."""

_MICROSECOND = timedelta(microseconds=1)


def micros(span: timedelta) -> int:
    """Whole microseconds."""
    return span // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Port:
    """Where rows go: the stage and number of who takes them, the columns (name there, name here), what to keep.

    ``spread`` are the columns (as named there) whose hash chooses one of ``buckets``. ``marks`` says that watermarks are wanted.
    """

    stage: int
    target: int
    columns: tuple[tuple[str, str], ...]
    keep: str | None = None
    spread: tuple[str, ...] = ()
    buckets: int = 1
    marks: bool = False
    tasks: int = 1
    """Into how many tasks Spark deals the buckets; see :mod:`millstream.kernel.spread`."""
    late: bool = False
    """Takes the rows that admission rejects as late, and no others."""


@dataclass(frozen=True, slots=True)
class Feed:
    """All that a pipeline takes from one topic: distinct expressions over its columns, and where their values go."""

    number: int
    source: Source
    expressions: tuple[Named, ...]
    ports: tuple[Port, ...]

    @property
    def judged(self) -> bool:
        """Whether admission needs state: a stream with event time, or with producers that repeat themselves."""
        return self.source.time is not None or self.source.sequence is not None


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel in its place: its number, its stage, who feeds it, and where its changes go."""

    number: int
    stage: int
    spec: Spec
    inputs: tuple[int, ...]
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A view as the sink gets it: raw columns from the chain, then scalar expressions, then a table with a key."""

    number: int
    name: str
    to: str
    columns: tuple[str, ...]
    select: tuple[Named, ...]
    where: tuple[str, ...]
    key: tuple[str, ...]
    append: bool = False

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

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages there are; admission is one where a feed needs it."""
        admission = {ADMIT} if any(feed.judged for feed in self.feeds) else set()
        return tuple(sorted(admission | {operator.stage for operator in self.operators}))

    def feed(self, number: int) -> Feed:
        """The feed of that number."""
        return next(feed for feed in self.feeds if feed.number == number)


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """What the chain needs to know of a view."""

    name: str
    node: Node
    to: str
    emit: Emit
    key: tuple[str, ...]


def build_chain(views: Sequence[ViewPlan], *, buckets: int, to: str, tasks: int = 1) -> Chain:
    """Lay all views of a pipeline onto one chain; what two of them share is there once.

    ``to`` is where the side tables of late events go. ``tasks`` is how many tasks a stage will have.
    """
    return _Builder(buckets, tasks).build(views, to)


@dataclass
class _Maker:
    """Who makes rows: a feed, or an operator whose ports are still being found."""

    number: int
    stage: int
    source: Source | None = None
    """Set for a feed."""
    feed: _Maker | None = None
    """Where expressions over its rows are computed: at the feed, before any kernel. None after an aggregate."""
    spec: Spec | None = None
    inputs: tuple[int, ...] = ()
    key: tuple[str, ...] = ()
    expressions: dict[str, str] = field(default_factory=dict)
    ports: list[Port] = field(default_factory=list)
    retract: bool = False

    def column(self, sql: str) -> str:
        """The column that holds this expression of the feed's."""
        return self.expressions.setdefault(sql, f"_c{len(self.expressions)}")


@dataclass(frozen=True)
class _Rows:
    """Rows on their way up a relation: who makes them, what each column is there, which rows count."""

    maker: _Maker
    columns: Mapping[str, str]
    where: tuple[str, ...] = ()


class _Builder:
    def __init__(self, buckets: int, tasks: int) -> None:
        self.buckets, self.tasks = buckets, tasks
        self.makers: list[_Maker] = []
        self.known: dict[tuple[Node, str], _Maker] = {}
        self.outputs: list[Output] = []

    def build(self, views: Sequence[ViewPlan], to: str) -> Chain:
        for view in views:
            self._view(view)
        for maker in self.makers:
            if maker.source and maker.source.time and maker.source.time.late == "route":
                self._late_view(maker, maker.source, to)
        for maker in self.makers:
            if isinstance(maker.spec, Changelog):
                self._feed_changelog(maker)
        # Views are numbered last: only now is it known how many makers there are.
        first = len(self.makers)
        ports = {
            maker.number: tuple(
                replace(port, target=first + port.target) if port.stage == SINK else port for port in maker.ports
            )
            for maker in self.makers
        }
        return Chain(
            tuple(
                Feed(maker.number, maker.source, _named(maker.expressions), ports[maker.number])
                for maker in self.makers
                if maker.source is not None
            ),
            tuple(
                Operator(
                    maker.number,
                    maker.stage,
                    replace(maker.spec, retract=maker.retract),
                    maker.inputs,
                    ports[maker.number],
                )
                for maker in self.makers
                if maker.spec is not None
            ),
            tuple(replace(output, number=first + output.number) for output in self.outputs),
            self.buckets,
            self.tasks,
        )

    def _make(self, node: Node, role: str, stage: int) -> _Maker:
        maker = self.known[node, role] = _Maker(len(self.makers), stage)
        self.makers.append(maker)
        return maker

    # from the source upwards

    def _rows(self, node: Node, emit: Emit) -> _Rows:
        match node:
            case Source():
                maker = self._feed(node) if node.kind == "stream" else self._changelog(node)
                return _Rows(maker, {name: name for name in (*output_columns(node), *META_COLUMNS)})
            case Where():
                rows = self._rows(node.input, emit)
                return replace(rows, where=(*rows.where, expression.substitute(node.condition, rows.columns)))
            case Select():
                rows = self._rows(node.input, emit)
                columns = {each.name: expression.substitute(each.expression, rows.columns) for each in node.columns}
                return replace(rows, columns=columns)
            case Aggregate():
                return _Rows(self._reduce(node, emit), {name: name for name in output_columns(node)})

    def _feed(self, source: Source) -> _Maker:
        maker = self.known.get((source, "feed"))
        if maker is None:
            maker = self._make(source, "feed", ADMIT)
            maker.source = source
            maker.feed = maker
        return maker

    def _changelog(self, source: Source) -> _Maker:
        maker = self.known.get((source, "changelog"))
        if maker is None:
            feed = self._feed(source)
            maker = self._make(source, "changelog", ADMIT + 1)
            maker.feed, maker.inputs, maker.key = feed, (feed.number,), source.key
            maker.spec = Changelog(source.key, ())
        return maker

    def _reduce(self, node: Aggregate, emit: Emit) -> _Maker:
        known = self.known.get((node, emit))
        if known is not None:
            return known
        rows = self._rows(node.input, emit)
        maker = self._make(node, emit, rows.maker.stage + 1)
        maker.inputs = (rows.maker.number,)
        keys = tuple(key.name for key in node.keys)
        wanted = {key.name: expression.substitute(key.expression, rows.columns) for key in node.keys}
        size = None
        if node.window is not None:
            size = micros(node.window.size)
            moment = f"unix_micros({expression.substitute(expression.quote(node.window.column), rows.columns)})"
            wanted[WINDOW_COLUMNS[0]] = f"timestamp_micros({moment} - pmod({moment}, {size}))"
        arguments: dict[str, str] = {}
        measures = []
        for each in node.aggregates:
            texts = [expression.substitute(argument, rows.columns) for argument in each.arguments]
            names = tuple(arguments.setdefault(text, f"_a{len(arguments)}") for text in texts)
            measures.append(Measure(each.name, each.function, names))
        wanted |= {name: text for text, name in arguments.items()}
        time = source_of(node).time
        maker.spec = Reduce(
            keys,
            tuple(measures),
            size,
            emit if size else "changes",
            micros(time.lateness) if size and time else 0,
            insert_only=rows.maker.source is not None,
        )
        maker.key = (*keys, WINDOW_COLUMNS[0]) if size else keys
        self._connect(
            rows, Port(maker.stage, maker.number, (), None, keys, self.buckets, bool(size), self.tasks), wanted
        )
        rows.maker.retract = True  # what is taken back must be said: an aggregate cannot look it up
        return maker

    def _connect(self, rows: _Rows, port: Port, wanted: Mapping[str, str]) -> None:
        """Add a port to whoever makes these rows."""
        feed = rows.maker.feed
        if feed is None:  # after an aggregate there are only names: the API has seen to it
            rows.maker.ports.append(replace(port, columns=tuple(wanted.items())))
            return
        keep = feed.column(" AND ".join(f"coalesce(({each}), false)" for each in rows.where)) if rows.where else None
        columns = tuple((name, feed.column(text)) for name, text in wanted.items())
        rows.maker.ports.append(replace(port, columns=columns, keep=keep))

    def _feed_changelog(self, maker: _Maker) -> None:
        """Let the table's feed send the kernel what all its readers want: computed there, kept in the kernel's state."""
        feed = maker.feed
        assert feed is not None  # noqa: S101
        values = {here for port in maker.ports for _, here in port.columns} | {
            port.keep for port in maker.ports if port.keep
        }
        kept = tuple(sorted(values, key=lambda name: int(name[2:])))
        maker.spec = Changelog(maker.key, kept)
        keys = tuple((name, feed.column(name)) for name in maker.key)
        columns = (*keys, *((name, name) for name in kept))
        feed.ports.append(Port(maker.stage, maker.number, columns, None, maker.key, self.buckets, tasks=self.tasks))

    # views

    def _view(self, view: ViewPlan) -> None:
        rows = self._rows(view.node, view.emit)
        maker = rows.maker
        names = output_columns(view.node)
        number = len(self.outputs)
        key = {rows.columns[name] for name in view.key}
        if maker.source is None and (rows.where or not key or key != set(maker.key)):
            maker.retract = True  # a sink that stores by another key must be told what to remove
        port = Port(SINK, number, ())
        if maker.feed is None:
            raw = output_columns(next(node for (node, _), known in self.known.items() if known is maker))
            self._connect(replace(rows, where=()), port, {name: name for name in raw})
            select = tuple(Named(name, rows.columns[name]) for name in names)
            self.outputs.append(Output(number, view.name, view.to, raw, select, rows.where, view.key))
        else:
            self._connect(rows, port, {name: rows.columns[name] for name in names})
            select = tuple(Named(name, name) for name in names)
            append = maker.source is not None
            self.outputs.append(Output(number, view.name, view.to, names, select, (), view.key, append))

    def _late_view(self, maker: _Maker, source: Source, to: str) -> None:
        """The side table of a stream with ``late="route"``: every column of what came too late."""
        names = output_columns(source)
        number = len(self.outputs)
        maker.ports.append(Port(SINK, number, tuple((name, maker.column(name)) for name in names), late=True))
        select = tuple(Named(name, name) for name in names)
        self.outputs.append(Output(number, f"{source.name}_late", to, names, select, (), (), append=True))


def _named(expressions: Mapping[str, str]) -> tuple[Named, ...]:
    return tuple(Named(name, sql) for sql, name in expressions.items())
