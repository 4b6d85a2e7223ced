"""Windows in time: what they need of the relation below."""

from __future__ import annotations

from dataclasses import replace

from millstream.errors import PlanError
from millstream.relation.nodes import Aggregate, Join, Node, Select, Top, Where, Window, Windowed, source_of
from millstream.relation.properties import event_time, is_stream


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
            f"{what}: {wanted} is not possible behind a full join: its rows have the time of one side or of the other",
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
            hint=f'windows need event time: window.{type(window).__name__.lower()}("{below}", …)',
        )
    return replace(window, column=below)
