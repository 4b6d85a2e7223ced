from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.sqlite.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "shop.db")
    yield found
    found.close()
