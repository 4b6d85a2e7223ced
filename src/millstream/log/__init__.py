"""The event log: one contract, two engines. :func:`open_log` is the way in."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.address import parse_log
from millstream.log.contract import Log

__all__ = ["Log", "open_log"]


def open_log(url: str, *, create: bool = True, kafka: Mapping[str, str] | None = None) -> Log:
    """Open ``sqlite:PATH`` or ``kafka://HOST:PORT[,HOST:PORT…]``.

    ``create`` makes a missing embedded log. ``kafka`` holds settings of the Kafka client, such as
    ``security.protocol``; references to secrets in them are resolved here.

    :param url: the address
    :param create: whether a missing embedded log is made
    :param kafka: settings of the Kafka client
    :raises ConfigError: if it is no address
    :raises LogUnavailable: if the log cannot be opened
    """
    address = parse_log(url)
    if address.embedded:
        from millstream.log.embedded.engine import SqliteLog

        return SqliteLog(address.place, create=create)
    from millstream.log.kafka.engine import KafkaLog

    return KafkaLog(address.place, kafka or {})
