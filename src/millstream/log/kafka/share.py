"""Work queues on Kafka: its share groups (Kafka 4.2 or later; the client calls its own support a preview).

A share consumer must settle a whole poll before it polls again, so a worker keeps several and polls with one that owes
nothing: a slow record holds up only the few that came with it. The broker counts deliveries; it is told to allow one
more than ours, and a record that comes that once more goes to the dead-letter topic.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millstream.errors import DeliveryFenced, LogUnavailable, NotSupported, TopicExists
from millstream.log.contract import Delivery, Group, QueueSettings, Worker
from millstream.log.embedded.file import MOST_BYTES
from millstream.log.embedded.queue import dead_letter
from millstream.log.kafka.client import TIMEOUT, ck, ck_admin, silent
from millstream.log.kafka.read import to_record

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

_CONSUMERS = 8
_FETCH = {"fetch.max.bytes": str(MOST_BYTES)}  # of which one poll is made
_Place = tuple[int, int]


def is_share_group(listing: Any) -> bool:
    """Whether a listed group is a share group; the client knows no name for its type."""
    return listing.type not in (ck.ConsumerGroupType.CLASSIC, ck.ConsumerGroupType.CONSUMER)


def describe(name: str) -> Group:
    """A share group; the client cannot tell its members or how far it is."""
    return Group(name, (), {}, "queue")


class _Slot:
    """A share consumer, and what it owes."""

    def __init__(self, log: KafkaLog, topic: str, group: str) -> None:
        settings = log.client | {"group.id": group, "share.acknowledgement.mode": "explicit"} | _FETCH
        self.client = ck.ShareConsumer(settings, logger=silent)
        self.client.subscribe([topic])
        self.owed: set[_Place] = set()


class KafkaWorker(Worker):
    """A worker of a share group."""

    def __init__(self, log: KafkaLog, topic: str, group: str, settings: QueueSettings) -> None:
        self.group, self.worker = group, f"share-{id(self):x}"
        self._log, self._topic, self._settings = log, topic, settings
        self._dead_letters = settings.dead_letters or f"{topic}.dead"
        self._slots: list[_Slot] = []
        self._held: dict[_Place, tuple[_Slot, int]] = {}
        self._ready: deque[Delivery] = deque()
        self._closed = False
        self._configure(group)

    def take(self, limit: int = 10, timeout: float = 1.0) -> list[Delivery]:
        """What a consumer of ours was given, the rest of it at the next call."""
        deadline = time.monotonic() + timeout
        while not self._ready:
            self._poll(max(0.0, min(0.5, deadline - time.monotonic())))
            if not self._ready and time.monotonic() >= deadline:
                return []
        given, size = list[Delivery](), 0
        while self._ready and len(given) < limit:
            size += len(self._ready[0].record.value or b"")
            if given and size > MOST_BYTES:
                break
            given.append(self._ready.popleft())
        return given

    def done(self, deliveries: Iterable[Delivery]) -> None:
        """Accept."""
        self._settle(list(deliveries), ck.AcknowledgeType.ACCEPT)

    def retry(self, deliveries: Iterable[Delivery]) -> None:
        """Release."""
        self._settle(list(deliveries), ck.AcknowledgeType.RELEASE)

    def reject(self, deliveries: Iterable[Delivery], reason: str) -> None:
        """Append to the dead-letter topic, then reject: a crash in between leaves the dead letter twice, never lost."""
        given = list(deliveries)
        for delivery in given:
            self._slot_of(delivery)
        with suppress(TopicExists):
            self._log.create_topic(self._dead_letters)
        letters = [dead_letter(delivery, self.group, reason) for delivery in given]
        self._log.append(self._dead_letters, letters, own=True)
        self._settle(given, ck.AcknowledgeType.REJECT)

    def close(self) -> None:
        """Give back what is held, and leave."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            with suppress(ck.KafkaException, ck.IllegalStateException):
                for partition, offset in slot.owed:
                    slot.client.acknowledge_offset(self._topic, partition, offset, ck.AcknowledgeType.RELEASE)
                slot.client.commit_sync(5.0)
            with suppress(ck.KafkaException, ck.IllegalStateException):
                slot.client.close()

    def _configure(self, group: str) -> None:
        wanted = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",
            "share.record.lock.duration.ms": str(self._settings.visibility // timedelta(milliseconds=1)),
            "share.delivery.count.limit": str(self._settings.max_deliveries + 1),
        }
        entries = [
            ck_admin.ConfigEntry(name, value, incremental_operation=ck_admin.AlterConfigOpType.SET)
            for name, value in wanted.items()
        ]
        resource = ck_admin.ConfigResource(ck_admin.ResourceType.GROUP, group, incremental_configs=entries)
        with self._log.errors(""):
            try:
                for future in self._log.admin.incremental_alter_configs([resource]).values():
                    future.result(TIMEOUT)
            except ck.KafkaException as error:
                raise NotSupported(
                    f"{self._log.url} does not take the settings of a work queue: {error.args[0].str()}",
                    hint="work queues need share groups (Kafka 4.2 or later), and limits within those of the brokers",
                ) from error

    def _poll(self, timeout: float) -> None:
        slot = next((slot for slot in self._slots if not slot.owed), None)
        if slot is None:
            if len(self._slots) >= _CONSUMERS:
                raise LogUnavailable(
                    f"this worker of group {self.group} owes answers for {len(self._held)} records in {_CONSUMERS} polls",
                    hint="settle some of them first, with done, retry or reject",
                )
            slot = _Slot(self._log, self._topic, self.group)
            self._slots.append(slot)
        with self._log.errors(self._topic):
            messages = [message for message in slot.client.poll(timeout) if message.error() is None]
        spent: list[Delivery] = []
        for message in messages:
            delivery = Delivery(to_record(message), message.delivery_count())
            place = (delivery.record.partition, delivery.record.offset)
            slot.owed.add(place)
            self._held[place] = (slot, delivery.attempt)
            (spent if delivery.attempt > self._settings.max_deliveries else self._ready).append(delivery)
        if spent:
            self.reject(spent, f"not done after {self._settings.max_deliveries} deliveries")

    def _slot_of(self, delivery: Delivery) -> _Slot:
        slot, attempt = self._held.get((delivery.record.partition, delivery.record.offset), (None, 0))
        if slot is None or attempt != delivery.attempt:
            raise self._fenced(delivery)
        return slot

    def _settle(self, deliveries: list[Delivery], how: Any) -> None:
        slots = {id(slot): slot for slot in map(self._slot_of, deliveries)}
        for delivery in deliveries:
            place = (delivery.record.partition, delivery.record.offset)
            slot, _ = self._held.pop(place)
            slot.owed.discard(place)
            with suppress(ck.IllegalStateException):  # no longer in flight: the commit will not mention it either
                slot.client.acknowledge_offset(self._topic, *place, how)
        for slot in slots.values():
            with self._log.errors(self._topic):
                answers = slot.client.commit_sync(TIMEOUT)
            if failed := next((error for error in answers.values() if error is not None), None):
                raise self._fenced(deliveries[0]) from failed

    def _fenced(self, delivery: Delivery) -> DeliveryFenced:
        return DeliveryFenced(
            f"group {self.group}: attempt {delivery.attempt} at {delivery.record.topic}/{delivery.record.partition}"
            f" offset {delivery.record.offset} is no longer ours",
            hint="the work took longer than the visibility timeout: raise it, or make the work idempotent",
        )
