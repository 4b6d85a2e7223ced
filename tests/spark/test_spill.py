"""Chunks that are spilled come back as they were, and leave nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from millstream.kernel.exchange.chunk import Chunk, Kind
from millstream.spark.spill import LARGE, clear, folder_in, lay_aside, taken_up

SIZES = st.sampled_from([0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE])
CHUNKS = st.lists(
    st.builds(
        lambda number, kind, size, byte: Chunk(number, number + 1, number + 2, kind, bytes([byte]) * size, number + 3),
        st.integers(0, 9),
        st.sampled_from(list(Kind)),
        SIZES,
        st.integers(0, 255),
    ),
    max_size=6,
)


@given(CHUNKS)
def test_a_chunk_comes_back_as_it_was(chunks: list[Chunk]) -> None:
    with tempfile.TemporaryDirectory() as parent, folder_in(Path(parent)) as folder:
        sent = list(lay_aside(chunks, str(folder)))
        back = [taken_up(chunk) for chunk in sent]
        clear(folder)
        assert not list(folder.iterdir())
        assert [chunk._replace(data=bytes(chunk.data)) for chunk in back] == chunks  # mapped, so it outlives its file
        assert [taken_up(chunk) for chunk in lay_aside(chunks, "")] == chunks


@given(CHUNKS)
def test_only_large_ones_are_laid_aside(chunks: list[Chunk]) -> None:
    with tempfile.TemporaryDirectory() as parent, folder_in(Path(parent)) as folder:
        sent = list(lay_aside(chunks, str(folder)))
        large = [len(chunk.data) >= LARGE for chunk in chunks]
        assert len(list(folder.iterdir())) == sum(large)
        assert [chunk.kind < 0 for chunk in sent] == large
        assert all(len(chunk.data) < LARGE for chunk in sent)


def test_a_task_that_runs_again_does_not_write_over_what_was_sent(tmp_path: Path) -> None:
    chunk = Chunk(1, 2, 3, Kind.CHANGES, b"x" * LARGE, 2)
    first, second = (next(lay_aside([chunk], str(tmp_path))) for _ in range(2))
    assert first.data != second.data
    assert taken_up(first) == taken_up(second) == chunk


def test_a_folder_is_private_and_gone_at_the_end_even_of_a_run_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "aside-old").mkdir()
    (tmp_path / "aside-old" / "left").write_bytes(b"x")
    (tmp_path / "state").mkdir()
    with folder_in(tmp_path) as folder:
        assert sorted(tmp_path.iterdir()) == sorted([folder, tmp_path / "state"])
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "left").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]
