"""A trial of a pipeline: feed rows, let time go on, crash, look at the views. No broker, no Spark, milliseconds.

What runs is :mod:`millstream.local.engine`: the log, chain, admission, kernels and stores of a real run, in a folder that goes
when the trial ends. Time is the trial's own: it stands at the newest event so far, and goes on only by what is fed and said.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import polars as pl

from millstream.codec import Avro, Codec, Json, Text
from millstream.errors import PipelineError
from millstream.event import Event, to_millis
from millstream.failpoint import armed
from millstream.framed import Confluent, frame
from millstream.load import load_pipeline
from millstream.local.engine import Engine
from millstream.pipeline import Pipeline
from millstream.plan.build import Output
from millstream.registry import Registry
from millstream.relation import expression
from millstream.relation.nodes import Source, source_of
from millstream.relation.schema import parse_duration
from millstream.store import open_reader
from millstream.store.contract import COUNTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"timestamp_seconds": 1_000_000, "timestamp_millis": 1000, "timestamp_micros": 1}
_MOST = 1_000_000

Row = Mapping[str, Any]


class Trial:
    """A pipeline, or the one of a file, on trial. Without ``spark``, what only Spark can compute is NeedsSpark.

    >>> from millstream import Pipeline
    >>> shop = Pipeline("shop")
    >>> clicks = shop.stream("clicks", "page string, at timestamp", time="at")
    >>> view = shop.view("pages", clicks.group_by("page").agg(n="count(*)"))
    >>> with Trial(shop) as trial:
    ...     trial.feed("clicks", [{"page": "/", "at": "2026-01-31T12:00:00Z"}])
    ...     trial.rows("pages")
    [{'page': '/', 'n': 1}]
    """

    def __init__(
        self, pipeline: Pipeline | str | Path, *, partitions: int = 1, spark: SparkSession | None = None
    ) -> None:
        self.pipeline = pipeline if isinstance(pipeline, Pipeline) else load_pipeline(pipeline)
        self._now = _EPOCH
        self._changes = 0
        self._open = False
        self._crash_at: str | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="millstream-trial-"))
        try:
            self._engine = Engine(self.pipeline, self._folder, partitions, self._clock, spark)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._before = self._after = self._everything()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the trial and delete its files."""
        self._engine.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """The address of the trial's own log, with everything that was fed."""
        return self._engine.log.url

    # what comes in

    def feed(self, source: str, rows: Iterable[Row | bytes | str | Event], *, at: str | datetime | None = None) -> None:
        """Append ``rows`` to a stream or a table, the ``source`` of that name, and run a batch.

        A row is a mapping of columns; bytes and text are values as they are, and an :class:`~millstream.Event` is a whole record.
        ``at`` is when they are appended, and their own timestamp, from which a table's change holds for a join as of a time.
        Without it that is the newest event time so far, theirs included.
        """
        found, rows = self._source(source), list(rows)
        times = [time for row in rows if (time := _event_time(found, row))]
        moment = max([self._now, *times]) if at is None else _time(at)
        events = [row if isinstance(row, Event) else self._event(found, row, moment) for row in rows]
        self._now = max(self._now, moment)
        self._engine.log.append(found.topic, [event if event.time else event._replace(time=moment) for event in events])
        self._run()

    def delete(self, table: str, keys: Iterable[Row], *, at: str | datetime | None = None) -> None:
        """Append tombstones to ``table``: the rows of these ``keys``, mappings of the key columns, go. ``at`` is as in :meth:`feed`.

        Where the table is of change envelopes, the envelope of a delete comes before each.
        """
        source = self._source(table)
        if source.kind != "table":
            raise PipelineError(f"stream {table}: its events are facts and stay", hint="delete rows of a table")
        events = []
        for key in keys:
            if source.in_envelopes:
                events.append(
                    Event(
                        self._envelope("d", {name: _utc(key.get(name)) for name in source.key}, at), _key(source, key)
                    )
                )
            events.append(Event(None, _key(source, key)))
        self.feed(table, events, at=at)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Make everything that is fed inside one batch."""
        self._open = True
        try:
            yield
        finally:
            self._open = False
        self._run()

    # time

    def advance(self, by: str | timedelta | None = None, *, to: str | datetime | None = None) -> None:
        """Let event time go on ``by`` a span or ``to`` a time in every partition of every stream, as if an event had come; windows close by it."""
        if (by is None) == (to is None):
            raise PipelineError("advance: expected either a span or to=TIME", hint='advance("1 minute")')
        self._now = max(self._now, self._now + parse_duration(by) if by is not None else _time(to or ""))
        for feed in self._engine.chain.feeds:
            if feed.source.time is not None:
                moment = (self._now - feed.source.time.delay - _EPOCH) // timedelta(microseconds=1)
                self._engine.say(feed.source.topic, moment)
        self._run()

    def close(self) -> None:
        """End all time, as ``run --close`` does: every window closes, and what comes later is late."""
        self._engine.heartbeats.close()
        self._run()

    def crash(self, at: str | None = None) -> None:
        """Lose everything that is not stored, and go on from what is.

        Now; or ``at`` a place within the next batch, which is then begun again: ``run.before_delivery``, ``store.before_write``,
        ``store.before_commit``, ``store.after_commit``, ``run.after_delivery``.
        """
        if at is not None:
            self._crash_at = at
            return
        self._engine.stop()
        self._engine.start()

    # what comes out

    def rows(self, view: str) -> list[dict[str, Any]]:
        """The rows of a view: in the order of its key, else of the log, else of all columns."""
        output = self._output(view)
        with open_reader(output.to) as store:
            frame = pl.DataFrame(store.table(view)).select(each.name for each in output.select)
        if not output.key and not output.append:
            nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
            frame = frame.sort([name for name in frame.columns if name not in nested] + nested)
        return _dicts(frame)

    def changes(self, view: str) -> list[tuple[str, dict[str, Any]]]:
        """What the last batch did to a view: rows that went, as ``("-", row)``, then rows that came, as ``("+", row)``."""
        self._output(view)
        before, after = self._before[view], self._after[view]
        return [("-", row) for row in _without(before, after)] + [("+", row) for row in _without(after, before)]

    def rejected(self, source: str) -> list[dict[str, Any]]:
        """The dead letters of the stream or table ``source``, oldest first: partition, offset, time, append_time, reason, detail."""
        topic = self._source(source).topic
        with open_reader(self._engine.chain.outputs[0].to) as store:
            found = _dicts(pl.DataFrame(store.dead_letters(self.pipeline.name, limit=_MOST)))
        letters = [row for row in found if row["topic"] == topic]
        dropped = ("pipeline", "batch", "topic")
        return [
            {name: value for name, value in row.items() if name not in dropped}
            for row in sorted(letters, key=lambda row: (row["batch"], row["partition"], row["offset"]))
        ]

    def counts(self, source: str) -> dict[str, int]:
        """What became of the records of the stream or table ``source``: records, admitted, late, duplicate, future, malformed, wild, heartbeats."""
        topic = self._source(source).topic
        with open_reader(self._engine.chain.outputs[0].to) as store:
            found = _dicts(pl.DataFrame(store.admission(self.pipeline.name)))
        mine = [row for row in found if row["topic"] == topic]
        return {name: sum(row[name] for row in mine) for name in COUNTED}

    # how

    def _clock(self) -> int:
        """The log's clock, in milliseconds; rounded up, because no event is appended before it happens."""
        return to_millis(self._now + timedelta(microseconds=999))

    def _run(self) -> None:
        if self._open:
            return
        self._before = self._after
        place, self._crash_at = self._crash_at, None
        if place is None:
            self._engine.step()
        else:
            try:
                with armed(place):
                    self._engine.step()
            except RuntimeError as error:
                if str(error) != f"failpoint {place}":
                    raise
                self.crash()
            else:
                raise PipelineError(f"the batch never came to {place!r}, where it was to crash")
        self._after = self._everything()

    def _source(self, name: str) -> Source:
        for relations in (self.pipeline.streams, self.pipeline.tables):
            if name in relations:
                source = source_of(relations[name].node)
                assert isinstance(source, Source)  # noqa: S101
                return source
        known = ", ".join((*self.pipeline.streams, *self.pipeline.tables))
        raise PipelineError(f"pipeline {self.pipeline.name} has no stream or table {name!r}; it has {known}")

    def _event(self, source: Source, row: Row | bytes | str, moment: datetime) -> Event:
        if isinstance(row, bytes | str):
            return Event(row.encode() if isinstance(row, str) else row)
        names = {column.name for column in source.columns}
        if unknown := sorted(set(row) - names):
            raise PipelineError(
                f"{source.kind} {source.name}: a row has {unknown[0]!r}, which is not among {', '.join(sorted(names))}",
                hint="feed bytes to send a value as it is",
            )
        row = {name: _utc(value) for name, value in row.items()}
        if source.in_envelopes:
            return Event(self._envelope("u", row, moment), _key(source, row))
        value = _codec(source).encode(row[source.columns[0].name] if source.codec == "text" else row)
        return Event(frame(0, value) if source.codec == "confluent-json" else value, _key(source, row))

    def _envelope(self, op: str, row: Row, at: str | datetime | None) -> bytes:
        """A change as Debezium writes it for PostgreSQL, each at a place of its own in the database's log."""
        self._changes += 1
        moment = self._now if at is None else _time(at)
        said = {"connector": "postgresql", "lsn": self._changes, "ts_ms": to_millis(moment)}
        before, after = (row, None) if op == "d" else (None, row)
        return Json().encode({"before": before, "after": after, "op": op, "source": said, "ts_ms": to_millis(moment)})

    def _output(self, view: str) -> Output:
        for output in self._engine.chain.outputs:
            if output.name == view:
                return output
        known = ", ".join(output.name for output in self._engine.chain.outputs)
        raise PipelineError(f"pipeline {self.pipeline.name} has no view {view!r}; it has {known}")

    def _everything(self) -> dict[str, list[dict[str, Any]]]:
        return {output.name: self.rows(output.name) for output in self._engine.chain.outputs}


def _codec(source: Source) -> Codec:
    if source.codec == "confluent-avro" and source.subject is not None:
        at = source.subject
        schema = msgspec.json.decode(source.avro_schema)
        return Confluent(Registry(at.url, user=at.user, password=at.password), at.name, schema)
    if source.codec == "avro":
        return Avro(msgspec.json.decode(source.avro_schema))
    return Text() if source.codec == "text" else Json()


def _key(source: Source, row: Row) -> bytes | None:
    """The key of a record: the text of its key column, or a JSON object of several, or of one whose text could be read as JSON."""
    found = {name: _utc(row.get(name)) for name in source.key}
    if not found or None in found.values():
        return None
    (value, *others) = found.values()
    if others or (isinstance(value, str) and value[:1] in ("{", '"')):
        return msgspec.json.encode(found)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _event_time(source: Source, row: Row | bytes | str | Event) -> datetime | None:
    """When a row says that it happened, if it does."""
    try:
        value = row.value if isinstance(row, Event) else row
        found = msgspec.json.decode(value) if isinstance(value, bytes | str) else value
        if source.time is not None and source.time.said:
            return _from_epoch(source.time.said, found)
        return _time(found[source.time.column])  # type: ignore[index,union-attr]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _from_epoch(said: str, row: Any) -> datetime | None:
    """The time that a number of a row means, where the time is just that."""
    call = expression.call_of(said, "time")
    if call is None or call[0] not in _UNITS or (column := expression.plain_column(call[1][0])) is None:
        return None
    return _EPOCH + timedelta(microseconds=row[column] * _UNITS[call[0]])


def _time(value: str | datetime) -> datetime:
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def _dicts(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [{name: _utc(value) for name, value in row.items()} for row in frame.iter_rows(named=True)]


def _without(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are not among the others; as often as they are there more often."""
    left = Counter(map(repr, others))
    found = []
    for row in rows:
        if left[repr(row)]:
            left[repr(row)] -= 1
        else:
            found.append(row)
    return found
