"""Pipelines, their sources and views as a notebook shows them: small HTML tables of what is defined and what is there now.

No JVM is started and nothing is made. What is not there yet, or cannot be read, is shown as a message in its place. All
text is escaped: what stands in a record is data, never markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape as as_html
from typing import Any, Protocol

from millstream.errors import MillstreamError, UnknownView
from millstream.event import Record
from millstream.log import Log, open_log
from millstream.log.capabilities import capabilities_of
from millstream.log.heartbeat import read_heartbeat
from millstream.printable import printable
from millstream.relation.nodes import Emit, Node, Source, sources_of
from millstream.relation.schema import format_duration
from millstream.store import StoreReader, open_reader
from millstream.store.contract import ViewInfo
from millstream.store.identifier import quote

_ROWS = 10
_RECORDS = 5
_LONGEST = 120
_LOOKS = 3


class Viewed(Protocol):
    """What is asked of a view; :class:`~millstream.view.View` is one."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def node(self) -> Node:
        """Its plan."""

    @property
    def to(self) -> str:
        """Where it is kept, or at least its pipeline's ledger."""

    @property
    def kept(self) -> bool:
        """Whether it is."""

    def refuse_unkept(self) -> None:
        """Say that there are no rows to read, if it is not."""

    @property
    def emit(self) -> Emit:
        """When its rows appear."""

    @property
    def key(self) -> tuple[str, ...]:
        """What tells its rows apart."""

    @property
    def pipeline(self) -> str:
        """Whose it is."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns."""


def pipeline_html(name: str, sources: Iterable[Source], views: Iterable[Viewed]) -> str:
    """A pipeline: its sources, and its views with what is stored of them."""
    inputs = [
        (each.name, each.kind, each.topic, _columns(each), each.time.column if each.time else "") for each in sources
    ]
    outputs = []
    for view in views:
        found = _stored(view)
        kept = (f"{found.rows:,}", found.batch) if isinstance(found, ViewInfo) else (found, "")
        outputs.append((view.name, ", ".join(view.key), ", ".join(view.columns), view.emit, *kept))
    return "".join(
        (
            _title("Pipeline", name),
            _table(("source", "kind", "topic", "columns", "time"), inputs, "no streams or tables yet"),
            _table(("view", "key", "columns", "emit", "rows", "batch"), outputs, "no views yet"),
        )
    )


def view_html(view: Viewed) -> str:
    """A view: the first rows of what is stored, as of which batch and up to which watermark."""
    head = _title("View", view.name, f"of pipeline {view.pipeline}, {f'in {view.to}' if view.kept else 'kept nowhere'}")
    try:
        view.refuse_unkept()
        with open_reader(view.to) as store:
            for _ in range(_LOOKS):  # until all that is shown is of one batch
                info, rows, mark = _look(store, view)
                if _find(store, view) == info:
                    break
    except MillstreamError as error:
        return head + _trouble(error)
    shown = f"the first {len(rows)} of {info.rows:,} rows" if info.rows > len(rows) else f"{info.rows:,} rows"
    facts = [shown, "no batch yet" if info.batch is None else f"as of batch {info.batch}"]
    if info.updated is not None:
        facts.append(f"committed {_text(info.updated)}")
    if mark is not None:
        facts.append(f"watermark {_text(mark)}")
    return head + _note(", ".join(facts)) + _table([name for name, _ in info.columns], rows, "no rows")


def relation_html(node: Node, columns: Sequence[str], text: str, log: str, kafka: Mapping[str, str]) -> str:
    """A relation: of a source its columns, time and last records, of anything else how it is made."""
    if not isinstance(node, Source):
        return _title("Relation", ", ".join(columns)) + f"<pre>{escape(text)}</pre>"
    title = _title("Table" if node.kind == "table" else "Stream", node.name, f"topic {node.topic} in {log}")
    facts = [f"codec {node.codec}"]
    if node.key:
        facts.append(f"key {', '.join(node.key)}")
    if node.time is not None:
        facts.append(f"time {node.time.column}, delay {format_duration(node.time.delay)}")
    schema = _table([column.name for column in node.all_columns], [[column.written for column in node.all_columns]], "")
    return title + _note("; ".join(facts)) + schema + _last_records(node, log, kafka)


def _last_records(source: Source, log: str, kafka: Mapping[str, str]) -> str:
    try:
        if not capabilities_of(log).local_file:  # a broker may be long in answering
            return _note(f"its records: millstream consume {source.topic} --log {log}")
        with open_log(log, create=False, kafka=kafka) as opened:
            count, records = _newest(opened, source.topic)
    except MillstreamError as error:
        return _trouble(error)
    rows = [(r.partition, r.offset, r.time, _plain(r.key), _plain(r.value)) for r in records]
    title = _note(f"the last {len(rows)} of {count:,} records") if rows else ""
    return title + _table(("partition", "offset", "time", "key", "value"), rows, "no records yet")


def _newest(log: Log, topic: str) -> tuple[int, list[Record]]:
    found: list[Record] = []
    count = 0
    for partition, bound in log.bounds(topic).items():
        count += bound.end - bound.start
        found += log.read(topic, partition, max(bound.start, bound.end - _RECORDS), _RECORDS)
    real = [record for record in found if not read_heartbeat(record.key, record.value)]
    return count, sorted(real, key=lambda record: (record.appended, record.offset), reverse=True)[:_RECORDS]


def _stored(view: Viewed) -> ViewInfo | str:
    if not view.kept:
        return "kept nowhere"
    try:
        with open_reader(view.to) as store:
            return _find(store, view)
    except MillstreamError:
        return "none yet"


def _find(store: StoreReader, view: Viewed) -> ViewInfo:
    for info in store.views():
        if info.name == view.name and info.pipeline == view.pipeline:
            return info
    raise UnknownView(f"no view {view.name} of pipeline {view.pipeline} yet", hint="`millstream run FILE` makes it")


def _look(store: StoreReader, view: Viewed) -> tuple[ViewInfo, Sequence[Sequence[Any]], datetime | None]:
    info = _find(store, view)
    names = ", ".join(quote(name) for name, _ in info.columns)
    order = f" ORDER BY {', '.join(map(quote, info.key))}" if info.key else ""
    rows = store.query(f"SELECT {names} FROM {quote(view.name)}{order} LIMIT {_ROWS}").rows
    topics = {source.topic for source in sources_of(view.node) if source.time is not None}
    marks = [row["watermark"] for row in store.admission(view.pipeline).to_pylist() if row["topic"] in topics]
    return info, rows, min(marks) if marks and None not in marks else None


def _columns(source: Source) -> str:
    return ", ".join(f"{column.name} {column.written}" for column in source.all_columns)


def _plain(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def escape(text: str) -> str:
    """Text for HTML: no markup, and nothing that a reader obeys."""
    return as_html(printable(text, lines=True))


def _title(kind: str, name: str, more: str = "") -> str:
    return f"<div><b>{escape(kind)} {escape(name)}</b> {escape(more)}</div>"


def _note(text: str) -> str:
    return f"<div><small>{escape(text)}</small></div>"


def _trouble(error: MillstreamError) -> str:
    return _note(f"{error.message}; {error.hint}" if error.hint else error.message)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> str:
    if not rows:
        return _note(empty)
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    text = value.isoformat(" ", "seconds") if isinstance(value, datetime) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
