"""How a work queue treats its records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millstream.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a work queue treats its records.

    :param visibility: how long a worker has a record for itself
    :param max_deliveries: how often a record is tried
    :param dead_letters: the topic for what failed too often
    :raises ConfigError: if one of them is not above zero

    >>> QueueSettings(max_deliveries=3).visibility.total_seconds()
    30.0
    """

    visibility: timedelta = timedelta(seconds=30)
    max_deliveries: int = 5
    dead_letters: str | None = None
    """The topic for what failed too often; ``TOPIC.dead`` unless named. Made when first needed."""

    def __post_init__(self) -> None:
        if self.max_deliveries < 1:
            raise ConfigError(f"max_deliveries: found {self.max_deliveries}, expected at least 1")
        if self.visibility <= timedelta(0):
            raise ConfigError(f"visibility: found {self.visibility}, expected more than zero")
