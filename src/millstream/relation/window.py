"""Windows in time and frames of rows: how they are said, and what they need of the relation below.

Windows are over a stream's event time. Processing time is event time too, of a stream with ``time="_append_time"``: it is
recorded in the log, so it replays.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.nodes import (
    Aggregate,
    Frame,
    Hopping,
    Join,
    Node,
    Select,
    Session,
    Sliding,
    Top,
    Tumbling,
    Where,
    Window,
    Windowed,
    source_of,
)
from millstream.relation.properties import event_time, is_stream
from millstream.relation.schema import format_duration, parse_duration
from millstream.relation.source_location import here, placed

MOST_HOPS = 1_000
"""Windows that one event may be in."""


def tumbling(column: str, size: str | timedelta) -> Tumbling:
    """Windows of one size side by side, aligned to the epoch, for ``group_by``.

    >>> tumbling("at", "1 minute")
    Tumbling(column='at', size=datetime.timedelta(seconds=60))
    """
    with placed(here()):
        return Tumbling(_column(column, "tumbling"), _above_zero(size, "size", "tumbling"))


def hopping(column: str, size: str | timedelta, every: str | timedelta) -> Hopping:
    """Windows of one size, of which one starts ``every`` so often, aligned to the epoch, for ``group_by``.

    An event is in every window that contains it.

    >>> hopping("at", size="5 minutes", every="1 minute").every
    datetime.timedelta(seconds=60)
    """
    with placed(here()):
        made = Hopping(
            _column(column, "hopping"), _above_zero(size, "size", "hopping"), _above_zero(every, "every", "hopping")
        )
        if made.every > made.size:
            raise PlanError(
                f"hopping: every {format_duration(made.every)} a window of {format_duration(made.size)} leaves events out",
                hint="every must not be above size",
            )
        if made.size > MOST_HOPS * made.every:
            raise PlanError(f"hopping: an event would be in more than {MOST_HOPS:,} windows", hint="a larger every")
        return made


def session(column: str, gap: str | timedelta) -> Session:
    """Windows that last as long as events are at most ``gap`` apart, for ``group_by``.

    A session ends one gap after its last event. An event between two sessions makes them one.
    """
    with placed(here()):
        return Session(_column(column, "session"), _above_zero(gap, "gap", "session"))


def sliding(column: str, size: str | timedelta) -> Sliding:
    """For each event the window of this size that ends with it, for ``group_by``: one row for each event.

    The window holds the events of the same key in [time − size, time], both ends included.
    """
    with placed(here()):
        return Sliding(_column(column, "sliding"), _above_zero(size, "size", "sliding"))


def rows(before: int | None = None, after: int | None = 0) -> Frame:
    """The frame of a row with so many rows before and after it, for ``over``; None means all there are.

    >>> rows(2)
    Frame(kind='rows', before=2, after=0)
    """
    with placed(here()):
        for each in (before, after):
            if each is not None and (isinstance(each, bool) or not isinstance(each, int) or each < 0):
                raise PlanError(f"rows: expected how many rows, or None for all; found {each!r}")
    return Frame("rows", before, after)


def span(before: str | timedelta | int | None = None, after: str | timedelta | int | None = 0) -> Frame:
    """The frame of the rows whose order is at most so far away from that of a row, for ``over``; None means any far.

    A distance is a duration where the order is a time, else a whole number. Rows of equal order are in it.

    >>> span("1 second")
    Frame(kind='range', before=1000000, after=0)
    """
    with placed(here()):
        return Frame("range", _distance(before), _distance(after))


def _distance(given: str | timedelta | int | None) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    if isinstance(given, str | timedelta):
        return parse_duration(given) // timedelta(microseconds=1)
    raise PlanError(f"span: expected a duration, a whole number or None for any far; found {given!r}")


def _column(column: str, what: str) -> str:
    if not isinstance(column, str) or (name := expression.plain_column(column)) is None:
        raise PlanError(f"{what}: expected the stream's time column; found {column!r}")
    return name


def _above_zero(given: str | timedelta, name: str, what: str) -> timedelta:
    length = parse_duration(given)
    if not length:
        raise PlanError(f"{what}: expected a {name} above zero; found {given!r}")
    return length


def describe_window(window: Window) -> str:
    """A window as one says it."""
    match window:
        case Tumbling() | Sliding():
            return f"{type(window).__name__.lower()}({window.column}, {format_duration(window.size)})"
        case Hopping():
            every = format_duration(window.every)
            return f"hopping({window.column}, {format_duration(window.size)}, every {every})"
        case Session():
            return f"session({window.column}, {format_duration(window.gap)})"


def checked_window(window: Window, node: Node, what: str = "group_by") -> Window:
    """The window over a relation, with the spelling of its event time; refused where there is none."""
    source, below = source_of(node), event_time(node)
    bottom = node
    while isinstance(bottom, Where | Select):
        bottom = bottom.input
    wanted = f"a window over {window.column}"
    if isinstance(bottom, Aggregate):
        raise PlanError(
            f"{what}: {wanted} on top of an aggregate; expected a window over a stream",
            hint="group by window_start and window_end of the aggregate below",
        )
    if isinstance(bottom, Windowed):
        raise PlanError(
            f"{what}: {wanted} of rows that are of windows already: when they come depends on those",
            hint="group by window_start and window_end",
        )
    if isinstance(bottom, Top):
        raise PlanError(
            f"{what}: {wanted} of the first rows of {source.name}, which others may take the place of; expected a stream",
            hint=f'deduplicate("id", within="1 day") keeps the first of each id by event time, and is a stream with {window.column}',
        )
    if not is_stream(node):
        raise PlanError(f"{what}: {wanted} of table {source.name}; tables have no windows, only streams do")
    if isinstance(bottom, Join) and bottom.regular:
        raise PlanError(
            f"{what}: {wanted} behind a join of all rows, which may appear at any time after those they are made of",
            hint="a join within=, as_of= or latest=True has an event time; or let the windows come before the join",
        )
    if source.time is None:
        raise PlanError(
            f"{what}: {wanted}, but stream {source.name} has no event time",
            hint=f'windows need event time: stream("{source.name}", …, time="{window.column}")',
        )
    if below is None and isinstance(bottom, Join) and bottom.how == "full":
        raise PlanError(
            f"{what}: {wanted} behind a full join, whose rows have the time of one side or of the other",
            hint='how="left" has the time of the left, how="right" that of the right',
        )
    if below is None:
        raise PlanError(
            f"{what}: {wanted}, but a select has left out or changed the event time {source.time.column}",
            hint=f'keep it as it is: select("{source.time.column}", …)',
        )
    if window.column.lower() != below.lower():
        raise PlanError(
            f"{what}: {wanted}; expected {below}, which is the event time of stream {source.name}",
            hint=f'windows need event time: {type(window).__name__.lower()}("{below}", …)',
        )
    return replace(window, column=below)
