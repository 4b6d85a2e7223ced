"""Windows in time, keys of ``group_by``: ``window.tumbling("at", "1 minute")``.

They are over a stream's event time. Processing time is event time too, of a stream with ``time="_append_time"``: it is recorded in the
log, so it replays. What they need of the relation below is checked where they meet it (:mod:`millstream.relation.window`).
"""

from __future__ import annotations

from datetime import timedelta

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.nodes import Hopping, Session, Sliding, Tumbling
from millstream.relation.schema import format_duration, parse_duration
from millstream.relation.source_location import here, placed

__all__ = ["hopping", "session", "sliding", "tumbling"]

MOST_HOPS = 1_000
"""Windows that one event may be in."""


def tumbling(column: str, size: str | timedelta) -> Tumbling:
    """Windows of one size side by side, aligned to the epoch, for ``group_by``.

    :param column: the event time of the stream
    :param size: how long a window is
    :raises PlanError: if it is no duration above zero

    >>> tumbling("at", "1 minute")
    Tumbling(column='at', size=datetime.timedelta(seconds=60))
    """
    with placed(here()):
        return Tumbling(_column(column, "tumbling"), _above_zero(size, "size", "tumbling"))


def hopping(column: str, size: str | timedelta, every: str | timedelta) -> Hopping:
    """Windows of one size, of which one starts ``every`` so often, aligned to the epoch, for ``group_by``.

    An event is in every window that contains it.

    :param column: the event time of the stream
    :param size: how long a window is
    :param every: how far apart windows start
    :raises PlanError: if these are no such durations

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

    :param column: the event time of the stream
    :param gap: how long nothing must come for a session to end
    :raises PlanError: if it is no duration above zero

    >>> session("at", "30 minutes").gap.total_seconds()
    1800.0
    """
    with placed(here()):
        return Session(_column(column, "session"), _above_zero(gap, "gap", "session"))


def sliding(column: str, size: str | timedelta) -> Sliding:
    """For each event the window of this size that ends with it, for ``group_by``: one row for each event.

    The window holds the events of the same key in [time − size, time], both ends included.

    :param column: the event time of the stream
    :param size: how long a window is
    :raises PlanError: if it is no duration above zero

    >>> sliding("at", "1 hour").size.total_seconds()
    3600.0
    """
    with placed(here()):
        return Sliding(_column(column, "sliding"), _above_zero(size, "size", "sliding"))


def _column(column: str, what: str) -> str:
    if not isinstance(column, str) or (name := expression.plain_column(column)) is None:
        raise PlanError(f"{what}: expected the stream's time column; found {column!r}")
    return name


def _above_zero(given: str | timedelta, name: str, what: str) -> timedelta:
    length = parse_duration(given)
    if not length:
        raise PlanError(f"{what}: expected a {name} above zero; found {given!r}")
    return length
