"""Whether a log keeps the history that views are made from, looked at before a run starts.

An as-of join asks a table for what it said at the time of an event, and stored queries are met as they were then. As long as the stream keeps the event, a replay asks again, so
the table's topic must keep every change at least as long: one that was compacted, or that expired, would be answered otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from millstream.errors import PipelineError
from millstream.log.contract import Log, TopicSettings
from millstream.relation.nodes import History, Join, Node, Percolate, inputs_of, sources_of
from millstream.relation.schema import format_duration

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}


class _What(NamedTuple):
    """What asks a table for what it said at a time, and what could be done without."""

    name: str
    otherwise: str


_AS_OF = _What("a join as of a time", ", or latest=True for the table as it is")
_QUERIES = _What("stored queries of an event's time", "")


def check_history(views: Mapping[str, Any], log: Log) -> None:
    """Refuse views whose as-of joins could not be replayed, naming view, topic and what to do."""
    for name, view in views.items():
        for join in _as_of_joins(view.node):
            events, asked = join.input_nodes()
            what = _QUERIES if isinstance(join, Percolate) else _AS_OF
            (table,) = sources_of(asked)
            settings = log.topic(table.topic).settings
            for stream in sources_of(events):
                if stream.kind == "stream":
                    _check(
                        f"view {name}: {join.place}",
                        what,
                        table.topic,
                        settings,
                        stream.topic,
                        log.topic(stream.topic).settings,
                    )
        for made in _histories(view.node):
            (table,) = sources_of(made)
            _check_whole(f"view {name}: {made.place}", table.topic, log.topic(table.topic).settings)


def keeps_events(settings: TopicSettings) -> timedelta | None:
    """How old a record may be and still be read; None for any age. A size says nothing of ages, so it counts for nothing here."""
    return settings.retention if settings.expires else None


def keeps_changes(settings: TopicSettings) -> timedelta | None:
    """How far back every change of every key is there for sure; None for all of them."""
    ends = [settings.compaction_lag] if settings.compacts else []
    if settings.expires:
        ends += [timedelta(0)] if settings.retention_bytes is not None else []
        ends += [settings.retention] if settings.retention is not None else []
    return min(ends, default=None)


def _as_of_joins(node: Node) -> Iterator[Join | Percolate]:
    if isinstance(node, Percolate) or (isinstance(node, Join) and node.as_of is not None):
        yield node
    for each in inputs_of(node):
        yield from _as_of_joins(each)


def _histories(node: Node) -> Iterator[History]:
    if isinstance(node, History):
        yield node
    for each in inputs_of(node):
        yield from _histories(each)


def _check_whole(where: str, table: str, settings: TopicSettings) -> None:
    """Refuse a history of a table whose topic does not keep every change."""
    changes = keeps_changes(settings)
    if changes is None:
        return
    how = f"only {format_duration(changes)} of changes" if changes else "no changes for sure"
    raise PipelineError(
        f"{where}: a history needs every change of the table: topic {table}"
        f" {'is compacted and' if settings.compacts else 'expires and'} keeps {how}",
        hint=f"`millstream topics alter {table} {_mended(settings, None)}`, before changes are gone",
    )


def _check(where: str, what: _What, table: str, settings: TopicSettings, stream: str, of_stream: TopicSettings) -> None:
    changes, events = keeps_changes(settings), keeps_events(of_stream)
    if changes is None or (events is not None and events <= changes):
        return
    kept = f"for {format_duration(events)}" if events is not None else "for ever"
    how = f"only {format_duration(changes)} of changes" if changes else "no changes for sure"
    why = "is compacted and" if settings.compacts else "expires by size and" if settings.retention_bytes else ""
    raise PipelineError(
        f"{where}: {what.name} could not be replayed: topic {stream} keeps events {kept}, and topic {table}"
        f" {f'{why} ' if why else ''}keeps {how}",
        hint=f"`millstream topics alter {table} {_mended(settings, events)}`{what.otherwise}",
    )


def _mended(settings: TopicSettings, events: timedelta | None) -> str:
    """The options that make a table's topic keep its changes for so long."""
    if events is None:
        options = ["--cleanup delete"] if settings.compacts else []
        options += ["--retention none"] if settings.retention is not None else []
    else:
        short = settings.expires and settings.retention is not None and settings.retention < events
        options = [f"--compaction-lag {_flag(events)}"] if settings.compacts else []
        options += [f"--retention {_flag(events)}"] if short else []
    options += ["--retention-bytes 0"] if settings.retention_bytes is not None else []
    return " ".join(options)


def _flag(span: timedelta) -> str:
    """A duration as the command line reads it."""
    unit = next((name for name, size in _UNITS.items() if not span % size), "ms")
    return f"{span // _UNITS.get(unit, timedelta(milliseconds=1))}{unit}"
