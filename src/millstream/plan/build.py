"""A pipeline as one linear chain: which expressions of which topic feed which kernels, in which stages, into which views.

Spark runs a DataFrame that is used twice twice, with its state. So everything that a pipeline does with a topic is one
*feed*, every kernel of one depth is hosted by one *stage*, and what a stage does not know passes through it.

Expressions are computed at the feed wherever that gives the same: below a join too, unless a row without a partner would
have another value there. The rest is computed where rows leave a kernel, and what is left for a view by Spark at the end.
An expression that can fail takes the conditions that are written before it along, as its guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from millstream.plan import spec as specs
from millstream.plan.chain import ADMIT, DRIVER, ORIGIN, Asked, Chain, Computed, Feed, Operator, Output, Port, ViewPlan
from millstream.plan.fuse import fuse
from millstream.plan.makers import Bounds, Guard, Maker, Rows, Sides, held
from millstream.plan.operators import hold_until_close, percolate
from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import Laid, quoted
from millstream.plan.pushdown import pushed
from millstream.plan.select_kernel import OneInput, bounds, lay, lay_join
from millstream.plan.spec import Changelog, JoinSpec, TableJoin
from millstream.plan.watermarks import clocked
from millstream.relation import expression
from millstream.relation.functions import Function
from millstream.relation.nodes import (
    META_COLUMNS,
    Emit,
    History,
    Join,
    Named,
    Node,
    Percolate,
    Select,
    Source,
    Top,
    Tumbling,
    Where,
    Windowed,
    inputs_of,
    output_columns,
)
from millstream.relation.predicate import never_null

__all__ = [
    "ADMIT",
    "DRIVER",
    "ORIGIN",
    "Asked",
    "Chain",
    "Feed",
    "Operator",
    "Output",
    "Port",
    "ViewPlan",
    "build_chain",
    "micros",
]  # fmt: skip


def build_chain(
    views: Sequence[ViewPlan], *, buckets: int, to: str, tasks: int = 1, functions: tuple[Function, ...] = ()
) -> Chain:
    """Lay all views of a pipeline onto one chain; what two of them share is there once.

    ``to`` is where the side tables of late events go. ``tasks`` is how many tasks a stage will have, ``functions`` are
    those that the pipeline has.
    """
    return clocked(fuse(_Builder(buckets, tasks).build(pushed(views), to))).calling(functions)


class _Builder:
    def __init__(self, buckets: int, tasks: int) -> None:
        self.buckets, self.tasks = buckets, tasks
        self.makers: list[Maker] = []
        self.known: dict[tuple[Node, str], Maker] = {}
        self.outputs: list[Output] = []
        self.windows = Bounds()

    def build(self, views: Sequence[ViewPlan], to: str) -> Chain:
        # By name: state goes by these numbers, and views may change places in the file.
        for view in sorted(views, key=lambda each: each.name):
            self._view(view)
        for maker in self.makers:
            if maker.source and maker.source.time and maker.source.time.late == "route":
                self._late_view(maker, maker.source, to)
        for maker in reversed(self.makers):  # a reader comes after the makers of its rows, and has named its columns
            if isinstance(maker.spec, Changelog):
                self._feed_changelog(maker)
            elif maker.sides is not None:
                self._feed_join(maker, maker.sides)
        said = {view.name: place for place, view in enumerate(views)}
        self.outputs.sort(key=lambda output: said.get(output.name, len(said)))
        # Views are numbered last: only now is it known how many makers there are.
        first = len(self.makers)
        ports = {
            maker.number: tuple(
                replace(port, target=first + port.target) if port.stage == DRIVER else port for port in maker.ports
            )
            for maker in self.makers
        }
        return Chain(
            tuple(
                Feed(maker.number, maker.source, self._asked(maker), ports[maker.number])
                for maker in self.makers
                if maker.source is not None
            ),
            tuple(
                Operator(
                    maker.number,
                    maker.stage,
                    maker.spec if isinstance(maker.spec, JoinSpec) else replace(maker.spec, retract=maker.retract),
                    maker.inputs,
                    ports[maker.number],
                    2 if isinstance(maker.spec, JoinSpec | specs.Percolate) else 1,
                    maker.hold,
                )
                for maker in self.makers
                if maker.spec is not None
            ),
            tuple(replace(output, number=first + output.number) for output in self.outputs),
            self.buckets,
            self.tasks,
            windows=tuple(self.windows.known.values()),
        )

    def _asked(self, feed: Maker) -> tuple[Asked, ...]:
        """What is asked of a feed, with the bounds of windows that are among it."""
        return tuple(
            replace(each, window=self.windows.known.get(each.expression)) for each in feed.expressions.values()
        )

    def _make(self, node: Node, role: str, stage: int) -> Maker:
        maker = self.known[node, role] = Maker(len(self.makers), stage)
        self.makers.append(maker)
        return maker

    # from the source upwards

    def _rows(self, node: Node, emit: Emit, as_said: bool = False, early: bool = False) -> Rows:
        """The rows of a relation; ``as_said`` those of a table as its records say them, before any replaces another.

        ``early`` gives those of open windows too: the operator above waits for the end of the window itself.
        """
        if isinstance(node, OneInput) and not isinstance(node, Windowed):
            return Rows(self._operator(node, emit), quoted(output_columns(node)))
        match node:
            case Source():
                maker = self._feed(node) if node.kind == "stream" or as_said else self._changelog(node)
                columns = {name: expression.quote(name) for name in (*output_columns(node), *META_COLUMNS)}
                if node.time is not None and node.time.said:
                    columns[node.time.column] = node.time.said
                return Rows(maker, columns)
            case Where():
                rows = self._rows(node.input, emit, as_said, early)
                return replace(rows, where=(*rows.where, expression.substitute(node.condition, rows.columns)))
            case Select():
                rows = self._rows(node.input, emit, as_said, early)
                columns = {each.name: expression.substitute(each.expression, rows.columns) for each in node.columns}
                return replace(rows, columns=columns)
            case Windowed():
                rows = self._windows(node, emit)
                if emit == "changes" or early:
                    return rows
                maker = self.known.get((node, "hold")) or self._kernel(
                    node, "hold", emit, hold_until_close.lay(node), (node,), (rows,)
                )
                return Rows(maker, {name: expression.quote(name) for name in output_columns(node)})
            case Join():
                return Rows(self._join(node, emit), {name: expression.quote(name) for name in output_columns(node)})
            case Percolate():
                return Rows(self._percolate(node, emit), quoted(output_columns(node)))

    def _feed(self, source: Source) -> Maker:
        maker = self.known.get((source, "feed"))
        if maker is None:
            maker = self._make(source, "feed", ADMIT)
            maker.source = source
            maker.feed, maker.insert_only = maker, source.kind == "stream"
        return maker

    def _changelog(self, source: Source) -> Maker:
        maker = self.known.get((source, "changelog"))
        if maker is None:
            feed = self._feed(source)
            maker = self._make(source, "changelog", ADMIT + 1)
            maker.feed, maker.inputs, maker.key = feed, (feed.number,), source.key
            maker.spec = Changelog(source.key, ())
        return maker

    def _windows(self, node: Windowed, emit: Emit) -> Rows:
        """The rows of windows, as they come: side by side those are two more columns, others are rows of their own."""
        if not isinstance(node.window, Tumbling):
            columns = {name: expression.quote(name) for name in output_columns(node)}
            return Rows(self._operator(node, emit), columns)
        rows = self._rows(node.input, emit)
        columns = {name: rows.columns[name] for name in output_columns(node.input)}
        for each in bounds(node.window, columns[node.window.column]):
            self.windows.known[each.expression] = each
            columns[each.name] = each.expression
        return replace(rows, columns=columns)

    def _operator(self, node: OneInput, emit: Emit) -> Maker:
        """A kernel with one input; several relations may flow into it."""
        known = self.known.get((node, emit))
        if known is not None:
            return known
        below = inputs_of(node)
        early = isinstance(node, Top) and node.windows_below() is not None
        as_said = isinstance(node, History)
        inputs = [self._rows(each, emit, as_said, early) for each in below]
        laid = lay(node, emit, all(rows.maker.insert_only for rows in inputs))
        return self._kernel(node, emit, emit, laid, below, inputs)

    def _kernel(
        self, node: Node, role: str, emit: Emit, laid: Laid, below: Sequence[Node], inputs: Sequence[Rows]
    ) -> Maker:
        """A kernel that does what was laid, over the rows of these relations."""
        maker = self._make(node, role, max(rows.maker.stage for rows in inputs) + 1)
        maker.inputs = tuple(dict.fromkeys(rows.maker.number for rows in inputs))
        maker.spec, maker.key = laid.spec, node.natural_key()
        maker.insert_only = node.is_insert_only(emit)
        names = output_columns(below[0])
        for each, rows in zip(below, inputs, strict=True):
            columns = rows.columns
            if (
                each is not below[0]
            ):  # the columns of a union are those of its first relation, the others' by their order
                columns = {name: columns[other] for name, other in zip(names, output_columns(each), strict=True)}
            wanted = {name: expression.substitute(text, columns) for name, text in laid.wanted.items()}
            first = laid.spec if isinstance(laid.spec, specs.Top) and laid.spec.insert_only else None
            port = Port(
                maker.stage, maker.number, (), None, laid.spread, self.buckets, laid.marks, self.tasks, first=first
            )
            self._connect(rows, port, wanted)
            rows.maker.retract = True  # removals must be sent: an aggregate cannot look them up
        return maker

    def _join(self, node: Join, emit: Emit) -> Maker:
        known = self.known.get((node, emit))
        if known is not None:
            return known
        left = self._rows(node.left, emit)
        right = self._rows(node.right, emit, as_said=bool(node.as_of))
        maker = self._make(node, emit, max(left.maker.stage, right.maker.stage) + 1)
        maker.inputs, maker.sides = (left.maker.number, right.maker.number), Sides(node, (left, right), self.windows)
        maker.key, maker.insert_only = node.natural_key(), node.is_insert_only(emit)
        left.maker.retract = right.maker.retract = True
        insert_only = left.maker.insert_only and right.maker.insert_only
        maker.spec, maker.hold = lay_join(node, insert_only)  # its columns are known at the end
        return maker

    def _feed_join(self, maker: Maker, sides: Sides) -> None:
        """Let both sides send the join what its readers want, its keys and its times."""
        node = sides.node
        keys = tuple(f"_k{index}" for index in range(len(node.on)))
        for side, (rows, below) in enumerate(zip(sides.rows, (node.left, node.right), strict=True)):
            texts = [(each.left, each.right)[side] for each in node.on]
            wanted = {key: expression.substitute(text, rows.columns) for key, text in zip(keys, texts, strict=True)}
            wanted |= {name: text for (text, _), name in sides.wanted[side].items()}
            guards = {name: guard for (_, guard), name in sides.wanted[side].items()}
            timed = below.event_time()
            marks = bool(timed) and (not node.latest or any(port.marks for port in maker.ports))
            if isinstance(maker.spec, TableJoin):
                marks = maker.spec.horizon is not None
            elif timed and not node.latest:
                wanted["_t"] = f"unix_micros({expression.substitute(expression.quote(timed), rows.columns)})"
            if node.as_of and side:
                wanted |= {"_v": "unix_micros(_timestamp)", "_keep": rows.condition or "true"}
                guards = {name: (*rows.where, *guard) for name, guard in guards.items()}
                rows = replace(rows, where=())  # a row that does not count any more ends the one before it
            port = Port(maker.stage, maker.number, (), None, keys, self.buckets, marks, self.tasks, side=side)
            port = replace(port, appended=bool(node.as_of and side))
            self._connect(rows, port, wanted, guards)
        names = tuple(tuple(wanted.values()) for wanted in sides.wanted)
        assert isinstance(maker.spec, JoinSpec)  # noqa: S101
        maker.spec = replace(maker.spec, left=names[0], right=names[1])

    def _percolate(self, node: Percolate, emit: Emit) -> Maker:
        """Events, some in each bucket, with stored queries, which go to all of them."""
        known = self.known.get((node, emit))
        if known is not None:
            return known
        events, queries = self._rows(node.stream, emit), self._rows(node.queries, emit, as_said=True)
        maker = self._make(node, emit, max(events.maker.stage, queries.maker.stage) + 1)
        laid = percolate.lay(node)
        maker.inputs, maker.spec, maker.hold = (events.maker.number, queries.maker.number), laid, laid.hold()
        events.maker.retract = True
        wanted = {name: events.columns[name] for name in laid.events}
        wanted["_t"] = f"unix_micros({events.columns[str(node.event_time())]})"
        port = Port(maker.stage, maker.number, (), None, laid.spread(), self.buckets, True, self.tasks)
        self._connect(events, port, wanted)
        said = {name: queries.columns[name] for name in (*laid.keys, *laid.shown)}
        said[percolate.CONDITION] = queries.columns[node.condition]
        guards = dict.fromkeys(said, queries.where)
        said |= {"_v": "unix_micros(_timestamp)", "_keep": queries.condition or "true"}
        port = replace(port, spread=(), marks=False, side=1, appended=True, broadcast=True)
        self._connect(replace(queries, where=()), port, said, guards)
        return maker

    def _connect(
        self, rows: Rows, port: Port, wanted: Mapping[str, str], guards: Mapping[str, Guard] | None = None
    ) -> None:
        """Add a port to the maker of these rows; ``guards`` are conditions for single columns, besides those for all of them."""
        maker = rows.maker
        columns: list[tuple[str, str]] = []
        computed: list[Computed] = []
        for name, text in wanted.items():
            guard = (guards or {}).get(name, ())
            here = maker.column(text, (*rows.where, *guard))
            if here is None:  # computed where rows leave the maker, for those that are kept
                here = f"_x{len(computed)}"
                value = maker.value(f"CASE WHEN {never_null(guard)} THEN {text} END" if guard else text)
                computed.append(Computed(here, value, text, self.windows.known.get(text)))
            columns.append((name, here))
        keep, said = None, " AND ".join(rows.where)
        if rows.where:
            keep = maker.column(rows.condition, written=said) or maker.value(rows.condition)
        maker.ports.append(replace(port, columns=tuple(columns), keep=keep, computed=tuple(computed), said=said))

    def _feed_changelog(self, maker: Maker) -> None:
        """Let the table's feed send the kernel what all its readers want: computed there, kept in the kernel's state."""
        feed = maker.feed
        assert feed is not None  # noqa: S101
        values = {here for port in maker.ports for _, here in port.columns} | {
            port.keep for port in maker.ports if port.keep
        }
        kept = tuple(sorted(values, key=lambda name: int(name[2:])))
        maker.spec = Changelog(maker.key, kept)
        port = Port(maker.stage, maker.number, (), None, maker.key, self.buckets, tasks=self.tasks)
        self._connect(Rows(feed, {}), port, {name: expression.quote(name) for name in maker.key})
        feed.ports[-1] = replace(feed.ports[-1], columns=(*feed.ports[-1].columns, *((name, name) for name in kept)))

    # views

    def _view(self, view: ViewPlan) -> None:
        rows = self._rows(view.node, view.emit)
        maker = rows.maker
        names = output_columns(view.node)
        number = len(self.outputs)
        key = {rows.columns[name] for name in view.key}
        if maker.source is None and (rows.where or not key or key != set(maker.key)):
            maker.retract = True  # a store with another key needs the rows to remove
        port = Port(DRIVER, number, ())
        texts = [rows.columns[name] for name in names]
        sides = maker.sides
        if maker.feed is None and not (sides and held(sides, texts, rows)):
            raw = output_columns(next(node for (node, _), known in self.known.items() if known is maker))
            if sides is not None:
                used = frozenset[str]().union(*map(sides.used, (*texts, *rows.where)))
                raw = tuple(name for name in raw if name in used) or raw[:1]
            self._connect(replace(rows, where=()), port, {name: expression.quote(name) for name in raw})
            select = tuple(Named(name, rows.columns[name]) for name in names)
            made = Output(number, view.name, view.to, raw, select, rows.where, view.key)
        else:
            self._connect(rows, port, dict(zip(names, texts, strict=True)))
            select = tuple(Named(name, name) for name in names)
            append = maker.source is not None
            made = Output(number, view.name, view.to, names, select, (), view.key, append)
        self.outputs.append(replace(made, refused=view.refused, kept=view.kept))

    def _late_view(self, maker: Maker, source: Source, to: str) -> None:
        """The side table of a stream with ``late="route"``: every column of what came too late."""
        names = output_columns(source)
        number = len(self.outputs)
        port = Port(DRIVER, number, (), late=True)
        self._connect(Rows(maker, {}), port, {name: expression.quote(name) for name in names})
        select = tuple(Named(name, name) for name in names)
        # What came too late is a dead letter already, and its side table has no definition to say otherwise.
        self.outputs.append(Output(number, f"{source.name}_late", to, names, select, (), (), True, "dead_letter"))
