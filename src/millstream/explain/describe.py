"""Kernels in words: what each one does with its rows.

There is a case for every spec, so a new kernel cannot stay undescribed: mypy and a test see to it. A spec names columns of its
input; ``say`` turns one (and the side it comes from) into what its author wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

from millstream.plan import spec as specs
from millstream.relation.nodes import Emit, Look
from millstream.relation.schema import format_duration

Say: TypeAlias = Callable[[str, int], str]


def title(spec: specs.Spec) -> str:
    """Name the kind of kernel."""
    match spec:
        case specs.Changelog():
            return "table"
        case specs.Reduce():
            return "aggregate"
        case specs.Session():
            return "sessions"
        case specs.Top():
            return "top"
        case specs.Over():
            return "over" if spec.window is None else "sliding window"
        case specs.Deduplicate():
            return "deduplicate"
        case specs.Pass():
            return "windows" if spec.size else "union" if spec.explode is None else "explode"
        case specs.Hold():
            return "wait"
        case specs.Groups():
            return "map groups"
        case specs.TableJoin():
            return "join"
        case specs.IntervalJoin():
            return "join of streams"
        case specs.AsOfJoin():
            return "join as of a time"
        case specs.LatestJoin():
            return "join with the latest"


def does(spec: specs.Spec, say: Say) -> str:
    """Say what a kernel makes of its rows."""
    match spec:
        case specs.Changelog():
            return f"the latest row of each {listed(spec.keys)}"
        case specs.Reduce():
            window = [_aligned(spec, say)] if spec.size else []
            return f"by {keyed(spec.keys, say, *window)}: {_made(spec.measures, say)}{_final(spec.emit, 'window_end')}"
        case specs.Session():
            window = [f"session({say(spec.time, 0)}, {span(spec.gap)})"]
            ends = _final(spec.emit, "window_end", "is beyond")
            return f"by {keyed(spec.keys, say, *window)}: {_made(spec.measures, say)}{ends}"
        case specs.Top():
            per = f" of each {keyed(spec.keys, say)}" if spec.keys else ""
            ends = plus(say(spec.horizon.time, 0), spec.horizon.span - spec.lateness) if spec.horizon else ""
            return f"{chosen(spec)} by {_order(spec.order, say)}{per}{_final(spec.emit, ends)}"
        case specs.Over():
            looks = ", ".join(f"{each.name} = {_look(each, say, spec)}" for each in spec.looks)
            order = f", in the order of {_order(spec.order, say)}" if spec.order else ""
            among = f"rows of equal {keyed(spec.keys, say)}" if spec.keys else "all rows"
            time = spec.horizon.time if spec.horizon else ""
            return f"each row among {among}{order}: {looks}{_final(spec.emit, say(time, 0), 'is beyond')}"
        case specs.Deduplicate():
            again = f", and again when more than {span(spec.within)} after it" if spec.within is not None else ""
            time = say(spec.horizon.time, 0)
            first = f"the first of each {keyed(spec.keys, say)} by {time}{again}"
            return first + _final(spec.emit, time, "is beyond")
        case specs.Hold():
            return f"the rows of windows that are over{_final('final', say(spec.time, 0))}"
        case specs.Pass():
            if spec.size:
                return f"each row once for each window of {_windows(say(spec.time, 0), spec.size, spec.every)}"
            if spec.explode is None:
                return "the rows of all inputs"
            return f"each row once for each element of {say(spec.explode, 0)}, as {spec.element}"
        case specs.Groups():
            name = getattr(spec.function, "__name__", "a function")
            return f"by {keyed(spec.keys, say)}: {', '.join(each.name for each in spec.made)} = {name}(rows)"
        case specs.TableJoin():
            return _on(spec, say)
        case specs.IntervalJoin():
            apart = f"{time_of(say, 1)} − {time_of(say, 0)} from {span(spec.low)} to {span(spec.high)}"
            return f"{_on(spec, say)}, {apart}"
        case specs.AsOfJoin():
            return f"{_on(spec, say)}, with the table as of {time_of(say, 0)}"
        case specs.LatestJoin():
            return f"{_on(spec, say)}, with the table as it is when a row comes"


def span(micros: int) -> str:
    """A span of time, which may be negative.

    >>> span(90_000_000), span(-1_000_000)
    ('1 minute 30 seconds', '−1 second')
    """
    return ("−" if micros < 0 else "") + format_duration(timedelta(microseconds=abs(micros)))


def plus(time: str, micros: int) -> str:
    """A time and a span.

    >>> plus("at", 0), plus("at", -1_000_000)
    ('at', 'at − 1 second')
    """
    return time if not micros else f"{time} {'−' if micros < 0 else '+'} {span(abs(micros))}"


def call(function: str, arguments: Sequence[str], fraction: float = 0.0) -> str:
    """An aggregate as one writes it.

    >>> call("count", ()), call("count_distinct", ["user"]), call("percentile", ["ms"], 0.5)
    ('count(*)', 'count(DISTINCT user)', 'percentile(ms, 0.5)')
    """
    if function == "count_distinct":
        return f"count(DISTINCT {arguments[0]})"
    shown = [*arguments, *([str(fraction)] if function.endswith("percentile") else [])]
    return f"{function}({', '.join(shown) or '*'})"


def listed(names: Sequence[str]) -> str:
    """Names as one lists them: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def chosen(spec: specs.Top) -> str:
    """Which rows a top takes.

    >>> chosen(specs.Top((), (), (), 3)), chosen(specs.Top((), (), (), 3, ties="dense_rank"))
    ('the first 3', 'those of dense_rank up to 3')
    """
    return f"those of {spec.ties} up to {spec.count}" if spec.ties else f"the first {spec.count}"


def keyed(keys: Sequence[str], say: Say, *more: str) -> str:
    """Keys as they are computed: one of our own names says nothing."""
    said = [(key, say(key, 0)) for key in keys]
    shown = [text if key.startswith("_") or key == text else f"{text} AS {key}" for key, text in said]
    return ", ".join([*shown, *more]) or "nothing"


def time_of(say: Say, side: int) -> str:
    """The time column of one side of a join, which is sent as a number."""
    return say("_t", side).removeprefix("unix_micros(").removesuffix(")")


def written(measure: specs.Measure, say: Say) -> str:
    """An aggregate over what its author wrote."""
    return call(measure.function, [say(name, 0) for name in measure.arguments], measure.fraction)


def _final(emit: Emit, time: str, when: str = "reaches") -> str:
    return f"; a row appears when the mark {when} {time}" if emit == "final" else ""


def _on(spec: specs.JoinSpec, say: Say) -> str:
    keys = [(say(f"_k{number}", 0), say(f"_k{number}", 1)) for number in range(spec.keys)]
    return f"{spec.how} join on " + " AND ".join(f"{left} = {right}" for left, right in keys)


def _aligned(spec: specs.Reduce, say: Say) -> str:
    return _windows(say("window_start", 0), spec.size or 0, spec.every)


def _windows(time: str, size: int, every: int | None) -> str:
    return f"hopping({time}, {span(size)}, every {span(every)})" if every else f"tumbling({time}, {span(size)})"


def _order(order: Sequence[specs.Order], say: Say) -> str:
    return ", ".join(say(each.column, 0) + (" DESC" if each.descending else "") for each in order)


def _made(measures: Sequence[specs.Measure], say: Say) -> str:
    return ", ".join(f"{each.name} = {written(each, say)}" for each in measures) or "each once"


def _look(look: Look, say: Say, spec: specs.Over) -> str:
    arguments = [say(name, 0) for name in look.arguments]
    if look.function in ("lag", "lead"):
        return f"{look.function}({arguments[0]}, {look.offset})"
    if look.frame is None:
        return f"{look.function}()"
    written = call(look.function, arguments, look.fraction)
    if spec.window is not None:
        return f"{written} over the last {span(spec.window)}"
    timed = look.frame.kind == "range" and spec.horizon is not None
    before, after = (
        "all" if far is None else span(far) if timed else str(far) for far in (look.frame.before, look.frame.after)
    )
    return f"{written} over {look.frame.kind} {before} before, {after} after"
