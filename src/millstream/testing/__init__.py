"""What users test their own pipelines with: a trial without broker and Spark, and real servers that live as long as the test."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.testing.kafka import KafkaBroker, KafkaCluster
    from millstream.testing.mariadb import MariaDbServer
    from millstream.testing.postgres import PostgresServer
    from millstream.testing.redis import RedisServer
    from millstream.testing.trial import Trial

__all__ = ["KafkaBroker", "KafkaCluster", "MariaDbServer", "PostgresServer", "RedisServer", "Trial"]

_HOME = {
    "KafkaBroker": "millstream.testing.kafka",
    "KafkaCluster": "millstream.testing.kafka",
    "MariaDbServer": "millstream.testing.mariadb",
    "PostgresServer": "millstream.testing.postgres",
    "RedisServer": "millstream.testing.redis",
    "Trial": "millstream.testing.trial",
}


def __dir__() -> list[str]:
    """What completion shows: the public names, loaded or not."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Load a part when it is first used: pytest loads our plugin, and so this package, for everyone's tests."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'millstream.testing' has no attribute {name!r}")
