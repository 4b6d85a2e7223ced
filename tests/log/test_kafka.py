"""The Kafka engine keeps the contract, against a real broker, and what only it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millstream.log import open_log
from millstream.log.contract import Log
from millstream.testing import KafkaBroker
from tests.contracts.log import LogContract


@pytest.fixture
def log(kafka: KafkaBroker) -> Iterator[Log]:
    with open_log(kafka.url) as opened:
        yield opened


@pytest.fixture
def again(kafka: KafkaBroker) -> Callable[[], Log]:
    return lambda: open_log(kafka.url)


class TestKafka(LogContract):
    """Every promise of the contract."""
