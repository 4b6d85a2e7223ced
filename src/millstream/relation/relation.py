"""Relations: what a pipeline's author holds and builds views from.

A relation is a node of the plan and nothing else, so building one runs nothing, and each method gives a new one. Whatever does
not hold together is refused here, in the line that says it: every error begins with the place in the user's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.foreign_names import SparkHow, attribute_error, meant_relation
from millstream.relation.grouped import Grouped, Neighbours
from millstream.relation.join import Within, called, join
from millstream.relation.nodes import (
    WINDOW_COLUMNS,
    Aggregate,
    Frame,
    Hopping,
    How,
    Named,
    Node,
    Select,
    Ties,
    Tumbling,
    Where,
    Window,
    Windowed,
)
from millstream.relation.operators import (
    deduplicate,
    explode,
    history,
    map_batches,
    map_groups,
    match,
    percolate,
    top,
    union,
    unpivot,
)
from millstream.relation.operators.checks import as_list, check_names, named_column
from millstream.relation.operators.contract import written
from millstream.relation.pattern import Shown
from millstream.relation.pattern_search import sought
from millstream.relation.properties import visible
from millstream.relation.source_location import here, placed
from millstream.relation.window import checked_window


@dataclass(frozen=True, slots=True, repr=False)
class Relation:
    """A stream, a table, or what was made of one; two that say the same are equal.

    :param node: the node of the plan
    :param name: what a join's equalities may call it; a source's own name unless :meth:`alias` says otherwise
    :raises PlanError: by its methods, with file and line, if something does not hold together

    >>> from millstream import Pipeline
    >>> clicks = Pipeline("shop").stream("clicks", "page string, ms long")
    >>> clicks.where("ms > 100").group_by("page").agg(n="count(*)", slowest="max(ms)").columns
    ('page', 'n', 'slowest')
    """

    node: Node
    name: str = field(default="", compare=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return self.node.output_columns()

    def where(self, condition: str) -> Relation:
        """Keep the rows for which a Spark SQL condition is true."""
        place = here()
        with placed(place):
            expression.check(condition, visible(self.node), "where")
        return replace(self, node=Where(self.node, condition, place))

    def select(self, *columns: str) -> Relation:
        """Give each row these columns: ``"page"``, ``"amount * 2 AS twice"``, or ``"*"`` for those there are."""
        place = here()
        with placed(place):
            if not columns:
                raise PlanError("select: expected at least one column; found none")
            named: list[Named] = []
            for text in columns:
                if isinstance(text, str) and text.strip() == "*":
                    named += [Named(name, expression.quote(name)) for name in self.columns]
                else:
                    named.append(named_column(text, self.node, "select"))
            check_names([each.name for each in named], "select")
        return replace(self, node=Select(self.node, tuple(named), place))

    def group_by(self, *keys: str | Window) -> Grouped:
        """Gather rows with equal keys, and of one window if there is one; ``.agg`` says what to make of them.

        Keys are columns or expressions with a name. Without any, all rows are one group.
        """
        place = here()
        with placed(place):
            windows = [key for key in keys if isinstance(key, Window)]
            if len(windows) > 1:
                raise PlanError(f"group_by: expected at most one window; found {len(windows)}")
            named = tuple(named_column(key, self.node, "group_by") for key in keys if not isinstance(key, Window))
            check_names([key.name for key in named], "group_by")
            window = checked_window(windows[0], self.node) if windows else None
            if window and (taken := [key.name for key in named if key.name.lower() in WINDOW_COLUMNS]):
                raise PlanError(f"group_by: {taken[0]} is a column of the window already")
        return Grouped(self.node, named, window)

    def windowed(self, window: Tumbling | Hopping) -> Relation:
        """Give each row ``window_start`` and ``window_end``, once for every window that holds it: ``tumbling`` or ``hopping``.

        What is made of them per window, by ``top``, ``over``, a join or a group, is forgotten when the window is over. With
        ``emit="final"`` they count when it closes. They have no event time any more: when they come depends on their window.
        """
        place = here()
        with placed(place):
            if not isinstance(window, Tumbling | Hopping):
                raise PlanError(
                    f"windowed: expected windows that are the same for all rows, window.tumbling(…) or window.hopping(…); found {window!r}",
                    hint="sessions and sliding windows are for group_by",
                )
            made = Windowed(self.node, checked_window(window, self.node, "windowed"), place)  # type: ignore[arg-type]
            check_names(list(made.output_columns()), "windowed")
        return Relation(made)

    def distinct(self) -> Relation:
        """Keep one of rows that are equal in all columns."""
        keys = tuple(Named(name, expression.quote(name)) for name in self.columns)
        return Relation(Aggregate(self.node, keys, None, (), here()))

    def top(self, count: int, by: str, per: str | Sequence[str] | None = None, *, ties: Ties | None = None) -> Relation:
        """Keep the first rows in an order, ``"n DESC, page"``, of each group with equal ``per``.

        Ties are broken by the whole row. One more than there is room for is left out, also if it is equal. With
        ``ties="rank"`` or ``"dense_rank"`` rows of equal order have one rank, as in SQL, and all of rank up to ``count`` stay.
        """
        place = here()
        with placed(place):
            return Relation(top.top(self.node, count, by, per, ties, place))

    def deduplicate(self, ids: str | Sequence[str], within: str | timedelta | None = None) -> Relation:
        """Keep, of rows with one id, the first by event time, and no other that is at most ``within`` after it (None: ever).

        :param ids: the columns or expressions that tell repeats
        :param within: how long a repeat is looked for
        """
        place = here()
        with placed(place):
            return Relation(deduplicate.deduplicate(self.node, ids, within, place))

    def union(self, *others: Relation) -> Relation:
        """All rows of relations with the same columns; equal ones as often as they are there (``distinct`` for once).

        :param others: the relations whose rows are added
        """
        place = here()
        with placed(place):
            if wrong := [each for each in others if not isinstance(each, Relation)]:
                raise PlanError(f"union: expected relations; found {wrong[0]!r}", hint=meant_relation(wrong[0]))
            return Relation(union.union((self.node, *(each.node for each in others)), place))

    def explode(self, array: str, as_: str) -> Relation:
        """Give each row once for each element of an array, the element as one more column; none for an empty array or null.

        :param array: a column or an expression that is an array
        :param as_: the name of the element's column
        """
        place = here()
        with placed(place):
            made = explode.explode(self.node, array, as_, place)
            check_names([*self.columns, as_], "explode")
        return Relation(made)

    def unpivot(
        self,
        ids: str | Sequence[str],
        values: str | Sequence[str] | None,
        variableColumnName: str,  # noqa: N803  # as in PySpark
        valueColumnName: str,  # noqa: N803
    ) -> Relation:
        """Give each row once for each of several columns: the ids, the name of the column, its value; a null is one too.

        As in PySpark, except that the value columns must be of one type, without a cast; expressions with a name are taken as well.

        :param ids: the columns that each of these rows has
        :param values: the columns that become rows; None for all that are no ids
        :param variableColumnName: the name of the column with their names
        :param valueColumnName: the name of the column with their values

        >>> from millstream import Pipeline
        >>> rooms = Pipeline("home").table("rooms", "id long, day double, night double", key="id")
        >>> rooms.unpivot("id", None, "part", "degrees").columns
        ('id', 'part', 'degrees')
        """
        place = here()
        with placed(place):
            return Relation(unpivot.unpivot(self.node, ids, values, variableColumnName, valueColumnName, place))

    def history(self) -> Relation:
        """Give every row that a table has had, with ``valid_from`` and ``valid_to``, which is null of the row that holds now (SCD 2).

        A row holds from the timestamp of its record until that of the next record of its key. The spans of a key do not overlap: a
        record that claims to be older than the one before it takes over where that one did, and a row that held for no time is left out.
        The topic must keep every change: one that is compacted, or expires, is refused when the pipeline runs.

        >>> from millstream import Pipeline
        >>> Pipeline("shop").table("users", "id long, city string", key="id").history().columns
        ('id', 'city', 'valid_from', 'valid_to')
        """
        place = here()
        with placed(place):
            return Relation(history.history(self.node, place))

    def map_groups(self, function: Callable[[Any], Any], key: str | Sequence[str], schema: str) -> Relation:
        """Give what a function makes of all rows of each key: a Polars frame in, one with the columns of ``schema`` out.

        The result has the key's columns before those. The function is asked again whenever a key's rows change, and must give
        the same answer each time: streamed = batch depends on it.
        """
        place = here()
        with placed(place):
            keys = tuple(named_column(text, self.node, "map_groups") for text in as_list(key))
            made = map_groups.map_groups(self.node, function, keys, schema, place)
            check_names(list(made.output_columns()), "map_groups")
        return Relation(made)

    def map_batches(self, function: Callable[[Iterator[Any]], Iterable[Any]], schema: str) -> Relation:
        """Give what a function makes of each row: Arrow batches in, Arrow batches with the columns of ``schema`` out, as in ``mapInArrow``.

        Of each row it may make any number, which must depend on this row alone and be the same each time: how rows are cut into
        batches is not fixed, and a row that is taken back is given to it again. The event time stays one if ``schema`` has its column,
        a timestamp, and the function leaves it as it is.

        :param function: a function of an iterator of ``pyarrow.RecordBatch`` that gives such batches
        :param schema: the columns of what it gives, ``"page string, n long"``
        """
        place = here()
        with placed(place):
            made = map_batches.map_batches(self.node, function, schema, place)
            check_names(list(made.output_columns()), "map_batches")
        return Relation(made)

    def over(
        self, partition: str | Sequence[str] | None = None, order: str | None = None, frame: Frame | None = None
    ) -> Neighbours:
        """Look at each row among those of equal ``partition``, in an order; ``.add`` says what to make of it.

        An aggregate is over the ``frame``, ``frame.rows(…)`` or ``frame.span(…)``; without one over all rows up to this one and its peers,
        without an order over all.
        """
        return Neighbours(self.node, partition, order, frame)

    def match(
        self,
        pattern: str,
        define: Mapping[str, str] | None = None,
        measures: Mapping[str, str] | None = None,
        *,
        partition: str | Sequence[str] | None = None,
        order: str | None = None,
        rows: Shown = "one",
        skip: str = "past last row",
        within: str | timedelta | None = None,
        subset: Mapping[str, Sequence[str]] | None = None,
        near: bool = False,
        name: str = "match",
    ) -> Relation:
        """Find rows in a pattern, ``"A B+ C"``, among those of equal ``partition``, in an order: SQL's ``MATCH_RECOGNIZE``.

        One row for each match: the partition's columns and the measures. Of several matches that begin with one row the pattern says
        which is preferred, and the next search begins behind it.

        :param define: of each variable the condition that a row of it meets; without one any row does
        :param measures: what is told of a match, over its rows: ``LAST(A.at)``, ``count(B.*)``, ``MATCH_ID()``
        :param rows: ``"all"`` for a row for each row of a match, ``"all_with_empty"`` and ``"all_with_unmatched"`` for more
        :param skip: where the next search begins: ``"past last row"``, ``"to next row"``, ``"to first A"`` or ``"to last A"``
        :param within: how long a match may be, from its first row to its last, exclusive
        :param subset: names for several variables together
        :param near: whether the beginning of a match that ran out of time is told too, with the variable that it came to as ``stage``
        :param name: what errors call the pattern; a part of ``MATCH_ID()``

        >>> from millstream import Pipeline
        >>> ticks = Pipeline("shop").stream("ticks", "symbol string, price double, at timestamp", time="at")
        >>> fall = {"DOWN": "price < PREV(price)"}
        >>> ticks.match("UP DOWN+", fall, {"low": "LAST(DOWN.price)"}, partition="symbol", order="at").columns
        ('symbol', 'low')
        """
        place = here()
        with placed(place):
            said = sought(
                pattern, define, measures, rows=rows, skip=skip, within=within, subset=subset, near=near, name=name
            )
            return Relation(match.match(self.node, (said,), partition, order, place))

    def match_any(
        self, patterns: Mapping[str, Any], *, partition: str | Sequence[str] | None = None, order: str = ""
    ) -> Relation:
        """Search for several patterns in one pass over the rows; ``pattern`` is the column with the name of the one that was found.

        :param patterns: by their names arguments of :meth:`match`; their measures have the same names and types
        :param partition: the columns by which rows belong together
        :param order: in which order

        >>> from millstream import Pipeline
        >>> ticks = Pipeline("shop").stream("ticks", "price double, at timestamp", time="at")
        >>> fall = {"pattern": "A B", "define": {"B": "price < PREV(price)"}, "measures": {"to": "B.price"}}
        >>> ticks.match_any({"fall": fall}, order="at").columns
        ('pattern', 'to')
        """
        place = here()
        with placed(place):
            return Relation(match.match_any(self.node, patterns, partition, order, place))

    def percolate(self, queries: Relation, condition: str, columns: str | None = None) -> Relation:
        """Give each event with each stored query that it meets: the event's columns, then the query's but for its condition.

        Queries are rows of a table. Each has a text like ``price > 100 AND city IN ('Oslo', 'Rome') AND contains_words(title, 'red shoes')``, and holds from the
        timestamp of its record until the next one of its key. A late one corrects what was said of events that are remembered. One that cannot be read is a dead letter.

        :param queries: a table that is a topic, or what ``where`` and ``select`` make of one
        :param condition: its column with the conditions
        :param columns: the events' columns that a condition may use, with their types; by default all whose type is known

        >>> from millstream import Pipeline
        >>> shop = Pipeline("shop")
        >>> offers = shop.stream("offers", "price double, city string, at timestamp", time="at")
        >>> alerts = shop.table("alerts", "alert string, condition string", key="alert")
        >>> offers.percolate(alerts, "condition").columns
        ('price', 'city', 'at', 'alert')
        """
        place = here()
        with placed(place):
            if not isinstance(queries, Relation):
                raise PlanError(f"percolate: expected a relation; found {queries!r}", hint=meant_relation(queries))
            return Relation(percolate.percolate(self.node, queries.node, condition, columns, place))

    def alias(self, name: str) -> Relation:
        """Give it a name for the equalities of a join: ``a.alias("l").join(b.alias("r"), on="l.id = r.id")``."""
        with placed(here()):
            if not isinstance(name, str) or not name.isidentifier():
                raise PlanError(f"alias: expected a name of letters, digits and _; found {name!r}")
        return replace(self, name=name)

    def join(
        self,
        other: Relation,
        on: str | Sequence[str],
        how: How | SparkHow = "inner",
        *,
        within: Within | None = None,
        as_of: str | None = None,
        latest: bool = False,
    ) -> Relation:
        """Pair its rows with those of another relation where ``on`` holds: equalities joined by AND, or names that both have.

        Of two streams ``within`` is the least and the greatest of right time − left time (one duration: both ways). Of a stream
        and a table ``as_of``, the stream's time, takes the table as it was then, and ``latest=True`` the table as it is when the
        event is processed, which no replay repeats. Without these all rows of both sides are kept: fit for two tables (an
        aggregate is one); a view of streams must say ``unbounded=True``.

        :param other: the relation on the right
        :param on: equalities, or names that both have
        :param how: ``"inner"``, ``"left"``, ``"right"``, ``"full"``, ``"semi"`` or ``"anti"``; Spark's other names for them are taken too
        :param within: the bounds of right time − left time
        :param as_of: the stream's time
        :param latest: whether the table is taken as it is
        :raises PlanError: if they cannot be joined so
        """
        place = here()
        with placed(place):
            if not isinstance(other, Relation):
                raise PlanError(f"join: expected a relation; found {other!r}", hint=meant_relation(other))
            names = called(self.node, self.name), called(other.node, other.name)
            made = join(self.node, other.node, names, on, how, within, as_of, latest, place)
        return Relation(made)

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is called otherwise here."""
            raise attribute_error(name, () if name.startswith("_") or name in ("node", "name") else self.columns)

    def __getitem__(self, name: Any) -> NoReturn:
        """Say that expressions are text."""
        raise PlanError(
            f"{here()}: a relation has no [{name!r}]", hint='expressions are text: select("user"), where("n > 1")'
        )

    def __str__(self) -> str:
        return written(self.node)

    def __repr__(self) -> str:
        return f"<Relation\n{self}\n>"
