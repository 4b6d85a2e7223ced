"""Changes into units for the log: to the topic of their table, or where the outbox routes them; what is too large is refused.

Invariant: a row that a topic does not take stops the capture, or is known from the dead letters and gone from the topic: never an older row in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from millstream.capture.appender import Unit
from millstream.capture.contract import Change, Table
from millstream.capture.envelope import Origin, events_of, gone, key_of
from millstream.capture.following import Target
from millstream.capture.outbox import Outbox
from millstream.errors import CaptureError, RowRefused, TopicExists
from millstream.event import Event
from millstream.log.contract import Log

Refused = Literal["stop", "dead_letter"]


class Writer:
    """Knows where changes go; ``targets`` are the topics by the names of tables."""

    def __init__(
        self, log: Log, name: str, targets: Mapping[str, Target], refused: Refused, outbox: Outbox | None = None
    ) -> None:
        self._log, self._name, self._targets, self._refused, self.outbox = log, name, targets, refused, outbox
        self._tables: dict[str, Table] = {}
        self._dead = ""

    def see(self, table: Table) -> None:
        """This is what a table is like from here on."""
        self._tables[table.full_name] = table

    def table(self, table: Table) -> Table:
        """A table with its columns, of which no more may be known than its name."""
        return table if table.columns else self._tables.get(table.full_name, table)

    def target(self, table: Table) -> Target:
        """Where a table's changes go."""
        found = self._targets.get(table.full_name)
        if found is None:
            raise CaptureError(
                f"capture {self._name}: changes of table {table.full_name} came, which is none of {', '.join(self._targets)}",
                hint="name tables as the database writes them",
            )
        return found

    def add(self, unit: Unit, change: Change, origin: Origin, order: int | None = None) -> list[bytes]:
        """Put a change into a unit; which keys it touched."""
        if self.outbox is not None and self.outbox.is_for(change.table):
            self._route(unit, change, origin)
            return []
        target, events = self.target(change.table), events_of(change, origin, order)
        for event in events:
            if len(event.value or b"") + len(event.key or b"") > target.most:
                self._refuse(unit, change, event, origin, target)
                return [event.key for event in events if event.key is not None]
        unit.add(target.topic, events)
        return [event.key for event in events if event.key is not None]

    def delete(self, unit: Unit, table: Table, key: bytes, origin: Origin, order: int | None = None) -> None:
        """Put into a unit that a row went of which the key is known."""
        unit.add(self.target(table).topic, gone(table, key, origin, order))

    def _route(self, unit: Unit, change: Change, origin: Origin) -> None:
        assert self.outbox is not None  # noqa: S101  asked before
        if change.op != "c":
            return
        routed = self.outbox.routed(change, origin)
        if routed.why and self._refused == "stop":
            raise RowRefused(
                f"capture {self._name}: row {routed.id} of outbox {change.table.full_name}: {routed.why}",
                hint=f"allow it by --outbox-topics; or go on without such rows, which then go to topic {self._name}.dead: --refused dead_letter",
            )
        if routed.why:
            self._letter(unit, change, routed.why, origin, key_of(change.table, change.after or {}))
        else:
            self._ensure(routed.topic)
            unit.add(routed.topic, [routed.event])

    def _refuse(self, unit: Unit, change: Change, event: Event, origin: Origin, target: Target) -> None:
        size = len(event.value or b"") + len(event.key or b"")
        why = f"{size:,} bytes, topic {target.topic} takes up to {target.most:,}"
        if self._refused == "stop":
            raise RowRefused(
                f"capture {self._name}: row {event.key!r:.80} of table {change.table.full_name}: {why}",
                hint=f"`millstream topics alter {target.topic} --max-record-bytes {size * 2}`; or go on without such rows, which then are"
                " deleted from the topic: --refused dead_letter",
            )
        key = event.key or b""
        self._letter(unit, change, why, origin, key)
        keys = dict.fromkeys([key] if change.before is None else [key_of(change.table, change.before), key])
        for each in keys:
            self.delete(unit, change.table, each, origin)

    def _letter(self, unit: Unit, change: Change, why: str, origin: Origin, key: bytes) -> None:
        if not self._dead:
            self._dead = f"{self._name}.dead"
            self._ensure(self._dead)
        said = {
            "table": change.table.full_name,
            "key": key.decode(errors="replace"),
            "op": change.op,
            "why": why,
            "transaction": origin.id,
            "position": origin.position,
        }
        unit.add(self._dead, [Event(msgspec.json.encode(said), None, origin.time)])

    def _ensure(self, topic: str) -> None:
        with suppress(TopicExists):
            self._log.create_topic(topic)
