"""What kernels keep, in words: which rows and why, when they let go of them, and whether that ever ends.

What is said here is what the kernels do with their state. There is a case for every spec.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.explain.describe import Say, keyed, listed, plus, span, time_of, written
from millstream.plan import spec as specs
from millstream.plan.retention import adds_up, is_bounded, reach
from millstream.relation.approximate import EXACT

_TAKEN_BACK = "because rows can be taken back"
_ENDLESS = "never: it grows with "


def keeps(spec: specs.Spec, say: Say) -> str:
    """Say what a kernel keeps between batches, and why."""
    match spec:
        case specs.Changelog():
            return f"one row for each {listed(spec.keys)}: what a record replaces must be known"
        case specs.Reduce():
            window = ["window"] if spec.size else []
            return f"one row {_each(spec.keys, window)}: {_parts(spec, say)}"
        case specs.Session(insert_only=True):
            return f"one row {_each(spec.keys, ['session'])}: {_parts(spec, say)}"
        case specs.Session():
            moment = f"one row {_each(spec.keys, ['moment'])}, {_TAKEN_BACK} and a session may fall apart"
            return f"{moment}: {_parts(spec, say)}"
        case specs.Top(insert_only=True):
            best = f"the rows of {spec.ties} up to {spec.count}" if spec.ties else f"the best {spec.count} rows"
            return f"{best} {_of_each(spec.keys, say)}: nothing is taken back"
        case specs.Top():
            return f"every row, {_TAKEN_BACK} and the next best must be at hand"
        case specs.Over():
            return _neighbours(spec, say)
        case specs.Deduplicate(within=None):
            return f"the first row of each {keyed(spec.keys, say)}; repeats as long as an earlier row may come"
        case specs.Deduplicate():
            near = f"for {span(spec.within or 0)}"
            return f"the rows of each {keyed(spec.keys, say)} that count, {near}; repeats as long as an earlier row may come"
        case specs.Hold():
            return "the rows of windows that are not over yet"
        case specs.Pass():
            return "nothing"
        case specs.Groups():
            return f"every row {_of_each(spec.keys, say)}: the function is asked about all of them"
        case specs.TableJoin(horizon=None):
            return "every row of both sides: either may get a partner at any time"
        case specs.TableJoin():
            return "the rows of both sides as long as either can change"
        case specs.IntervalJoin():
            return "rows of both sides until no partner can come any more: the other side's mark tells"
        case specs.AsOfJoin():
            stream = "rows of the stream as long as one of their time may come: the table may correct them"
            return f"{stream}; of each key of the table the last row before the mark, and those after it"
        case specs.LatestJoin():
            return "every row of the table, and none of the stream: what was answered is not corrected"


def drops(spec: specs.Spec, say: Say) -> str:
    """Say when a kernel lets go of what it keeps."""
    match spec:
        case specs.Changelog():
            return f"by a tombstone; else {_ENDLESS}the table"
        case specs.Reduce(size=int()):
            return f"when the mark reaches {plus('window_end', spec.lateness)}"
        case specs.Reduce(horizon=specs.Horizon() as horizon):
            return _beyond(horizon, say)
        case specs.Reduce() if is_bounded(spec):
            return "never; it does not grow"
        case specs.Reduce():
            grows = "the groups" if spec.keys else "the values"
            return f"{'when a group has no rows; else ' if not spec.insert_only else ''}{_ENDLESS}{grows}"
        case specs.Session():
            return f"when the mark is beyond {plus('window_end', spec.lateness)}"
        case specs.Top() if spec.horizon is None and is_bounded(spec):
            return "never; it does not grow"
        case specs.Over():
            return _forgotten(spec, say)
        case specs.Top() | specs.Groups():
            grows = "the groups" if isinstance(spec, specs.Top) and spec.insert_only else "the rows"
            return _beyond(spec.horizon, say) if spec.horizon else f"{_ENDLESS}{grows}"
        case specs.Deduplicate(within=None):
            return f"{_ENDLESS}{listed([say(key, 0) for key in spec.keys])}"
        case specs.Deduplicate():
            return _beyond(spec.horizon, say, spec.within or 0)
        case specs.Hold():
            return f"when the mark reaches {say(spec.time, 0)}"
        case specs.Pass():
            return "nothing to drop"
        case specs.TableJoin(horizon=specs.Horizon() as horizon):
            return _beyond(horizon, say)
        case specs.TableJoin():
            return f"when a row is taken back; else {_ENDLESS}both sides"
        case specs.IntervalJoin():
            left = f"the left when the right's mark is beyond {plus(time_of(say, 0), spec.high + spec.lateness[1])}"
            right = f"the right when the left's mark is beyond {plus(time_of(say, 1), spec.lateness[0] - spec.low)}"
            return f"{left}, {right}"
        case specs.AsOfJoin():
            stream = f"the stream's when the mark is beyond {plus(time_of(say, 0), spec.lateness)}"
            return f"{stream}; the table's {_ENDLESS}its keys"
        case specs.LatestJoin():
            return f"when a row of the table is taken back; else {_ENDLESS}the table"


def _each(keys: Sequence[str], more: Sequence[str]) -> str:
    return f"for each {listed([*keys, *more])}" if keys or more else "in all"


def _of_each(keys: Sequence[str], say: Say) -> str:
    return f"of each {listed([say(key, 0) for key in keys])}" if keys else "of all"


def _beyond(horizon: specs.Horizon, say: Say, more: int = 0) -> str:
    return f"when the mark is beyond {plus(say(horizon.time, 0), horizon.span + more)}"


def _parts(spec: specs.Reduce | specs.Session, say: Say) -> str:
    """What is kept for the aggregates: numbers that add up, then the values of those that need them."""
    exact = [each for each in spec.measures if each.function not in EXACT]
    numbers = [written(each, say) for each in exact if adds_up(each, spec.insert_only)]
    parts = [", ".join(dict.fromkeys(numbers)) or "how many rows it has"]
    for each in spec.measures:
        if each.function in EXACT:
            parts.append(f"a sketch of {say(each.arguments[0], 0)}: {written(each, say)} is approximate")
        elif not adds_up(each, spec.insert_only):
            best = each.function in ("min", "max", "min_by", "max_by")
            why = _TAKEN_BACK if best else f"for {written(each, say)}"
            which = "each distinct" if each.function in ("count_distinct", "collect_set") else "every"
            parts.append(f"{which} {listed([say(name, 0) for name in each.arguments])}, {why}")
    return "; and ".join(dict.fromkeys(parts))


def _rows(count: int) -> str:
    return "row" if count == 1 else f"{count} rows"


def _neighbours(spec: specs.Over, say: Say) -> str:
    away = reach(spec)
    if spec.until is not None:
        return f"every row {_of_each(spec.keys, say)}, as long as any of them may change"
    if spec.horizon is None:
        return "every row: without an order in time any of them may change"
    if away is None:
        return "every row: a row may look at one any far away"
    return "rows that can still change, and those that they look at" + (
        f", up to {away} row{'s' * (away > 1)} away" if away else ""
    )


def _forgotten(spec: specs.Over, say: Say) -> str:
    away = reach(spec)
    if spec.until is not None:
        return _beyond(spec.until, say)
    if spec.horizon is None or away is None:
        return f"{_ENDLESS}the rows"
    if away:
        rest = _beyond(spec.horizon, say)
        return f"{rest}, but the last {_rows(away)} of each key {_ENDLESS}the keys"
    frames = [look.frame for look in spec.looks if look.frame and look.frame.kind == "range"]
    before, after = (max((getattr(each, side) or 0 for each in frames), default=0) for side in ("before", "after"))
    return _beyond(spec.horizon, say, before + after)
