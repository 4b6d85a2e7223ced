"""Random logs for random plans, what is admitted of them, and chains that run over them.

Records are in the order of their appends, and a batch is a run of them, so that every cut into batches has seen the same at its end.
Some of the table's come late: after a mark has passed their timestamp. Where no join asks what came first, topics may also be read
at different speeds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from millstream.kernel.state.store import FOREVER
from millstream.plan.build import Chain, micros
from millstream.relation.nodes import Source
from tests.kernel import oracle
from tests.kernel.local import Local, Rec, types_by_name
from tests.kernel.plan_oracle import World
from tests.kernel.shop import SECOND, TYPES

START = 1_700_000_000 * SECOND
Log = list[tuple[str, Rec]]


def random_log(chance: Random, sources: dict[str, Source], partitions: int, length: int) -> Log:
    """Records of all sources: mostly in order, some late, repeated, malformed or from the future, and heartbeats."""
    slow = {(name, number): chance.choice((0, 0, 12)) for name in ("a", "b") for number in range(partitions)}
    times = [source.time for source in sources.values() if source.time]
    delay = min(micros(time.delay) for time in times)
    following: Counter[Any] = Counter()
    numbers: Counter[str] = Counter()
    now = newest = START
    log: Log = []
    for _ in range(length):
        name = chance.choice("aaabbbu")
        now += chance.choice((0, 1, SECOND, 2 * SECOND, 2 * SECOND, 6 * SECOND, 6 * SECOND, 20 * SECOND))
        append = now + 60 * SECOND + len(log)  # no two are of one time, so every cut is at one
        if name == "u":
            since = newest - delay - Random(now).choice((0, 0, 10, 40)) * SECOND
            log.append((name, _said(chance, partitions, since, append)))
        else:
            partition = chance.randrange(partitions)
            behind = chance.choice((0, 0, 0, 1, SECOND, 4 * SECOND, 9 * SECOND, 30 * SECOND))
            at = now - behind - slow[name, partition] * SECOND
            made = _event(chance, sources[name], partition, at, append, numbers)
            if made.beat is None or made.beat > at:
                newest = max(newest, at)
            log.append((name, made))
        place = name, log[-1][1].partition
        log[-1][1].offset = following[place]
        following[place] += 1
    return log


def _said(chance: Random, partitions: int, since: int, append: int) -> Rec:
    key = chance.randrange(4)
    stamp = since + chance.choice((0, 0, 1, SECOND, 5 * SECOND))
    deleted = chance.random() < 0.25
    values = {"c": chance.choice((None, "a", "b")), "n": chance.choice((None, 0, 1, 2))}
    return Rec(0, key % partitions, 0, append, {"id": key} | ({} if deleted else values), deleted=deleted, stamp=stamp)


def _event(chance: Random, source: Source, partition: int, at: int, append: int, numbers: Counter[str]) -> Rec:
    assert source.time is not None
    kind = chance.random()
    if kind < 0.06:
        return Rec(0, partition, 0, append, beat=at - micros(source.time.delay))
    if kind < 0.09:
        return Rec(0, partition, 0, append, bad="not what was declared")
    if kind < 0.11:
        at = append + 2 * 3600 * SECOND
    values: dict[str, Any] = {"k": chance.choice((None, 0, 1, 1, 2)), source.time.column: oracle.stamp(at)}
    if source.name == "b":
        return Rec(0, partition, 0, append, values | {"j": _integer(chance), "t": _text(chance)})
    who = f"w{partition}"
    numbers[who] += chance.random() > 0.05  # a repeat has the number of the one before
    values |= {"i": _integer(chance), "f": chance.choice((None, 0.1, 0.2, -0.3, 1e16, -1e16, float("nan"), -0.0, 0.0))}
    values |= {"s": _text(chance), "xs": chance.choice((None, [], [1], [0, 1, 1], [None, 2]))}
    return Rec(0, partition, 0, append, values | {"who": who, "nth": numbers[who]})


def _integer(chance: Random) -> int | None:
    return chance.choice((None, 0, 1, 1, 2, -1, 7))


def _text(chance: Random) -> str | None:
    return chance.choice((None, "", "a", "a", "b"))


def cut(chance: Random, log: Log) -> list[Log]:
    """The log in runs of any length."""
    ends = sorted(chance.sample(range(1, len(log)), min(len(log) - 1, chance.randint(1, 6))))
    return [log[low:high] for low, high in zip([0, *ends], [*ends, len(log)], strict=True)]


def uneven(chance: Random, log: Log) -> Log:
    """The same records with topics read at different speeds: only those of one partition keep their order."""
    speeds: dict[Any, int] = defaultdict(lambda: chance.choice((1, 1, 4, 40)))
    waiting: dict[Any, Log] = defaultdict(list)
    for name, record in log:
        waiting[name, record.partition].append((name, record))
    made: Log = []
    while waiting:
        (place,) = chance.choices(list(waiting), [speeds[place] for place in waiting])
        made.append(waiting[place].pop(0))
        if not waiting[place]:
            del waiting[place]
    return made


class Shop:
    """What was admitted so far, and the marks that each record of the table met."""

    def __init__(self, sources: dict[str, Source], partitions: int) -> None:
        self.judges = {name: oracle.Judge(source, partitions) for name, source in sources.items()}
        self.closed = False
        self.met: list[dict[str, int]] = []

    def batch(self, records: Log) -> None:
        """Take some records, in the order of their appends."""
        for name, record in records:
            if name == "u":
                self.met.append(self.marks)
            self.judges[name].batch([record])

    @property
    def marks(self) -> dict[str, int]:
        """The marks of the streams."""
        return {name: FOREVER if self.closed else self.judges[name].mark for name in ("a", "b")}

    def world(self, final: bool) -> World:
        """What is known now."""
        rows: dict[str, list[Any]] = {name: [r.values for r in self.judges[name].admitted] for name in ("a", "b")}
        rows["a"] = [{name: row[name] for name in row if name not in ("who", "nth")} for row in rows["a"]]
        rows = {name: [_ordered(name, row) for row in found] for name, found in rows.items()}
        said = self.judges["u"].admitted
        rows["u"] = [_ordered("u", dict(row)) for row in oracle.latest(said, ["id"])]
        changes = [
            (r.stamp or 0, None if r.deleted else _ordered("u", r.values), r.values["id"], met)
            for r, met in zip(said, self.met, strict=True)
        ]
        return World(rows, self.marks, changes, final)


def _ordered(name: str, row: dict[str, Any]) -> dict[str, Any]:
    return {column: row[column] for column in TYPES[name] if column in row}


def feed(chain: Chain, records: Sequence[tuple[str, Rec]]) -> list[Rec]:
    """The records as a chain numbers its feeds; those of a source that it does not use are left out."""
    numbers = {each.source.name: each.number for each in chain.feeds}
    return [replace(record, feed=numbers[name]) for name, record in records if name in numbers]


def running(chain: Chain, partitions: int, seed: int) -> Local:
    """A chain that has seen nothing yet."""
    return Local(chain, partitions, types_by_name(chain, TYPES), seed)
