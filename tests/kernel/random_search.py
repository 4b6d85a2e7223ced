"""Random searches: patterns, conditions and measures, each expression with what it means in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from millstream.relation.pattern import (
    Aggregated,
    Alternatives,
    Anchor,
    Classifier,
    Excluded,
    Formula,
    MatchNumber,
    Navigation,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Skip,
    Slot,
    Stage,
    Variable,
)
from tests.kernel.alone import SECOND
from tests.kernel.pattern_oracle import Means, Meant

NAMES = ("A", "B", "C")
Told = tuple[str, Mapping[str, Any], Means]


def compare(test: Callable[[Any, Any], bool]) -> Means:
    def means(values: dict[str, Any]) -> bool | None:
        one, other = values.values()
        return None if one is None or other is None else test(one, other)

    return means


def both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else None if one is None or other is None else True


def row_condition(chance: Random, name: str) -> Told:
    """One that looks at the row and its neighbours."""
    variables = chance.choice(((), (name,)))
    here = Navigation("last", variables, "i")
    before = Navigation("last", variables, "i", away=chance.choice((-1, -1, -2, 1)))
    return chance.choice(
        (
            ("x > 0", {"x": here}, lambda v: None if v["x"] is None else v["x"] > 0),
            ("x <= 1", {"x": here}, lambda v: None if v["x"] is None else v["x"] <= 1),
            ("s = 'a'", {"s": Navigation("last", variables, "s")}, lambda v: None if v["s"] is None else v["s"] == "a"),
            ("s IS NULL", {"s": Navigation("last", variables, "s")}, lambda v: v["s"] is None),
            ("x > p", {"x": here, "p": before}, compare(lambda a, b: a > b)),
            ("x < p", {"x": here, "p": before}, compare(lambda a, b: a < b)),
            ("p IS NULL", {"p": before}, lambda v: v["p"] is None),
        )
    )


def start_condition(chance: Random, name: str) -> Told:
    """One that looks at the first row of the match besides."""
    here, there = Navigation("last", (name,), "i"), Navigation("first", (), "i", away=chance.choice((0, 0, -1, 1)))
    return chance.choice(
        (
            ("x >= y", {"x": here, "y": there}, compare(lambda a, b: a >= b)),
            ("x < y AND s = 'a'", {"x": here, "y": there, "s": Navigation("last", (), "s")},
             lambda v: both(compare(lambda a, b: a < b)({"x": v["x"], "y": v["y"]}), None if v["s"] is None else v["s"] == "a")),
        )
    )  # fmt: skip


def match_condition(chance: Random, name: str) -> Told:
    """One that looks at all of the match so far."""
    other = chance.choice(NAMES)
    here = Navigation("last", (), "i")
    away = chance.choice((0, 0, -1, 1))
    return chance.choice(
        (
            ("x >= y", {"x": here, "y": Navigation("last", (other,), "i", away=away)}, compare(lambda a, b: a >= b)),
            ("x <= y", {"x": here, "y": Navigation("first", (other,), "i", steps=1)}, compare(lambda a, b: a <= b)),
            ("n < 3", {"n": Aggregated("count", (), ())}, lambda v: v["n"] < 3),
            ("n <= 1", {"n": Aggregated("count", (other,), ("s",))}, lambda v: v["n"] <= 1),
            ("f >= 0.1D", {"f": Aggregated("avg", (other,), ("f",))}, _at_least(0.1)),
            ("f >= 0.1D", {"f": Aggregated("sum", (name,), ("f",))}, _at_least(0.1)),
            ("m > x", {"m": Aggregated("max", (), ("i",)), "x": here}, compare(lambda a, b: a > b)),
            ("c = 'A'", {"c": Classifier("last", (), 1)}, lambda v: None if v["c"] is None else v["c"] == "A"),
            ("c <> 'B'", {"c": Classifier("last", (), away=-1)}, lambda v: None if v["c"] is None else v["c"] != "B"),
        )
    )  # fmt: skip


def _at_least(bound: float) -> Means:
    return lambda v: None if v["f"] is None else v["f"] != v["f"] or v["f"] >= bound


def measure(chance: Random, running: bool) -> Told:
    """Any measure."""
    variables = chance.choice(((), ("A",), ("B",), ("A", "C")))
    final = running and chance.random() < 0.4
    which: Any
    which, steps, away = chance.choice(("first", "last")), chance.choice((0, 0, 1)), chance.choice((0, 0, -1, 1))
    slot: Slot = chance.choice(
        (
            Navigation(which, variables, chance.choice(("i", "s", "f", "at")), steps, away, final),
            Aggregated("count", variables, (), final=final),
            Aggregated("count", variables, ("i",), final=final),
            Aggregated("sum", variables, ("f",), final=final),
            Aggregated("avg", variables, ("i",), final=final),
            Aggregated("min", variables, ("f",), final=final),
            Aggregated("collect_list", variables, ("i",), final=final),
            Classifier(which, variables, steps, away, final),
            MatchNumber(),
            Stage(),
        )
    )  # fmt: skip
    if isinstance(slot, Aggregated) and slot.function == "count" and chance.random() < 0.5:
        return "v + 1", {"v": slot}, lambda v: v["v"] + 1
    return "v", {"v": slot}, lambda v: v["v"]


def pattern(chance: Random, depth: int = 3, *, timed: bool = False, excluding: bool = False) -> Pattern:
    """Any pattern."""

    def part(deeper: int) -> Pattern:
        if deeper == 0 or chance.random() < 0.3:
            return Variable(chance.choice(NAMES))
        kind = chance.random()
        if kind < 0.35:
            return Sequential(tuple(part(deeper - 1) for _ in range(chance.choice((0, 1, 2, 2, 3)))))
        if kind < 0.5:
            return Alternatives(tuple(part(deeper - 1) for _ in range(chance.choice((2, 2, 3)))))
        if kind < 0.55 and excluding:
            return Excluded(part(deeper - 1))
        if kind < 0.62:
            return Anchor(chance.choice(("start", "end", "expiry") if timed else ("start", "end")))
        least = chance.choice((0, 0, 1, 1, 2))
        most = chance.choice((None, None, max(least, 1), least + 2))
        return Repeated(part(deeper - 1), least, most, chance.random() < 0.7)

    made = part(depth)
    return made if isinstance(made, Sequential) else Sequential((Variable(chance.choice(NAMES)), made))


def search(
    chance: Random, *, level: int = 2, near: bool = False, within: int | None = None, shown: Any = "one"
) -> Meant:
    """Any search; of level 0 with conditions of the row, 1 of the first row too, 2 of all of the match."""
    makers = (row_condition, start_condition, match_condition)[: level + 1]
    told = {name: chance.choice((row_condition, *makers))(chance, name) for name in NAMES if chance.random() < 0.8}
    measures = [measure(chance, shown != "one") for _ in range(chance.randint(1, 3))]
    skip = chance.choice(
        (Skip(), Skip(), Skip("next_row"), Skip(chance.choice(("first", "last")), (chance.choice(NAMES),)))
    )
    shape = pattern(chance, timed=within is not None, excluding=shown in ("all", "all_with_empty"))
    if skip.variables and f"name='{skip.variables[0]}'" not in str(shape):
        skip = Skip()
    made = Search(
        "p",
        shape,
        tuple(Formula(name, sql, tuple(slots.items())) for name, (sql, slots, _) in told.items()),
        tuple(Formula(f"m{at}", sql, tuple(slots.items())) for at, (sql, slots, _) in enumerate(measures)),
        shown,
        skip,
        within,
        near,
    )
    return Meant(made, {name: means for name, (_, _, means) in told.items()}, tuple(means for _, _, means in measures))


WITHIN = (None, SECOND, 20 * SECOND)
