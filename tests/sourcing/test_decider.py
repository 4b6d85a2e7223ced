"""What a decider must be."""

from __future__ import annotations

from dataclasses import dataclass
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
