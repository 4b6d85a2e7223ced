"""What the kernels should say, in plain Python over everything at once: no batches, no state, no weights.

Doubles are summed as fractions and rounded once. Times are whole microseconds. Rows come out as :mod:`tests.kernel.local` gives them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from millstream.kernel.state.store import FOREVER, NEVER
from millstream.log.heartbeat import Beat
from millstream.plan.build import micros
from millstream.plan.spec import Measure
from millstream.relation.nodes import Aggregation, Source
from tests.kernel.local import Rec, hashable

Row = Mapping[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG = 1 << 63


class Overflow(Exception):
    """A sum of longs that is none."""


def stamp(moment: int) -> datetime:
    """Microseconds as a time."""
    return _EPOCH + timedelta(microseconds=moment)


def moment(time: datetime) -> int:
    """A time as microseconds."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def reduce(
    rows: Iterable[Row],
    keys: Sequence[str],
    measures: Sequence[Aggregation],
    size: int | None = None,
    until: int | None = None,
    every: int | None = None,
) -> Counter[tuple[Any, ...]]:
    """One row for each group; with ``size`` also for each window of ``at``, and of those only what ends by ``until``.

    With ``every`` a window starts so often, and a row is in all that hold it.
    """
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        key = tuple(hashable(row[name]) for name in keys)
        if size is None:
            groups[key].append(row)
            continue
        at, hop = moment(row["at"]), every or size
        starts = range(at // hop * hop, at - size, -hop)
        for start in starts:
            if until is None or start + size <= until:
                groups[*key, stamp(start), stamp(start + size)].append(row)
    return Counter(hashable((*key, *(aggregate(each, group) for each in measures))) for key, group in groups.items())


def aggregate(measure: Aggregation | Measure, rows: Sequence[Row]) -> Any:
    """One aggregate of one group."""
    if not measure.arguments:
        return len(rows)
    first, last = measure.arguments[0], measure.arguments[-1]
    pairs = [(row[first], row[last]) for row in rows if row[last] is not None]
    values = [value for value, _ in pairs]
    match measure.function:
        case "count":
            return len(values)
        case "count_distinct":
            return len({hashable(value) for value in values})
        case "sum":
            return total(values)
        case "avg":
            return mean(values)
        case "min":
            return min(values, key=rank, default=None)
        case "max":
            return max(values, key=rank, default=None)
        case "min_by":
            return min(pairs, key=lambda pair: (rank(pair[1]), pair[0] is None, rank(pair[0])), default=(None,))[0]
        case "max_by":
            return max(pairs, key=lambda pair: (rank(pair[1]), pair[0] is not None, rank(pair[0])), default=(None,))[0]
        case "collect_list":
            return sorted(values, key=rank)
        case "collect_set":
            return sorted({hashable(value): value for value in values}.values(), key=rank)
        case "percentile":
            return percentile(values, measure.fraction)


def rank(value: Any) -> tuple[bool, Any]:
    """The order of values: NaN after everything. A null has no place of its own: callers decide."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True, 0
    return False, value


def total(values: Sequence[Any], bound: int | None = _LONG) -> Any:
    """A sum: of doubles rounded once, of longs refused where it is none, of decimals exact; of nothing null."""
    if not values:
        return None
    if isinstance(values[0], float):
        return double_total(values)
    if isinstance(values[0], Decimal):
        with localcontext(prec=100):
            return sum(values, Decimal(0))
    found = sum(values)
    if bound is not None and not -bound <= found < bound:
        raise Overflow(found)
    return found


def double_total(values: Sequence[float]) -> float:
    """The nearest double to the sum of these; NaN and the infinities as IEEE has them."""
    wild = {value for value in values if math.isinf(value)}
    if len(wild) == 2 or any(math.isnan(value) for value in values):
        return math.nan
    if wild:
        return wild.pop()
    exact = sum((Fraction(value) for value in values), Fraction(0))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def mean(values: Sequence[Any]) -> float | None:
    """The sum as a double, over how many there are."""
    found = total(values, None)
    return None if found is None else float(found) / len(values)


def percentile(values: Sequence[Any], fraction: float) -> float | None:
    """The value at a place among the sorted ones, or between two of them in proportion."""
    ordered = sorted((value for value in values if value is not None), key=rank)
    if not ordered:
        return None
    at = (len(ordered) - 1) * fraction
    below, above = (float(ordered[index]) for index in (math.floor(at), math.ceil(at)))
    return below if below == above else below * (math.ceil(at) - at) + above * (at - math.floor(at))


def latest(records: Iterable[Rec], key: Sequence[str]) -> list[Row]:
    """The rows of a table: the last upsert of each key that no tombstone follows."""
    rows: dict[Any, Row] = {}
    for record in sorted(records, key=lambda each: each.offset):
        name = tuple(hashable(record.values[column]) for column in key)
        rows.pop(name, None)
        if not record.deleted:
            rows[name] = record.values
    return list(rows.values())


@dataclass
class Partition:
    """Admission of one partition, record by record."""

    source: Source
    watermark: int = NEVER
    used: dict[str | None, int] = field(default_factory=dict)

    def judge(self, record: Rec) -> tuple[str, int]:
        """What becomes of the next record, and the watermark that it meets."""
        met = self.watermark
        repeated = self._is_repeated(record)
        time = self.source.time
        if record.beat is not None:
            if time is not None and record.append + micros(time.ahead) < record.beat < FOREVER:
                return "future", met
            if time is not None:
                self.watermark = max(met, record.beat)
            return "heartbeat", met
        if record.bad is not None:
            return "malformed", met
        if repeated:
            return "duplicate", met
        if time is None:
            return "admitted", met
        at = moment(record.values[time.column])
        if at > record.append + micros(time.ahead):
            return "future", met
        self.watermark = max(met, at - micros(time.delay))
        return "late" if at < met - micros(time.lateness) else "admitted", met

    def _is_repeated(self, record: Rec) -> bool:
        if self.source.sequence is None:
            return False
        who, number = (record.values.get(name) for name in (self.source.sequence.producer, self.source.sequence.number))
        if number is None:
            return False
        before = self.used.get(who, NEVER)
        self.used[who] = max(before, number)
        return bool(number <= before)


class Judge:
    """Admission of a whole feed: what was admitted so far, and the mark."""

    def __init__(self, source: Source, partitions: int) -> None:
        self.partitions = [Partition(source) for _ in range(partitions)]
        self.verdicts: dict[tuple[int, int], tuple[str, int]] = {}
        self.admitted: list[Rec] = []
        self.late: list[Rec] = []

    def batch(self, records: Iterable[Rec], beats: Iterable[Beat] = ()) -> None:
        """Judge these, in the order of their offsets, with the heartbeats of the ledger before the records of their offsets."""
        waiting = sorted(beats, key=lambda each: each.offset, reverse=True)
        for record in sorted(records, key=lambda each: (each.partition, each.offset)):
            for beat in [
                each for each in waiting if (each.partition, each.offset) <= (record.partition, record.offset)
            ]:
                waiting.remove(beat)
                self.hear(beat)
            verdict = self.partitions[record.partition].judge(record)
            self.verdicts[record.partition, record.offset] = verdict
            if verdict[0] == "admitted":
                self.admitted.append(record)
            elif verdict[0] == "late":
                self.late.append(record)
        for beat in waiting:
            self.hear(beat)

    def hear(self, beat: Beat) -> None:
        """Take in a heartbeat of the ledger."""
        partition = self.partitions[beat.partition]
        partition.watermark = max(partition.watermark, beat.time)

    @property
    def mark(self) -> int:
        """What every partition has passed."""
        return min(each.watermark for each in self.partitions)
