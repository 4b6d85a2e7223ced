"""The measurement of erasure measures an erasure."""

from __future__ import annotations

from pathlib import Path

from millstream.bench.erase import measure


def test_every_thousandth_record_is_blanked(tmp_path: Path) -> None:
    result = measure(tmp_path, 0.01)
    assert (result.name, result.unit) == ("erase", "s per million records")
    assert result.value > 0
    assert result.note.startswith("10 of 10000 records blanked")
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"user-7@" not in left
    assert b"user-8@" in left
