"""Debezium's engine, where it can be had; it is some 200 MB, and made once for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.engine.child import python_of_engine
from millstream.errors import MachineError


@pytest.fixture(scope="session")
def engine() -> Path:
    """Its Python."""
    try:
        return python_of_engine()
    except MachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no engine of Debezium here: {error.message}")
