"""What kernels keep: whether that ever ends, and whether a replay gives the same.

``is_bounded`` is never truer than what the kernels do with their state. What is said of it to people is in
:mod:`millstream.explain.retention`.
"""

from __future__ import annotations

from millstream.plan import spec as specs
from millstream.relation.approximate import EXACT


def is_bounded(spec: specs.Spec) -> bool:
    """Whether what a kernel keeps stops growing on endless input."""
    match spec:
        case specs.Reduce():
            grows = any(not adds_up(each, spec.insert_only) for each in spec.measures)
            return spec.size is not None or spec.horizon is not None or not (spec.keys or grows)
        case specs.Session() | specs.IntervalJoin() | specs.Pass() | specs.Hold():
            return True
        case specs.Top():
            return spec.horizon is not None or (spec.insert_only and not spec.keys)
        case specs.Over():
            return spec.until is not None or (spec.horizon is not None and reach(spec) == 0)
        case specs.Deduplicate():
            return spec.within is not None
        case specs.Groups() | specs.TableJoin():
            return spec.horizon is not None
        case specs.Changelog() | specs.AsOfJoin() | specs.LatestJoin():
            return False


def is_replayable(spec: specs.Spec) -> bool:
    """Whether a replay gives the same rows, wherever batches end."""
    if isinstance(spec, specs.Reduce | specs.Session):
        return all(each.function != "approx_percentile" for each in spec.measures)
    return not isinstance(spec, specs.LatestJoin)


def adds_up(measure: specs.Measure, insert_only: bool) -> bool:
    """Whether an aggregate needs no more than a few numbers, a sketch, or the best value so far."""
    best = measure.function in ("min", "max", "min_by", "max_by")
    return measure.function in ("count", "sum", "avg", *EXACT) or (best and insert_only)


def reach(spec: specs.Over) -> int | None:
    """How many rows away looks go, besides distances in time; None where there is no end to it."""
    away = 0
    for look in spec.looks:
        if look.function in ("lag", "lead"):
            away = max(away, look.offset)
        elif look.frame is None or look.frame.before is None or look.frame.after is None:
            return None
        elif look.frame.kind == "rows":
            away = max(away, look.frame.before, look.frame.after)
    return away
