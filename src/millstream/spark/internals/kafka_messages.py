"""How tasks take messages from Kafka: in bulk from librdkafka's memory, or an object for each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from millstream.spark.internals.registry import Internal

if TYPE_CHECKING:
    from millstream.log.kafka.messages import Taker


def taker(settings: Mapping[str, str]) -> type[Taker]:
    """What takes messages of a client with these settings, where only values are wanted."""
    from millstream.log.kafka import bulk
    from millstream.log.kafka.messages import ObjectTaker

    return bulk.BulkTaker if KAFKA_MESSAGES.works() and bulk.fits(settings) else ObjectTaker


def _test() -> None:
    if find_spec("confluent_kafka") is not None:  # else nothing is read from Kafka
        from millstream.log.kafka import bulk

        bulk.check_library()


KAFKA_MESSAGES = Internal("kafka_messages", "an object is made of each message", _test, of="confluent-kafka")
