"""A batch that was planned and that nobody has is planned again: by smaller limits, if it was too large to be done.

Stores refuse what a process that was left behind still writes, by its fence. Sinks know numbers only: so each is sealed first, which
needs one that keeps numbers and has nothing of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from millstream.relation.sinks import SinkDefinition
from millstream.runtime.offset_log import drop_plan, unwritten
from millstream.runtime.sink_dispatch import Patience
from millstream.runtime.sink_marks import EPOCH, Marks
from millstream.sink import Sink
from millstream.store import Entry


def unplan(
    folder: Path,
    lasts: Mapping[str, Entry | None],
    sinks: Mapping[str, tuple[SinkDefinition, Sink]],
    epoch: int,
    fresh: int,
    patience: Patience,
) -> str:
    """Forget a planned batch that neither a store (``lasts``) nor a sink has anything of; why not, if there is one that stays.

    ``epoch`` is that of the checkpoint, ``fresh`` one above all that was sent.
    """
    marks = {name: Marks(folder, name, epoch) for name in sinks}
    numbers = {name: patience.call(f"sink {name}", sink.last) for name, (_, sink) in sinks.items()}
    for name in sinks:
        marks[name].settle(numbers[name])
    planned = unwritten(folder, lasts)
    if planned is None:
        return ""
    stays = f"batch {planned}, which stays as it was planned, whatever the limits are now: sink "
    for name, (wanted, _) in sinks.items():
        if wanted.mode != "exactly_once":
            return f"{stays}{name} gets batches {wanted.mode.replace('_', ' ')}, so nobody knows what it has of it"
        if (numbers[name] or 0) >= marks[name].number(planned):
            return f"{stays}{name} has it"
        if (marks[name].acknowledged(marks[name].number(planned)) or 0) > (numbers[name] or 0):
            return f"{stays}{name} lacks what it acknowledged, and gets that first"
    for name, (_, sink) in sinks.items():
        above = max(fresh, marks[name].epoch + 1)
        marks[name].seal(above)
        sealing = partial(sink.seal, above << EPOCH, after=numbers[name])
        if not patience.call(f"sink {name}", sealing):
            return f"{stays}{name} has a part of it"
        marks[name].settle(above << EPOCH)
    drop_plan(folder, planned)
    return ""
