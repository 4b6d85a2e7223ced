"""Versions exchanged in several stores: one that was cut short in between is finished, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from millstream.failpoint import armed
from millstream.runtime.ownership import exchange, finish_exchange
from millstream.store import StoreWriter
from millstream.store.sqlite.writer import sqlite_writer
from millstream.store.versioned import NEXT, OLD, Beside
from tests.contracts.store import PIPELINE, TOTALS, Batches


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, StoreWriter]]:
    """Two claimed stores, each with a version of checkpoint c1 and, beside it, one of c2."""
    with ExitStack() as stack:
        found: dict[str, StoreWriter] = {}
        for name in ("a", "b"):
            writer = stack.enter_context(sqlite_writer(tmp_path / f"{name}.db"))
            Batches(writer, "c1").commit(TOTALS, ("ann", 1, 1.0, 1))
            with Beside(sqlite_writer(tmp_path / f"{name}.db")) as beside:
                Batches(beside, "c2").commit(TOTALS, ("bob", 2, 2.0, 1))
            found[name] = writer
        yield found


def ids(stores: dict[str, StoreWriter], version: str = "") -> list[str | None]:
    lasts = [writer.last(PIPELINE + version) for writer in stores.values()]
    return [last.checkpoint if last else None for last in lasts]


def test_an_exchange_that_was_cut_short_between_two_stores_is_finished(stores: dict[str, StoreWriter]) -> None:
    with armed("rebuild.after_swap"), pytest.raises(RuntimeError):
        exchange(PIPELINE, stores, NEXT, OLD)
    assert ids(stores) == ["c2", "c1"]
    finish_exchange(PIPELINE, stores)
    assert (ids(stores), ids(stores, OLD), ids(stores, NEXT)) == (["c2", "c2"], ["c1", "c1"], [None, None])
    with armed("rebuild.after_swap"), pytest.raises(RuntimeError):
        exchange(PIPELINE, stores, OLD, NEXT)
    finish_exchange(PIPELINE, stores)
    assert (ids(stores), ids(stores, OLD), ids(stores, NEXT)) == (["c1", "c1"], [None, None], ["c2", "c2"])


def test_a_version_that_waits_beside_is_left_alone(stores: dict[str, StoreWriter]) -> None:
    finish_exchange(PIPELINE, stores)
    assert (ids(stores), ids(stores, NEXT)) == (["c1", "c1"], ["c2", "c2"])
