"""``make demo`` does what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millstream import load_pipeline

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.timeout(900)
def test_the_demo_runs_through() -> None:
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for line in (
        "one member left, nothing unread",
        "2,001 records before, 99 after",
        "of 42,001 clicks in the view: whole batches, no half one",
        "per_minute",
    ):
        assert line in result.stdout
    assert "equal" in result.stderr
    assert "NOT equal" not in result.stderr


def test_the_pipeline_of_the_demo_is_a_page_long_and_holds_together() -> None:
    file = EXAMPLES / "clicks.py"
    assert len(file.read_text().splitlines()) < 80
    assert list(load_pipeline(file).views) == ["per_minute", "users"]
