"""The measurements of change capture, over little."""

from __future__ import annotations

from millstream.bench.capture import measure
from millstream.bench.capture_process import peak_memory
from millstream.bench.plain import apart

MIB = 1 << 20


def grown(size: int) -> tuple[float, float]:
    before = peak_memory()
    held = b"x" * size
    return before, peak_memory() if held else 0.0


def test_memory_is_the_most_that_the_process_itself_had() -> None:
    ours = b"x" * (400 * MIB)  # what starts a process is no part of it
    before, after = apart(grown, 100 * MIB)
    assert len(ours) / MIB > after > before + 90


def test_a_capture_says_its_rate_its_processor_and_its_memory() -> None:
    found = {each.name: each for each in measure(("sqlite_changes",), 0.001, lambda _: None)}
    assert list(found) == ["sqlite_changes", "sqlite_changes_cpu", "sqlite_changes_memory", "sqlite_writes"]
    assert all(each.value > 0 for each in found.values())
    assert 10 < found["sqlite_changes_memory"].value < 500
