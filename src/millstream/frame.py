"""Frames of rows around a row, for ``over``: ``frame.rows(2)``, ``frame.span("1 second")``."""

from __future__ import annotations

from datetime import timedelta

from millstream.errors import PlanError
from millstream.relation.nodes import Frame
from millstream.relation.schema import parse_duration
from millstream.relation.source_location import here, placed

__all__ = ["rows", "span"]


def rows(before: int | None = None, after: int | None = 0) -> Frame:
    """The frame of a row with so many rows before and after it, for ``over``; None means all there are.

    :param before: how many rows before
    :param after: how many rows after
    :raises PlanError: if these are no whole numbers

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

    :param before: how far before
    :param after: how far after
    :raises PlanError: if these are no distances

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
