"""The command loop on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.log import open_log
from millstream.log.contract import Log
from millstream.testing import KafkaBroker
from tests.sourcing.loops import LoopContract


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[Log]:
    with open_log(kafka.url) as opened:
        yield opened


class TestKafka(LoopContract):
    """Every promise of a loop, with kills and rebalances."""
