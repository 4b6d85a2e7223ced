"""Event sourcing: states that are folds of their events, changed by commands; no Spark is needed for it."""

from __future__ import annotations

from millstream.sourcing.commands import Commands, Reply
from millstream.sourcing.decider import Decider, Rejected
from millstream.sourcing.deciding import Decided
from millstream.sourcing.envelope import Happened
from millstream.sourcing.load import Aggregate, Position
from millstream.sourcing.loop import CommandLoop, LoopSettings
from millstream.sourcing.past import Checked, Supposed
from millstream.sourcing.reactor import Reactor, Send
from millstream.sourcing.store import EventStore, Request, StoreSettings

__all__ = [
    "Aggregate",
    "Checked",
    "CommandLoop",
    "Commands",
    "Decided",
    "Decider",
    "EventStore",
    "Happened",
    "LoopSettings",
    "Position",
    "Reactor",
    "Rejected",
    "Reply",
    "Request",
    "Send",
    "StoreSettings",
    "Supposed",
]
