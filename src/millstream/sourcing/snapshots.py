"""Snapshots: states kept now and then, so that a load reads the events after one only.

Invariant: a snapshot is used only while the code that folds events is the code that made it, and only if it came back from JSON as
what it was. It stands for the state before the events that are appended with it, whose place is known by then.
"""

from __future__ import annotations

from typing import Generic

import msgspec

from millstream.codec import Json
from millstream.errors import SourcingError
from millstream.event import Event, Record
from millstream.log.contract import Log
from millstream.sourcing.decider import Decider, S, types_of
from millstream.sourcing.digest import digest_of_code


class _Kept(msgspec.Struct):
    version: int
    offset: int
    digest: str
    state: msgspec.Raw


class Snapshot(msgspec.Struct, Generic[S]):
    """A state, the number of its last event, and where that stands."""

    state: S
    version: int
    offset: int


class Snapshots(Generic[S]):
    """The snapshots of one kind of aggregate, in a topic of their own."""

    def __init__(self, topic: str, decider: Decider[S]) -> None:
        self.topic = topic
        self._type = type(decider.initial) if decider.state is None else decider.state
        self._states = msgspec.json.Decoder(self._type)
        self._kept = msgspec.json.Decoder(_Kept)
        upcasters = [
            part for (name, version), each in sorted(decider.upcasters.items()) for part in (name, version, each)
        ]
        self.digest = digest_of_code(decider.evolve, decider.initial, self._type, *types_of(decider.events), *upcasters)

    def pack(self, key: bytes, state: S, version: int, offset: int) -> Event:
        """A snapshot as an event of its topic."""
        said = Json().encode(state)
        try:
            back = self._states.decode(said)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            back = error
        if back != state:
            raise SourcingError(
                f"a snapshot of {key.decode()} would not come back from JSON as what it is: found {back!r:.200}, expected {state!r:.200}",
                hint="say the type of states, Decider(…, state=…), with types that JSON can hold; or do without snapshots",
            )
        return Event(msgspec.json.encode(_Kept(version, offset, self.digest, msgspec.Raw(said))), key)

    def unpack(self, record: Record) -> Snapshot[S] | None:
        """The inverse; None for one that other code has made, or that cannot be read: events tell the same."""
        try:
            kept = self._kept.decode(record.value or b"")
            state = self._states.decode(kept.state)
        except (msgspec.DecodeError, TypeError, ValueError):
            return None
        return Snapshot(state, kept.version, kept.offset) if kept.digest == self.digest else None

    def newest(self, log: Log, key: bytes, most: int | None = None, appended: int | None = None) -> Snapshot[S] | None:
        """The newest snapshot of an aggregate that may be used, no later than a version and an append time."""
        limit = 1 if most is None and appended is None else None
        for record in log.of_key(self.topic, key, newest_first=True, limit=limit):
            found = self.unpack(record)
            if found is None:  # those before it are of other code, too, or of the same after a change and back
                continue
            if (most is None or found.version <= most) and (appended is None or record.appended <= appended):
                return found
        return None
