"""Sending: the changes of a batch go to the sinks of their views, before the stores commit it.

A batch that comes again is the same batch, so what a sink has already it does not take twice; and only when every sink has it
does the ledger say that it is done. A sink that does not answer is tried again, less and less often: nothing is kept but the
batch at hand, and the log waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl
import pyarrow as pa

from millstream.errors import (
    CheckpointMismatch,
    LogFailed,
    LogFull,
    LogUnavailable,
    RowRefused,
    SinkForgot,
    SinkUnavailable,
    ViewStoreFailed,
    ViewStoreUnavailable,
)
from millstream.failpoint import failpoint
from millstream.relation.sinks import SinkDefinition
from millstream.runtime.offset_log import newest_planned
from millstream.runtime.sink_marks import EPOCH, Marks
from millstream.sink import ChangeSet, Sink
from millstream.sink.contract import check_remembered
from millstream.store.contract import REJECTS, WEIGHT, Refusal, Target
from millstream.store.net_changes import PLACE, Net, net_by_key, net_by_row, net_of, one_zero

UNAVAILABLE = (LogUnavailable, LogFull, SinkUnavailable, ViewStoreUnavailable)
FAILED = (LogFailed, ViewStoreFailed)
"""What is closed for good, until a new process opens it again: waiting for it would never end."""
_FIRST, _LONGEST = 0.2, 30.0

T = TypeVar("T")


class Patience:
    """Calls something until it is available, or someone asks to stop; for at most ``most`` seconds if that is given."""

    def __init__(self, stop: threading.Event, say: Callable[[str], None], most: float | None = None) -> None:
        self._stop, self.say, self._most = stop, say, most

    def call(self, what: str, function: Callable[[], T]) -> T:
        """What the function gives; the last error if there is no more time."""
        pause, until = _FIRST, None if self._most is None else time.monotonic() + self._most
        waited = False
        while True:
            try:
                given = function()
                if waited:
                    self.say("")
                return given
            except UNAVAILABLE as error:
                over = isinstance(error, FAILED) or self._stop.is_set()
                if over or (until is not None and time.monotonic() + pause > until):
                    raise
                self.say(f"{what}: {error.message}; next try in {pause:.1f} s")
                waited = True
                self._stop.wait(pause)
                pause = min(_LONGEST, pause * 2)


IMPATIENT = Patience(threading.Event(), lambda _: None, 0.0)
"""Tries once."""


class Sender:
    """Sends the changes of one view to one sink."""

    def __init__(
        self, wanted: SinkDefinition, target: Target, sink: Sink, epoch: int, folder: Path, patience: Patience
    ) -> None:
        self.wanted, self.target, self._sink = wanted, target, sink
        self._folder, self._patience = folder, patience
        self._marks = Marks(folder, wanted.name, epoch)
        self._stored: Callable[[], pa.Table] | None = None
        self._at = -1

    def begin(self, batch: int | None, stored: Callable[[], pa.Table], before: Callable[[], pa.Table | None]) -> None:
        """Let a sink that is new to this checkpoint have what its view holds already, as of ``batch``.

        ``before`` gives what the version of the view held that the sink has, if there was one: then it gets the difference.
        """
        last = self._patience.call(f"sink {self.wanted.name}", self._sink.last)
        if last is not None and last >> EPOCH > self._marks.epoch:
            raise CheckpointMismatch(
                f"sink {self.wanted.name}: {self.wanted.where} was written by a later run than that of this checkpoint",
                hint="another copy of this pipeline writes there; give the sink another place, or run with --rebuild",
            )
        if batch is not None and (last is None or last <= self._marks.base) and not self._marks.get("met"):
            rows, old = stored(), before()
            changes = [_weighing(rows, 1)]
            if old is not None and old.schema == rows.schema:
                changes.append(_weighing(old, -1))
            elif old is not None:
                self.clear(old)
            self.send(batch, pa.concat_tables(changes))
        elif batch is not None:
            self._remember(batch, last, stored)
        self._stored, self._at = stored, -1 if batch is None else batch
        place = self._patience.call(f"sink {self.wanted.name}", self._sink.place)
        self._marks.keep(met=self._marks.get("met") or self._marks.base + 1, place=place)

    def clear(self, stored: pa.Table) -> None:
        """Tell that every key is gone, before a view is computed anew: what it will not have again must not stay."""
        if self.target.key and set(self.target.key) <= set(stored.column_names):
            frame = pl.DataFrame(stored).select(self.target.key)
            self._deliver(ChangeSet(pl.DataFrame(schema=pl.DataFrame(stored).schema), frame), self._marks.base)

    def send(self, batch: int, changes: pa.Table, change_set: ChangeSet | None = None) -> list[Refusal]:
        """Send a batch, whose ``change_set`` may be known; gives the rows that were refused, where that does not stop the pipeline."""
        sequence, after = self._marks.number(batch), self._marks.acknowledged(self._marks.number(batch - 1))
        change_set = change_set or change_set_of(self.target, changes)
        try:
            return self._deliver(change_set, sequence, after)
        except SinkForgot as error:
            if self._restored(after):
                return self._deliver(change_set, sequence, after)
            if self._stored is None or batch <= self._at:
                raise
            rows = _weighing(self._whole(error, self._stored), 1)
            whole = pa.concat_tables([rows.select(changes.column_names).cast(changes.schema), changes])
            return self._deliver(change_set_of(self.target, whole), sequence, None)

    def _remember(self, batch: int, last: int | None, stored: Callable[[], pa.Table]) -> None:
        """Send a sink all that its view holds as of ``batch``, if it lacks what it acknowledged up to then."""
        number = self._marks.number(batch)
        acknowledged = self._marks.acknowledged(number)
        try:
            check_remembered(self.wanted.where, last, acknowledged)
        except SinkForgot as error:
            # If a later batch was begun, it may be there: nobody could tell.
            begun = (newest_planned(self._folder) or 0) > batch
            if not begun and self._restored(acknowledged):
                return
            rows = _weighing(self._whole(error, stored), 1)
            self._deliver(change_set_of(self.target, rows), number, None)

    def _restored(self, number: int | None) -> bool:
        """Give a sink its number again, if that is all that it has lost."""
        if number is None or not self._marks.place:
            return False
        restoring = partial(self._sink.restore, self._marks.place, number)
        return self._patience.call(f"sink {self.wanted.name}", restoring)

    def _whole(self, error: SinkForgot, stored: Callable[[], pa.Table]) -> pa.Table:
        """All that the view holds, for a sink that has forgotten and is ready for it; else the error, with what to do."""
        what = f"sink {self.wanted.name}: {error.message}"
        hint = f"{error.hint}; give the sink an empty place or another name, and it begins with all that view {self.wanted.view} holds"
        if not self._patience.call(f"sink {self.wanted.name}", self._sink.anew):
            raise SinkForgot(f"{what}; only a part of it is gone, and nobody knows which", hint=hint) from error
        try:
            rows = stored()
        except CheckpointMismatch as missing:
            raise SinkForgot(f"{what}; view {self.wanted.view} is kept nowhere", hint=missing.hint) from error
        self._patience.say(f"{what}; it gets all that the view holds again")
        return rows

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def _deliver(self, change_set: ChangeSet, sequence: int, after: int | None = None) -> list[Refusal]:
        if change_set.empty:
            return []
        payload, refused = self._sink.pack(change_set)
        self._judge(refused)
        once = self.wanted.mode == "at_most_once"
        if once and (self._marks.get("begun") or -1) >= sequence:
            return refused
        failpoint("sink.before_send")
        if once:
            self._marks.keep(begun=sequence)
            try:
                later = self._sink.send(payload, sequence, marked=False)
            except FAILED:
                raise
            except UNAVAILABLE as error:
                later = [Refusal(f"batch {sequence - self._marks.number(0)}", f"not sent: {error.message}")]
                return [*refused, *later]  # it is lost, which is what was asked for: never twice
        else:
            marked = self.wanted.mode == "exactly_once"
            later = self._patience.call(
                f"sink {self.wanted.name}",
                lambda: self._sink.send(payload, sequence, marked=marked, after=after if marked else None),
            )
            if marked and (known := self._marks.get("sent") or 0) < sequence:
                self._marks.keep(sent=sequence, before=known)
        failpoint("sink.after_send")
        self._judge(later)
        return [*refused, *later]

    def _judge(self, refused: Sequence[Refusal]) -> None:
        if refused and self.wanted.refused == "stop":
            raise RowRefused(
                f"sink {self.wanted.name} to {self.wanted.where}: {len(refused)} refused, the first ({refused[0].row}):"
                f" {refused[0].why}",
                hint='keep such rows out of the view, or define the sink with refused="dead_letter"',
            )


def _weighing(rows: pa.Table, weight: int) -> pa.Table:
    return rows.append_column(WEIGHT, pa.array([weight] * rows.num_rows, pa.int64()))


def epoch_after(fence: int, sinks: Mapping[str, Sink], patience: Patience) -> int:
    """A number for a new checkpoint, above whatever was sent from earlier ones."""
    lasts = [patience.call(f"sink {name}", sink.last) or 0 for name, sink in sinks.items()]
    return max(fence, *(1 + (last >> EPOCH) for last in lasts), 0)


def change_set_of(target: Target, changes: pa.Table) -> ChangeSet:
    """The net change of a view, as sinks take it."""
    frame = pl.DataFrame(changes)
    if target.key:
        return ChangeSet(*net_by_key(target, frame))
    if target.append and in_line(frame, target.identity) and (frame[WEIGHT] == 1).all():
        rows = one_zero(frame.drop(WEIGHT))
        return ChangeSet(rows, rows.clear())
    summed = net_by_row(frame)
    none = summed.clear().drop(WEIGHT)
    return ChangeSet(summed.drop(WEIGHT).sort(target.identity) if target.append else summed, none)


def net_and_change_set(target: Target, changes: pa.Table) -> tuple[Net, ChangeSet]:
    """The net change of a view that is kept and sent, worked out once: as its store takes it, and the same rows as sinks do."""
    net, frame = net_of(target, changes, places=True), pl.DataFrame(changes).drop(WEIGHT)
    rows = one_zero(frame[net.store[PLACE]], target.key)
    if target.key:
        return net.plain(), ChangeSet(rows, one_zero(frame.select(target.key)[net.remove[PLACE]]))
    counted = rows if target.append else rows.with_columns(net.store[WEIGHT])
    return net.plain(), ChangeSet(counted, rows.clear())


def in_line(rows: pl.DataFrame, identity: Sequence[str]) -> bool:
    """Whether rows stand in the order of their origin already, each with its own; as they do unless a stage has dealt them out."""
    topic, partition, offset = (rows[name] for name in identity)
    if not rows.height or (topic != topic[0]).any():
        return False
    places, offsets = partition.to_numpy(), offset.to_numpy()
    later = (places[1:] == places[:-1]) & (offsets[1:] > offsets[:-1])
    return bool(((places[1:] > places[:-1]) | later).all())


def letters(batch: int, refused: Sequence[tuple[str, Refusal]]) -> pa.Table:
    """Refused rows as dead letters: who refused them in the place of the topic, the batch in that of the offset."""
    rows = [
        {
            "topic": who,
            "partition": 0,
            "offset": batch,
            "reason": "refused",
            "detail": f"{each.row}: {each.why}",
        }
        for who, each in refused
    ]
    return pa.Table.from_pylist(rows, REJECTS)
