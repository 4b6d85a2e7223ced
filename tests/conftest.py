"""Servers that several tests share: each is started once, on a free loopback port, and ends with the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing import KafkaBroker


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker
