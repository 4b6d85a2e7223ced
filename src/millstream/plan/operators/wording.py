"""Words for what kernels do: spans, calls, keys and orders as their author would write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

from millstream.plan.operators.clauses import Horizon, Measure, Order
from millstream.relation.approximate import EXACT
from millstream.relation.clauses import Emit
from millstream.relation.schema import format_duration

Say: TypeAlias = Callable[[str, int], str]
"""What a column of a kernel's input is, on one side of it, as its author wrote it."""

ENDLESS = "never: it grows with "
TAKEN_BACK = "because rows can be taken back"
USE_WINDOWS = 'windows let go of it: group_by(window.tumbling("at", "1 day"), …) before, or as one of its keys'


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
    """Names in a list: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def keyed(keys: Sequence[str], say: Say, *more: str) -> str:
    """Keys as they are computed: one of our own names says nothing."""
    said = [(key, say(key, 0)) for key in keys]
    shown = [text if key.startswith("_") or key == text else f"{text} AS {key}" for key, text in said]
    return ", ".join([*shown, *more]) or "nothing"


def time_of(say: Say, side: int) -> str:
    """The time column of one side of a join, which is sent as a number."""
    return say("_t", side).removeprefix("unix_micros(").removesuffix(")")


def written(measure: Measure, say: Say) -> str:
    """An aggregate over what its author wrote."""
    return call(measure.function, [say(name, 0) for name in measure.arguments], measure.fraction)


def final(emit: Emit, time: str, when: str = "reaches") -> str:
    """When a final row appears, to be put behind what a kernel does."""
    return f"; a row appears when the mark {when} {time}" if emit == "final" else ""


def windows(time: str, size: int, every: int | None) -> str:
    """Windows as one says them."""
    return f"hopping({time}, {span(size)}, every {span(every)})" if every else f"tumbling({time}, {span(size)})"


def ordered(order: Sequence[Order], say: Say) -> str:
    """An order as one writes it."""
    return ", ".join(say(each.column, 0) + (" DESC" if each.descending else "") for each in order)


def made(measures: Sequence[Measure], say: Say) -> str:
    """Aggregates with their names."""
    return ", ".join(f"{each.name} = {written(each, say)}" for each in measures) or "each once"


def for_each(keys: Sequence[str], more: Sequence[str]) -> str:
    """Of what there is one row."""
    return f"for each {listed([*keys, *more])}" if keys or more else "in all"


def of_each(keys: Sequence[str], say: Say) -> str:
    """Of what groups rows are."""
    return f"of each {listed([say(key, 0) for key in keys])}" if keys else "of all"


def beyond(horizon: Horizon, say: Say, more: int = 0) -> str:
    """When rows can change no more."""
    return f"when the mark is beyond {plus(say(horizon.time, 0), horizon.span + more)}"


def on_keys(how: str, keys: int, say: Say) -> str:
    """A join on equal keys."""
    pairs = [(say(f"_k{number}", 0), say(f"_k{number}", 1)) for number in range(keys)]
    return f"{how} join on " + " AND ".join(f"{left} = {right}" for left, right in pairs)


def values_kept(measures: Sequence[Measure], insert_only: bool, say: Say) -> str:
    """What is kept for aggregates: numbers that add up, then the values of those that need them."""
    exact = [each for each in measures if each.function not in EXACT]
    numbers = [written(each, say) for each in exact if each.adds_up(insert_only)]
    parts = [", ".join(dict.fromkeys(numbers)) or "how many rows it has"]
    for each in measures:
        if each.function in EXACT:
            parts.append(f"a sketch of {say(each.arguments[0], 0)}: {written(each, say)} is approximate")
        elif not each.adds_up(insert_only):
            best = each.function in ("min", "max", "min_by", "max_by")
            why = TAKEN_BACK if best else f"for {written(each, say)}"
            which = "each distinct" if each.function in ("count_distinct", "collect_set") else "every"
            parts.append(f"{which} {listed([say(name, 0) for name in each.arguments])}, {why}")
    return "; and ".join(dict.fromkeys(parts))
