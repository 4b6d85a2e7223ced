"""``make demo`` does what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_runs_through() -> None:
    result = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "one member left, nothing unread" in result.stdout
    assert "2,001 records before, 99 after" in result.stdout
    assert "22,000 clicks" in result.stdout
