"""A query by itself: answered from the log as it is, or followed as the log grows. Nothing is written but temporary files.

It is a view of a pipeline of its own, of which nothing is kept. What needs no Spark is computed in this process, at once, if the
log is not long; the rest by Spark, which then stays.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from millstream.errors import MillstreamError, NeedsSpark
from millstream.explain.explain import explain
from millstream.explain.report import Explanation
from millstream.kernel.exchange.collect import unpack
from millstream.kernel.state.store import Memory
from millstream.log import Log, open_log
from millstream.log.embedded.engine import SqliteLog
from millstream.pipeline import Pipeline
from millstream.plan.build import ORIGIN, ViewPlan, build_chain
from millstream.relation.expression import plain_column
from millstream.relation.nodes import Emit, Node, Select, Source, Top, sources_of
from millstream.relation.relation import Relation
from millstream.shell.rejected import LETTERS, VERDICTS, Rejected
from millstream.sink.function import Change
from millstream.store import open_reader
from millstream.store.contract import WEIGHT
from millstream.store.net_changes import net_by_row
from millstream.view import View

MOST = 100_000
"""Records that are read without Spark, at most, for an answer or at the beginning of a follow."""
_RESULT = "query"
_PAUSE = 0.1

Signed = tuple[str, dict[str, Any]]
"""A change: ``+`` or ``-``, and the row."""


class Query:
    """One query over a pipeline's relations. ``spark`` lets Spark compute it whatever it is; ``starting`` is around its start."""

    def __init__(
        self,
        pipeline: Pipeline,
        relation: Relation,
        emit: Emit = "changes",
        *,
        spark: bool = False,
        starting: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.pipeline = copy(pipeline)
        self.pipeline.name = "sql"
        self.pipeline.to = "sqlite::memory:"
        self.pipeline.views, self.pipeline.sinks = {}, {}
        self.view: View = self.pipeline.view(_RESULT, relation, emit=emit, unbounded=True)
        self._spark, self._starting = spark, starting
        self.rejected = Rejected()

    @property
    def sources(self) -> tuple[Source, ...]:
        """The streams and tables that it reads."""
        return sources_of(self.view.node)

    def answer(self) -> pl.DataFrame:
        """All rows, as the log is now."""
        with open_log(self.pipeline.log, create=False, kafka=self.pipeline.kafka) as log:
            try:
                changes = self._here(log).step(self.rejected)
            except NeedsSpark:
                changes = self._by_spark(log)
        frame = _sorted(changes.filter(pl.col(WEIGHT) > 0), self.view)
        return frame.select(pl.exclude(WEIGHT).repeat_by(WEIGHT).explode()) if frame.height else frame.drop(WEIGHT)

    def types(self) -> pa.Schema | None:
        """Its columns with their types, if they are known without Spark."""
        chain = self._chain()
        with suppress(NeedsSpark):
            return (
                _local(self.pipeline.name, chain, {feed.source.topic: 1 for feed in chain.feeds})
                .targets[_RESULT]
                .schema
            )
        return None

    def explained(self) -> Explanation:
        """What is computed for it and what that keeps; its rows are kept nowhere."""
        shown = copy(self.pipeline)
        shown.views = {_RESULT: replace(self.view, kept=False)}
        return explain(shown)

    def follow(self, told: Callable[[Sequence[Signed]], None], stop: threading.Event) -> None:
        """Tell what is there, then every change, until ``stop`` is set; each time what goes before what comes.

        If a record comes that only Spark can read, Spark begins again, with what is there.
        """
        try:
            with open_log(self.pipeline.log, create=False, kafka=self.pipeline.kafka) as log:
                here, signed = self._here(log), _Told(self.view)
                while not stop.is_set():
                    if here.behind():
                        told(signed.frame(here.step(self.rejected)))
                    else:
                        stop.wait(_PAUSE)
        except NeedsSpark:
            self._follow_by_spark(told, stop)

    def _chain(self) -> Any:
        view = self.view
        return build_chain(
            [ViewPlan(view.name, view.node, view.to, view.emit, view.key)],
            buckets=1,
            to=self.pipeline.to,
            functions=self.pipeline.udf.all,
        )

    def _here(self, log: Log) -> _Here:
        if self._spark or not isinstance(log, SqliteLog):
            raise NeedsSpark("not computed without Spark")
        return _Here(self.pipeline.name, self._chain(), log)

    def _session(self) -> Any:
        """Spark, started if it is not there; again if the one that is there lacks what this query needs."""
        from millstream.errors import SparkError
        from millstream.runtime.setup import session_for
        from millstream.spark.session import stop_session

        with self._starting():
            try:
                return session_for(self.pipeline, self._chain(), None)
            except SparkError:
                if not stop_session():
                    raise
                return session_for(self.pipeline, self._chain(), None)

    def _by_spark(self, log: Log) -> pl.DataFrame:
        from millstream.runtime.batch import compute, range_of

        start, end = range_of(log, self._chain(), None, None)
        computed = compute(self._session(), self.pipeline, start, end, shortened=True)
        self.rejected.reset()
        self.rejected.add(computed.arrived)
        return net_by_row(pl.DataFrame(computed.changes[_RESULT]))

    def _follow_by_spark(self, told: Callable[[Sequence[Signed]], None], stop: threading.Event) -> None:
        from millstream.runtime.run import run

        signed = _Told(self.view)

        def changed(changes: Sequence[Change]) -> None:
            rows = [{name: each.row[name] for name in self.view.columns if name in each.row} for each in changes]
            told(signed.changes([(row, each.weight) for row, each in zip(rows, changes, strict=True)]))

        with self._folder():
            self.pipeline.sink(_RESULT, self.view, changed)
            self._session()
            done = run(self.pipeline, heartbeats=False, stop=stop)
            self.rejected.reset(done.records, {each: getattr(done, each) for each in VERDICTS})
            with open_reader(self.pipeline.to) as store:
                self.rejected.letters = store.dead_letters(limit=LETTERS).to_pylist()[::-1]

    @contextmanager
    def _folder(self) -> Iterator[None]:
        """A folder for what a run keeps; it goes with the group that shows the run's progress in the log."""
        with tempfile.TemporaryDirectory(prefix="millstream-sql-", ignore_cleanup_errors=True) as folder:
            self.pipeline.to = f"sqlite:{Path(folder) / 'views.db'}"
            self.pipeline.checkpoint = str(Path(folder) / "checkpoint")
            self.pipeline.name = f"sql-{uuid.uuid4().hex[:12]}"  # others may be following as well
            self.view = replace(self.view, to=self.pipeline.to, pipeline=self.pipeline.name)
            self.pipeline.views, self.pipeline.sinks = {_RESULT: self.view}, {}
            try:
                yield
            finally:
                with (
                    suppress(MillstreamError),
                    open_log(self.pipeline.log, create=False, kafka=self.pipeline.kafka) as log,
                ):
                    log.delete_group(self.pipeline.name)


class _Here:
    """A chain over the log, in this process, that remembers how far it is."""

    def __init__(self, name: str, chain: Any, log: Log) -> None:
        self._log, self._topics = log, [feed.source.topic for feed in chain.feeds]
        bounds = {topic: log.bounds(topic) for topic in self._topics}
        self._local = _local(name, chain, {topic: len(found) for topic, found in bounds.items()})
        self._done = {topic: {p: bound.start for p, bound in found.items()} for topic, found in bounds.items()}
        self._stores: defaultdict[tuple[int, int, int], Memory] = defaultdict(Memory)
        count = sum(bound.end - bound.start for found in bounds.values() for bound in found.values())
        if count > MOST:
            raise NeedsSpark(f"{count:,} records are read by Spark")

    def _ends(self) -> dict[str, dict[int, int]]:
        bounds = {topic: self._log.bounds(topic) for topic in self._topics}
        return {topic: {p: bounds[topic][p].end for p in done} for topic, done in self._done.items()}

    def behind(self) -> bool:
        """Whether the log has more."""
        return self._ends() != self._done

    def step(self, rejected: Rejected) -> pl.DataFrame:
        """What the records since the last step change, with weights; what is kept out is counted."""
        from millstream.runtime.delivery import finish

        ends = self._ends()
        arrived = unpack(self._local.chain, self._local.run(self._log, self._done, ends, self._stores))
        self._done = ends
        rejected.add(arrived)
        (output,) = (each for each in self._local.chain.outputs if each.name == _RESULT)
        schema = self._local.targets[_RESULT].schema
        rows = arrived.changes.get(_RESULT)
        if rows is None:
            return pl.DataFrame(schema.empty_table().append_column(WEIGHT, pa.array([], pa.int64())))
        return net_by_row(pl.DataFrame(finish(None, output, rows, schema)))


def _local(name: str, chain: Any, partitions: dict[str, int]) -> Any:
    from millstream.local.batch import Local

    return Local(name, chain, partitions)


def _sorted(changes: pl.DataFrame, view: View) -> pl.DataFrame:
    """A query's own columns, in the order that it names, else of its key, else of the log."""
    order: list[tuple[str, bool]] = [(name, False) for name in view.key or ORIGIN if name in changes.columns]
    node: Node = view.node
    while isinstance(node, Select):
        node = node.input
    if isinstance(node, Top):
        named = [(plain_column(each.expression), each.descending) for each in node.order]
        order = [(name, down) for name, down in named if name in changes.columns] + order
    if order:
        names, down = zip(*order, strict=True)
        changes = changes.sort(names, descending=list(down), nulls_last=list(down), maintain_order=True)
    return changes.select(*view.columns, WEIGHT)


class _Told:
    """Changes as they are printed. Of a view with a key only the new row of each key is printed, so the one before is kept here."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def frame(self, changes: pl.DataFrame) -> list[Signed]:
        """What a step in this process changes."""
        rows = _sorted(changes, self._view).to_dicts()
        return self.changes([(row, row.pop(WEIGHT)) for row in rows])

    def changes(self, changes: Sequence[tuple[dict[str, Any], int]]) -> list[Signed]:
        """Rows with weights: as often as they went, then as often as they came."""
        gone: list[Signed] = []
        came: list[Signed] = []
        for row, weight in sorted(changes, key=lambda change: change[1] > 0):
            before: dict[str, Any] | None = None
            if self._view.key:
                key = tuple(repr(row[name]) for name in self._view.key)
                before = self._known.pop(key, None)
                if weight > 0:
                    self._known[key] = row
            elif weight < 0:
                before = row
            if before is not None and before != (row if weight > 0 else None):
                gone += [("-", before)] * (1 if self._view.key else -weight)
            if weight > 0 and before != row:
                came += [("+", row)] * weight
        return gone + came
