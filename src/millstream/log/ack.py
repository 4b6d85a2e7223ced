"""Where appended events stand."""

from __future__ import annotations

from typing import NamedTuple


class Ack(NamedTuple):
    """Where the events of one append stand, in the order they were given.

    ``duplicate`` says that the batch was there already. Offsets are then those of the first time, or −1 each on an
    engine that does not remember them (Kafka).
    """

    partitions: list[int]
    offsets: list[int]
    duplicate: bool = False
