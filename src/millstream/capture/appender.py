"""Appending while the database is read: what has come meanwhile goes into the log together, whole transactions at a time.

Invariants: units go in in the order in which they were put, each with the position behind it, in one append or together with its neighbours;
what :attr:`Appender.done` says is on disk. After an error nothing more is appended, and whoever puts or waits gets it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millstream.capture.control import CONTROL, Control, Progress
from millstream.event import Event
from millstream.failpoint import failpoint

CHANGES, BYTES = 10_000, 8 << 20
"""How much waits for the log before the reader of the database does."""


@dataclass(slots=True)
class Unit:
    """What goes in together: events by topic, and how far the capture is then; ``notes`` are further records of the control topic."""

    events: dict[str, list[Event]] = field(default_factory=dict)
    changes: int = 0
    size: int = 0
    progress: Progress | None = None
    notes: list[Event] = field(default_factory=list)

    def add(self, topic: str, events: list[Event]) -> None:
        """Put the events of a change behind what is there."""
        there = self.events.get(topic)
        if there is None:
            self.events[topic] = events
        else:
            there += events
        self.changes += 1
        for event in events:
            self.size += len(event.value or b"") + len(event.key or b"")

    def take(self, later: Unit) -> None:
        """Put another unit behind this one."""
        for topic, events in later.events.items():
            if topic in self.events:
                self.events[topic] += events
            else:
                self.events[topic] = events
        self.changes += later.changes
        self.size += later.size
        self.progress = later.progress or self.progress
        self.notes += later.notes


class Appender:
    """A thread that appends, so that reading the database and waiting for the disk go on at once."""

    def __init__(self, control: Control, appended: Callable[[Unit], Any] = lambda _: None) -> None:
        self._control, self._appended = control, appended
        self._changed = threading.Condition()
        self._waiting: Unit | None = None
        self._busy = self._closing = False
        self._error: BaseException | None = None
        self.done: Progress | None = None
        """The last progress that is in the log."""
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def put(self, unit: Unit, progress: Progress) -> None:
        """Let it go in behind the others, and that the capture is so far then; waits while too much does."""
        unit.progress = progress
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not self._is_full())
            self.check()
            if self._waiting is None:
                self._waiting = unit
            else:
                self._waiting.take(unit)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all that was put is in the log."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not (self._busy or self._waiting))
            self.check()

    def check(self) -> None:
        """Raise the error that appending ended with, if it has."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End after what was put; an error was or will be told by others."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _is_full(self) -> bool:
        return self._waiting is not None and (self._waiting.changes >= CHANGES or self._waiting.size >= BYTES)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._waiting is not None)
                unit, self._waiting = self._waiting, None
                if unit is None:
                    return
                self._busy = True
                self._changed.notify_all()
            try:
                self._append(unit)
            except BaseException as error:  # told to whoever puts next, whatever it is
                with self._changed:
                    self._error, self._busy = error, False
                    self._changed.notify_all()
                return
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _append(self, unit: Unit) -> None:
        assert unit.progress is not None  # noqa: S101  put() has set it
        failpoint("capture.append")
        self._control.append({**unit.events, CONTROL: [*unit.notes, self._control.told(unit.progress)]})
        failpoint("capture.appended")
        self.done = unit.progress
        self._appended(unit)
