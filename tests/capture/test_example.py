"""The textbook's race: what is written twice drifts, what is captured does not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "capture.py"


def test_dual_writes_drift_and_a_capture_does_not(tmp_path: Path) -> None:
    pytest.importorskip("millstream.capture.sqlite.source")
    wrong = runpy.run_path(str(EXAMPLE))["measure"](tmp_path)
    assert wrong["dual writes"] > 0
    assert wrong["capture"] == 0
