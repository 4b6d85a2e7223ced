"""What a decider must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial, singledispatch
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.sourcing import Decider
from millstream.sourcing.digest import digest_of_code
from tests.sourcing import models


@dataclass
class Loose:
    n: int


@dataclass(frozen=True)
class Tight:
    n: int


def made(**given: Any) -> Decider[int]:
    return Decider(0, lambda _, command: [command], lambda state, event: state + event.n, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"events": Loose}, "events: Loose can be changed"),
        ({"events": int}, "expected types that are dataclasses"),
        ({"events": ()}, "events: found none"),
        ({"events": (Tight, Tight)}, "events: Tight is there twice"),
        ({"events": Tight, "commands": Loose}, "commands: Loose can be changed"),
        ({"events": Tight, "upcasters": {("Tight", 0): dict}}, "expected a number from 1 on"),
        ({"events": Tight, "upcasters": {("Tight", 2): dict}}, "has one from version 2, and none from version 1"),
    ],
)
def test_a_decider_that_does_not_hold_together_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(**given)


FACTOR = 2


def helper(n: int) -> int:
    return n * FACTOR


def uses_helper(state: int, event: Tight) -> int:
    return state + helper(event.n)


def test_the_digest_of_code_sees_what_it_names_and_not_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of_code(uses_helper)
    assert before == digest_of_code(uses_helper)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    changed = digest_of_code(uses_helper)
    assert changed != before
    monkeypatch.setitem(globals(), "helper", lambda n: n)
    assert digest_of_code(uses_helper) not in (before, changed)


class Folding:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, state: int, event: Tight) -> int:
        return state + event.n * self.by

    def fold(self, state: int, event: Tight) -> int:
        return helper(state)


def dispatching(step: int) -> Callable[..., int]:
    """A function that is chosen by the type of its argument."""

    @singledispatch
    def fold(event: Any) -> int:
        return 0

    def one(event: Tight) -> int:
        return 1

    def two(event: Tight) -> int:
        return 2

    fold.register(Tight)(one if step == 1 else two)
    return fold


def test_the_digest_looks_into_what_can_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, list[Any]] = {
        "partial": [partial(uses_helper, 1), partial(uses_helper, 2), partial(helper, 1)],
        "object": [Folding(1), Folding(2)],
        "method": [Folding(1).fold, Folding(1).__call__],
        "dispatch": [dispatching(1), dispatching(2)],
        "cache": [lru_cache(helper), lru_cache(uses_helper)],
    }
    for kind, things in made.items():
        digests = [digest_of_code(each) for each in things]
        assert digests == [digest_of_code(each) for each in things], kind
        assert len(set(digests)) == len(things), kind
    assert digest_of_code(dispatching(1)) == digest_of_code(dispatching(1))
    before = digest_of_code(Folding(1).fold)
    monkeypatch.setitem(globals(), "FACTOR", 9)
    assert digest_of_code(Folding(1).fold) != before


def test_the_digest_is_the_same_in_another_process() -> None:
    import subprocess
    import sys

    code = "from millstream.sourcing.digest import digest_of_code as d; from tests.sourcing import models as m; print(d(m.evolve, m.sell, m.Show, {'b', 'a', 'c'}))"
    there = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**__import__("os").environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert there == {digest_of_code(models.evolve, models.sell, models.Show, {"b", "a", "c"})}
