"""A pipeline as one linear chain: which expressions of which topic feed which kernels, in which stages, into which views.

Spark runs a DataFrame that is used twice twice, with its state. So everything that a pipeline does with a topic is one
*feed*, every kernel of one depth is hosted by one *stage*, and what a stage does not know passes through it.

Expressions are computed at the feed wherever that gives the same: below a join too, unless a row without a partner would
have another value there. The rest is computed where rows leave a kernel, and what is left for a view by Spark at the end.
An expression that can fail takes the conditions that are written before it along, as its guard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from millstream.plan import spec as specs
from millstream.plan.chain import (
    ADMIT,
    DRIVER,
    ORIGIN,
    Asked,
    Chain,
    Computed,
    Feed,
    Operator,
    Output,
    Port,
    ViewPlan,
    WindowBound,
)
from millstream.plan.fuse import fuse
from millstream.plan.operators import hold_until_close
from millstream.plan.operators.clauses import micros
from millstream.plan.operators.contract import Laid
from millstream.plan.pushdown import pushed
from millstream.plan.select_kernel import OneInput, bounds, lay, lay_join
from millstream.plan.spec import Changelog, JoinSpec, Spec, TableJoin
from millstream.plan.watermarks import clocked
from millstream.relation import expression
from millstream.relation.nodes import (
    META_COLUMNS,
    Aggregate,
    Deduplicate,
    Emit,
    Explode,
    Join,
    MapGroups,
    Named,
    Node,
    Over,
    Select,
    Source,
    Top,
    Tumbling,
    Union,
    Where,
    Windowed,
    inputs_of,
    output_columns,
)
from millstream.relation.predicate import is_arithmetic, kinds_of, never_fails, never_null

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


def build_chain(views: Sequence[ViewPlan], *, buckets: int, to: str, tasks: int = 1) -> Chain:
    """Lay all views of a pipeline onto one chain; what two of them share is there once.

    ``to`` is where the side tables of late events go. ``tasks`` is how many tasks a stage will have.
    """
    return clocked(fuse(_Builder(buckets, tasks).build(pushed(views), to)))


@dataclass
class _Bounds:
    """The bounds of windows side by side, by the expressions that they are, wherever these go."""

    known: dict[str, WindowBound] = field(default_factory=dict)

    def follow(self, sql: str, columns: Mapping[str, str]) -> str:
        """Put expressions in the place of columns, and know the bounds in it as they are then."""
        for each in [each for text, each in self.known.items() if text in sql]:
            moved = each.over(columns)
            self.known[moved.expression] = moved
        return expression.substitute(sql, columns)


Guard: TypeAlias = tuple[str, ...]
"""Conditions under which an expression is asked for, in the order in which they are written."""

_Wanted: TypeAlias = dict[tuple[str, Guard], str]


@dataclass
class _Maker:
    """Who makes rows: a feed, or an operator whose ports are still being found."""

    number: int
    stage: int
    source: Source | None = None
    """Set for a feed."""
    feed: _Maker | None = None
    """Where expressions over its rows are computed: at the feed, before any kernel. None after an aggregate or a join."""
    sides: _Sides | None = None
    """Set for a join."""
    spec: Spec | None = None
    inputs: tuple[int, ...] = ()
    key: tuple[str, ...] = ()
    expressions: dict[tuple[str, str], Asked] = field(default_factory=dict)
    """Of a feed: by text and guard."""
    ports: list[Port] = field(default_factory=list)
    retract: bool = False
    insert_only: bool = False
    hold: tuple[int | None, ...] = ()

    def column(self, sql: str, guard: Guard = (), written: str = "") -> str | None:
        """The column that holds this expression where the guard is true; None if it must be computed from the columns there are."""
        if self.feed is not None:
            return self.feed.ask(sql, guard, written or sql).name
        return self.sides.column(sql, guard) if self.sides is not None else expression.plain_column(sql)

    def ask(self, sql: str, guard: Guard, written: str) -> Asked:
        """An expression of a feed: the same for all who ask for it under the same guard, or for one that cannot fail."""
        assert self.source is not None  # noqa: S101
        total = never_fails(sql, kinds_of(self.source))
        condition = "" if total else never_null(guard)
        name = f"_c{len(self.expressions)}"
        return self.expressions.setdefault((sql, condition), Asked(name, sql, condition, written, total))

    def value(self, sql: str) -> str:
        """The expression over columns as they are called here."""
        if self.sides is None:
            return sql
        names = {name: self.sides.column(expression.quote(name)) for name in sorted(self.sides.used(sql))}
        return self.sides.windows.follow(sql, {name: column for name, column in names.items() if column})


@dataclass(frozen=True)
class _Rows:
    """Rows on their way up a relation: who makes them, what each column is there, which rows count."""

    maker: _Maker
    columns: Mapping[str, str]
    where: tuple[str, ...] = ()

    @property
    def condition(self) -> str:
        """All conditions as one that is never null."""
        return never_null(self.where)


@dataclass(frozen=True)
class _Sides:
    """The two sides of a join, and what is wanted of each: expressions there, and their names in the join's rows."""

    node: Join
    rows: tuple[_Rows, _Rows]
    windows: _Bounds
    wanted: tuple[_Wanted, _Wanted] = field(default_factory=lambda: ({}, {}))

    def used(self, sql: str) -> frozenset[str]:
        """The columns of the join that an expression uses."""
        return expression.check(sql, output_columns(self.node), "expression")

    def below(self, sql: str, only: int | None = None) -> tuple[int, str] | None:
        """The side on which an expression can be computed, and the expression there; None if on neither."""
        used = self.used(sql)
        for side, (rows, null) in enumerate(zip(self.rows, self.node.nullable, strict=True)):
            if only not in (None, side):
                continue
            columns = {name: rows.columns[name] for name in output_columns((self.node.left, self.node.right)[side])}
            for each in self.node.on:
                columns = {name: text for name, text in columns.items() if name.lower() != each.name.lower()}
                if each.name and not null:
                    here = expression.substitute((each.left, each.right)[side], rows.columns)
                    columns[each.name] = here
            if used <= columns.keys() and not (null and expression.plain_column(sql) is None):
                return side, self.windows.follow(sql, columns)
        return None

    def key(self, sql: str) -> str | None:
        """The key of the join that an expression is."""
        name = (expression.plain_column(sql) or "").lower()
        return next(
            (f"_k{index}" for index, each in enumerate(self.node.on) if name and each.name.lower() == name), None
        )

    def guarded(self, sql: str, side: int, guard: Guard) -> tuple[Guard, bool]:
        """What of a guard a side can tell, for an expression there; and whether that is all of it."""
        kinds, there, whole = kinds_of(self.node), [], True
        if never_fails(sql, kinds):
            return (), True
        for each in guard:
            found = self.below(each, side)
            if found is not None and (whole or never_fails(each, kinds)):
                there.append(found[1])
            else:
                whole = False
        return tuple(there), whole

    def column(self, sql: str, guard: Guard = ()) -> str | None:
        """The column of the join that holds an expression, asking the side for it.

        Where that side cannot tell all of the guard, the expression is computed after the join, if it can be computed there.
        """
        found = self.below(sql)
        if (key := self.key(sql)) is not None or found is None:
            return key
        side, text = found
        there, whole = self.guarded(sql, side, guard)
        if not whole and is_arithmetic(sql, kinds_of(self.node)):
            return None
        wanted = self.wanted[side]
        return wanted.setdefault((text, there), f"_{'lr'[side]}{len(wanted)}")

    def holds(self, sql: str, guard: Guard = ()) -> bool:
        """Whether an expression can be a column of the join."""
        found = self.below(sql)
        return self.key(sql) is not None or (found is not None and self.guarded(sql, found[0], guard)[1])


class _Builder:
    def __init__(self, buckets: int, tasks: int) -> None:
        self.buckets, self.tasks = buckets, tasks
        self.makers: list[_Maker] = []
        self.known: dict[tuple[Node, str], _Maker] = {}
        self.outputs: list[Output] = []
        self.windows = _Bounds()

    def build(self, views: Sequence[ViewPlan], to: str) -> Chain:
        # By name: state goes by these numbers, and views may change places in the file.
        for view in sorted(views, key=lambda each: each.name):
            self._view(view)
        for maker in self.makers:
            if maker.source and maker.source.time and maker.source.time.late == "route":
                self._late_view(maker, maker.source, to)
        for maker in reversed(self.makers):  # whoever takes rows comes after who makes them, and has said what it wants
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
                    2 if maker.sides else 1,
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

    def _asked(self, feed: _Maker) -> tuple[Asked, ...]:
        """What is asked of a feed, with the bounds of windows that are among it."""
        return tuple(
            replace(each, window=self.windows.known.get(each.expression)) for each in feed.expressions.values()
        )

    def _make(self, node: Node, role: str, stage: int) -> _Maker:
        maker = self.known[node, role] = _Maker(len(self.makers), stage)
        self.makers.append(maker)
        return maker

    # from the source upwards

    def _rows(self, node: Node, emit: Emit, as_said: bool = False, early: bool = False) -> _Rows:
        """The rows of a relation; ``as_said`` those of a table as its records say them, before any replaces another.

        ``early`` those of windows that are still open too: who takes them waits for the end itself.
        """
        match node:
            case Source():
                maker = self._feed(node) if node.kind == "stream" or as_said else self._changelog(node)
                columns = {name: expression.quote(name) for name in (*output_columns(node), *META_COLUMNS)}
                if node.time is not None and node.time.said:
                    columns[node.time.column] = node.time.said
                return _Rows(maker, columns)
            case Where():
                rows = self._rows(node.input, emit, as_said, early)
                return replace(rows, where=(*rows.where, expression.substitute(node.condition, rows.columns)))
            case Select():
                rows = self._rows(node.input, emit, as_said, early)
                columns = {each.name: expression.substitute(each.expression, rows.columns) for each in node.columns}
                return replace(rows, columns=columns)
            case Aggregate() | Over() | Top() | Deduplicate() | Union() | Explode() | MapGroups():
                columns = {name: expression.quote(name) for name in output_columns(node)}
                return _Rows(self._operator(node, emit), columns)
            case Windowed():
                rows = self._windows(node, emit)
                if emit == "changes" or early:
                    return rows
                maker = self.known.get((node, "hold")) or self._kernel(
                    node, "hold", emit, hold_until_close.lay(node), (node,), (rows,)
                )
                return _Rows(maker, {name: expression.quote(name) for name in output_columns(node)})
            case Join():
                return _Rows(self._join(node, emit), {name: expression.quote(name) for name in output_columns(node)})

    def _feed(self, source: Source) -> _Maker:
        maker = self.known.get((source, "feed"))
        if maker is None:
            maker = self._make(source, "feed", ADMIT)
            maker.source = source
            maker.feed, maker.insert_only = maker, source.kind == "stream"
        return maker

    def _changelog(self, source: Source) -> _Maker:
        maker = self.known.get((source, "changelog"))
        if maker is None:
            feed = self._feed(source)
            maker = self._make(source, "changelog", ADMIT + 1)
            maker.feed, maker.inputs, maker.key = feed, (feed.number,), source.key
            maker.spec = Changelog(source.key, ())
        return maker

    def _windows(self, node: Windowed, emit: Emit) -> _Rows:
        """The rows of windows, as they come: side by side those are two more columns, others are rows of their own."""
        if not isinstance(node.window, Tumbling):
            columns = {name: expression.quote(name) for name in output_columns(node)}
            return _Rows(self._operator(node, emit), columns)
        rows = self._rows(node.input, emit)
        columns = {name: rows.columns[name] for name in output_columns(node.input)}
        for each in bounds(node.window, columns[node.window.column]):
            self.windows.known[each.expression] = each
            columns[each.name] = each.expression
        return replace(rows, columns=columns)

    def _operator(self, node: OneInput, emit: Emit) -> _Maker:
        """A kernel with one input; several relations may flow into it."""
        known = self.known.get((node, emit))
        if known is not None:
            return known
        below = inputs_of(node)
        early = isinstance(node, Top) and node.windows_below() is not None
        inputs = [self._rows(each, emit, early=early) for each in below]
        laid = lay(node, emit, all(rows.maker.insert_only for rows in inputs))
        return self._kernel(node, emit, emit, laid, below, inputs)

    def _kernel(
        self, node: Node, role: str, emit: Emit, laid: Laid, below: Sequence[Node], inputs: Sequence[_Rows]
    ) -> _Maker:
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
            rows.maker.retract = True  # what is taken back must be said: an aggregate cannot look it up
        return maker

    def _join(self, node: Join, emit: Emit) -> _Maker:
        known = self.known.get((node, emit))
        if known is not None:
            return known
        left = self._rows(node.left, emit)
        right = self._rows(node.right, emit, as_said=bool(node.as_of))
        maker = self._make(node, emit, max(left.maker.stage, right.maker.stage) + 1)
        maker.inputs, maker.sides = (left.maker.number, right.maker.number), _Sides(node, (left, right), self.windows)
        maker.key, maker.insert_only = node.natural_key(), node.is_insert_only(emit)
        left.maker.retract = right.maker.retract = True
        insert_only = left.maker.insert_only and right.maker.insert_only
        maker.spec, maker.hold = lay_join(node, insert_only)  # its columns are known at the end
        return maker

    def _feed_join(self, maker: _Maker, sides: _Sides) -> None:
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

    def _connect(
        self, rows: _Rows, port: Port, wanted: Mapping[str, str], guards: Mapping[str, Guard] | None = None
    ) -> None:
        """Add a port to whoever makes these rows; ``guards`` are conditions for single columns, besides those for all of them."""
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

    def _feed_changelog(self, maker: _Maker) -> None:
        """Let the table's feed send the kernel what all its readers want: computed there, kept in the kernel's state."""
        feed = maker.feed
        assert feed is not None  # noqa: S101
        values = {here for port in maker.ports for _, here in port.columns} | {
            port.keep for port in maker.ports if port.keep
        }
        kept = tuple(sorted(values, key=lambda name: int(name[2:])))
        maker.spec = Changelog(maker.key, kept)
        port = Port(maker.stage, maker.number, (), None, maker.key, self.buckets, tasks=self.tasks)
        self._connect(_Rows(feed, {}), port, {name: expression.quote(name) for name in maker.key})
        feed.ports[-1] = replace(feed.ports[-1], columns=(*feed.ports[-1].columns, *((name, name) for name in kept)))

    # views

    def _view(self, view: ViewPlan) -> None:
        rows = self._rows(view.node, view.emit)
        maker = rows.maker
        names = output_columns(view.node)
        number = len(self.outputs)
        key = {rows.columns[name] for name in view.key}
        if maker.source is None and (rows.where or not key or key != set(maker.key)):
            maker.retract = True  # a store that has another key must be told what to remove
        port = Port(DRIVER, number, ())
        texts = [rows.columns[name] for name in names]
        sides = maker.sides
        if maker.feed is None and not (sides and _held(sides, texts, rows)):
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

    def _late_view(self, maker: _Maker, source: Source, to: str) -> None:
        """The side table of a stream with ``late="route"``: every column of what came too late."""
        names = output_columns(source)
        number = len(self.outputs)
        port = Port(DRIVER, number, (), late=True)
        self._connect(_Rows(maker, {}), port, {name: expression.quote(name) for name in names})
        select = tuple(Named(name, name) for name in names)
        # What came too late is a dead letter already, and its side table has no definition to say otherwise.
        self.outputs.append(Output(number, f"{source.name}_late", to, names, select, (), (), True, "dead_letter"))


def _held(sides: _Sides, texts: Sequence[str], rows: _Rows) -> bool:
    """Whether all that a view wants of a join can be columns of it."""
    return all(sides.holds(text, rows.where) for text in texts) and (not rows.where or sides.holds(rows.condition))
