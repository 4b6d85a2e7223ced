"""What every store must do with versions of a pipeline; the fixtures are those of :class:`tests.contracts.store.StoreContract`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.errors import PipelineError, TakenOver
from millstream.store.contract import StoreReader, StoreWriter, Told
from millstream.store.versioned import NEXT, OLD, Beside
from tests.contracts.store import BAG, BEAT, PAIRS, PIPELINE, TOTALS, Batches, rows


class VersionContract:
    """Inherit beside the other contract."""

    def test_a_version_beside_takes_the_place_of_the_stored_one_and_can_be_swapped_back(
        self, batches: Batches, store: StoreReader, again: Callable[[], StoreWriter]
    ) -> None:
        batches.commit(TOTALS, ("ann", 1, 0.5, 1))
        batches.commit(BAG, ("home", 1.0, 2))
        with Beside(again()) as beside:
            other = Batches(beside, "c2")
            other.commit(TOTALS, ("bob", 7, 0.5, 1))
            other.commit(BAG, ("work", 3.0, 1))
            assert rows(store, "totals") == [("ann", 1, 0.5)]
            assert rows(store, "totals~next") == [("bob", 7, 0.5)]
        batches.writer.swap(PIPELINE, PIPELINE + NEXT, PIPELINE + OLD)
        assert rows(store, "totals") == [("bob", 7, 0.5)]
        assert rows(store, "bag") == [("work", 3.0)]
        assert rows(store, "totals~old") == [("ann", 1, 0.5)]
        assert rows(store, "bag~old") == [("home", 1.0), ("home", 1.0)]
        assert [entry.checkpoint for entry in batches.writer.entries(PIPELINE)] == ["c2", "c2"]
        batches.writer.swap(PIPELINE, PIPELINE + OLD, PIPELINE + NEXT)
        assert rows(store, "totals") == [("ann", 1, 0.5)]
        assert rows(store, "bag~next") == [("work", 3.0)]
        assert {entry.checkpoint for entry in batches.writer.entries(PIPELINE)} == {"c1"}

    def test_heartbeats_go_with_their_version_and_one_beside_sees_those_of_the_stored_one(
        self, batches: Batches, again: Callable[[], StoreWriter]
    ) -> None:
        batches.commit(TOTALS, beats=[BEAT])
        later = BEAT._replace(time=99)
        with Beside(again()) as beside:
            other = Batches(beside, "c2")
            other.commit(TOTALS, beats=[later])
            assert beside.heartbeats(PIPELINE) == [Told("c2", 0, later), Told("c1", 0, BEAT)]
        for _ in range(2):
            batches.writer.swap(PIPELINE, PIPELINE + NEXT, PIPELINE + OLD)
            assert batches.writer.heartbeats(PIPELINE) == [Told("c2", 0, later)]
            assert batches.writer.heartbeats(PIPELINE + NEXT) == []
            batches.writer.swap(PIPELINE, PIPELINE + OLD, PIPELINE + NEXT)
            assert batches.writer.heartbeats(PIPELINE) == [Told("c1", 0, BEAT)]

    def test_a_swapped_version_goes_on_and_the_next_swap_drops_the_oldest(
        self, batches: Batches, store: StoreReader, again: Callable[[], StoreWriter]
    ) -> None:
        batches.commit(TOTALS, ("ann", 1, 0.5, 1))
        for number, checkpoint in ((2, "c2"), (3, "c3")):
            with Beside(again()) as beside:
                other = Batches(beside, checkpoint)
                other.commit(TOTALS, ("bob", number, 0.5, 1))
                other.commit(BAG, ("x", 1.0, 1))
                other.commit(PAIRS, (None, "x", 1, 1))
                other.writer.release()
            batches.writer.swap(PIPELINE, PIPELINE + NEXT, PIPELINE + OLD)
        assert rows(store, "totals~old") == [("bob", 2, 0.5)]
        assert sorted(view.name for view in store.views() if "~" in view.name) == [
            "bag~old", "facts~old", "pairs~old", "totals~old",
        ]  # fmt: skip
        with again() as writer:
            newest = Batches(writer, "c3", takeover=True)
            newest.next = 3
            newest.commit(BAG, ("x", 1.0, -1))
            newest.commit(PAIRS, (None, "x", 2, 1))
        assert rows(store, "bag") == []
        assert rows(store, "pairs") == [(None, "x", 2)]
        assert rows(store, "totals") == [("bob", 3, 0.5)]

    def test_a_swap_needs_the_pipeline_and_a_version_that_is_there(
        self, batches: Batches, store: StoreReader, again: Callable[[], StoreWriter]
    ) -> None:
        batches.commit(TOTALS, ("ann", 1, 0.5, 1))
        with pytest.raises(PipelineError, match="there is no version 'shop~next'"):
            batches.writer.swap(PIPELINE, PIPELINE + NEXT, PIPELINE + OLD)
        with Beside(again()) as beside:
            Batches(beside, "c2").commit(TOTALS, ("bob", 7, 0.5, 1))
        with again() as other:
            other.claim(PIPELINE, takeover=True)
            with pytest.raises(TakenOver):
                batches.writer.swap(PIPELINE, PIPELINE + NEXT, PIPELINE + OLD)
        assert rows(store, "totals") == [("ann", 1, 0.5)]

    def test_who_still_builds_a_version_that_was_swapped_writes_nothing(
        self, batches: Batches, store: StoreReader, again: Callable[[], StoreWriter]
    ) -> None:
        batches.commit(TOTALS, ("ann", 1, 0.5, 1))
        with Beside(again()) as beside:
            builder = Batches(beside, "c2")
            builder.commit(TOTALS, ("bob", 7, 0.5, 1))
            batches.writer.swap(PIPELINE, PIPELINE + NEXT, PIPELINE + OLD)
            with pytest.raises(TakenOver):
                builder.commit(TOTALS, ("bob", 8, 0.5, 1))
        assert rows(store, "totals") == [("bob", 7, 0.5)]
