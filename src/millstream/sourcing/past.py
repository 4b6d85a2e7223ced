"""The past of aggregates: who did what when, states side by side, what would have been, and whether today's code still reads it all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

import msgspec

from millstream.errors import SourcingError, UnknownTopic, Unreadable
from millstream.log.contract import Log
from millstream.sourcing.decider import Decider, S, types_of
from millstream.sourcing.envelope import Coded, Happened, version_in
from millstream.sourcing.load import records_in, records_of
from millstream.sourcing.snapshots import Snapshots

Differences: TypeAlias = dict[str, tuple[Any, Any]]
_TOLD = 100
"""Problems that a check tells; it counts them all."""


@dataclass(frozen=True, slots=True)
class Supposed(Generic[S]):
    """What would have been.

    :param actual: the state as it is
    :param state: the state as it would be
    :param differences: what differs: path → (actual, supposed)
    """

    actual: S
    state: S
    differences: Differences


@dataclass(slots=True)
class Checked:
    """What a check of a whole history found.

    :param events: how many events were read
    :param aggregates: of how many aggregates
    :param snapshots: how many snapshots were compared with the fold
    :param found: how many problems there are
    :param problems: the first hundred of them
    """

    events: int = 0
    aggregates: int = 0
    snapshots: int = 0
    found: int = 0
    problems: list[str] = field(default_factory=list)

    def tell(self, problem: str) -> None:
        """Count a problem."""
        self.found += 1
        if self.found <= _TOLD:
            self.problems.append(problem)


def history(log: Log, topic: str, key: bytes, coded: Coded) -> Iterator[Happened]:
    """The events of an aggregate with what is known about each."""
    return map(coded.happened, records_of(log, topic, key))


def differences(before: Any, after: Any) -> Differences:
    """What differs between two states, by the path of the field; what one of them lacks is None there.

    >>> differences({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 3, 4]})
    {'b[1]': (2, 3), 'b[2]': (None, 4)}
    """
    return dict(_compared("", msgspec.to_builtins(before), msgspec.to_builtins(after)))


def _compared(path: str, before: Any, after: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys([*before, *after]):
            yield from _compared(f"{path}.{name}" if path else str(name), before.get(name), after.get(name))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for i in range(max(len(before), len(after))):
            one, other = (each[i] if i < len(each) else None for each in (before, after))
            yield from _compared(f"{path}[{i}]", one, other)
    elif before != after:
        yield path, (before, after)


def suppose(
    decider: Decider[S], events: Sequence[Happened], without: frozenset[int], adding: Mapping[int, Sequence[Any]]
) -> Supposed[S]:
    """Fold the events once as they are, and once without some and with others."""
    versions = {each.version for each in events}
    if missing := sorted((without - versions) | (adding.keys() - versions - {0})):
        raise SourcingError(f"there is no version {missing[0]}; the aggregate is at {max(versions, default=0)}")
    for each in (each for some in adding.values() for each in some):
        if not isinstance(each, types_of(decider.events)):
            raise SourcingError(f"adding: found {each!r:.80}, expected events of the aggregate")
    actual = supposed = decider.initial
    for each in adding.get(0, ()):
        supposed = decider.evolve(supposed, each)
    for happened in events:
        actual = decider.evolve(actual, happened.event)
        if happened.version not in without:
            supposed = decider.evolve(supposed, happened.event)
        for each in adding.get(happened.version, ()):
            supposed = decider.evolve(supposed, each)
    return Supposed(actual, supposed, differences(actual, supposed))


def check(log: Log, decider: Decider[S], coded: Coded, snapshots: Snapshots[S], topic: str) -> Checked:
    """Read every event with today's code, fold every aggregate, compare every snapshot that today's code would use.

    One partition after the other; the states of all aggregates of a partition are in memory meanwhile.
    """
    checked = Checked()
    for partition in range(log.topic(topic).partitions):
        _check_partition(checked, log, decider, coded, topic, partition, _kept(log, snapshots, partition))
    return checked


def _check_partition(
    checked: Checked,
    log: Log,
    decider: Decider[S],
    coded: Coded,
    topic: str,
    partition: int,
    kept: Mapping[tuple[bytes, int], Sequence[S]],
) -> None:
    states: dict[bytes, S] = {}
    versions: dict[bytes, int] = {}
    for record in records_in(log, topic, partition):
        checked.events += 1
        key, number = record.key or b"", version_in(record)
        where = f"{key.decode(errors='replace')}, version {number} (partition {partition}, offset {record.offset})"
        if key not in versions:
            states[key] = decider.initial
        if number != versions.get(key, 0) + 1:
            checked.tell(f"{where}: expected version {versions.get(key, 0) + 1}")
        versions[key] = number
        try:
            event = coded.unpack(record)
            if key in states:
                states[key] = decider.evolve(states[key], event)
        except Unreadable as error:
            checked.tell(f"{where}: {error.message}")
            states.pop(key, None)  # what follows cannot be folded, and is read all the same
        except Exception as error:
            checked.tell(f"{where}: evolve failed: {error!r}")
            states.pop(key, None)
        for found in kept.get((key, number), ()):
            checked.snapshots += 1
            if key in states and found != states[key]:
                checked.tell(f"{where}: its snapshot is {found!r:.200}, its events give {states[key]!r:.200}")
    checked.aggregates += len(versions)


def _kept(log: Log, snapshots: Snapshots[S], partition: int) -> dict[tuple[bytes, int], list[S]]:
    """The states of the snapshots that today's code would use."""
    found: dict[tuple[bytes, int], list[S]] = {}
    try:
        for record in records_in(log, snapshots.topic, partition):
            if (snapshot := snapshots.unpack(record)) is not None:
                found.setdefault((record.key or b"", snapshot.version), []).append(snapshot.state)
    except UnknownTopic:
        pass
    return found
