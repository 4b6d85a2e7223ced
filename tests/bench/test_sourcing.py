"""The measurements of event sourcing, over little."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from millstream.bench import eventsourcing_worker, sourcing
from millstream.sourcing import EventStore


def test_what_is_timed_is_done(tmp_path: Path) -> None:
    made = {
        "each": sourcing.execute_each(f"{tmp_path}/each.db", 20),
        "threads": sourcing.execute_in_threads(f"{tmp_path}/threads.db", 160),
        "many": sourcing.execute_many(f"{tmp_path}/many.db", 2000),
        "replay": sourcing.replay(f"{tmp_path}/replay.db", 3000),
    }
    assert all(found["seconds"] > 0 and found["processor"] > 0 for found in made.values())
    events = {}
    for name in made:
        with EventStore(f"sqlite:{tmp_path}/{name}.db", "accounts", sourcing.ACCOUNT) as store:
            checked = store.check()
            assert checked.found == 0
            events[name] = checked.events, checked.aggregates
    filled = sourcing._AGGREGATES
    assert events == {
        "each": (21, 1),
        "threads": (filled + 160, filled),
        "many": (filled + 2000, filled),
        "replay": (3000, 1),
    }
    assert sourcing.syncs_per_second(tmp_path) > 1


def test_the_worker_of_the_other_package_stands_alone() -> None:
    tree = ast.parse(Path(eventsourcing_worker.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [name for name in modules if name and name.startswith("millstream")]


@pytest.mark.peers
def test_the_other_package_does_the_same() -> None:
    found = {each.name: each for each in sourcing.measure(sourcing.NAMES, 0.01, lambda _: None)}
    assert list(found) == list(sourcing.NAMES)
    assert all(each.value > 0 and each.baseline for each in found.values())
    assert "the disk syncs" in found["commands"].note
