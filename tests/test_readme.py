"""The README's first pipeline, as a newcomer runs it: pasted into a file, it says nothing but what it is told to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from millstream.store import open_reader

README = Path(__file__).parents[1] / "README.md"


def test_the_first_pipeline_is_right_and_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (tmp_path / "first.py").write_text(found[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with open_reader(f"sqlite:{tmp_path / 'shop.views.db'}") as store:
        rows = store.table("per_minute").select(["page", "n", "people"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("/", 3, 2), ("/pay", 1, 1)]
