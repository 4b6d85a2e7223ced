"""Appending to Kafka: which transactional client appends what, and what a producer's number is.

A producer has a client for each topic, and one more for appends over several topics, under names that no topic and no producer
can make the same; those without a name share theirs, and their transactions. Both keep the same numbers. Who asks for a number, or sets one, begins both anew: what a killed process left
open is settled, and one that lives is fenced.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.event import Event
from millstream.log.checks import check_name, check_numbered
from millstream.log.contract import Ack, Topic
from millstream.log.embedded.batch import Batch
from millstream.log.kafka.grouped import GroupedAppends
from millstream.log.kafka.write import Limits, TransactionalClient, limits_of

if TYPE_CHECKING:
    from millstream.log.kafka.engine import KafkaLog

_SEVERAL = ""
"""In place of a topic: the client is for appends over several."""


class Appender:
    """The clients of one open log, by topic and producer."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._clients: dict[tuple[str, str], TransactionalClient] = {}
        self._groups: dict[str, GroupedAppends] = {}
        self._anonymous = secrets.token_hex(8)
        self._spread = itertools.count()
        self._lock = threading.Lock()

    def append(
        self,
        batches: Mapping[str, Sequence[Event]],
        *,
        producer: str | None,
        sequence: int | None,
        own: bool,
        several: bool,
    ) -> dict[str, Ack]:
        """Append batches in one transaction; ``several`` says whether as a producer of several topics."""
        check_numbered(producer, sequence)
        topics = [self._log.described(topic) for topic in batches]
        if not any(batches.values()) and not (several and sequence is not None and batches):
            return {topic: Ack([], []) for topic in batches}
        parts = [(topic, self._cut(topic, batches[topic.name], sequence, own)) for topic in topics]
        if producer is None and not several:
            ((one, batch),) = parts
            return {one.name: self._group(one.name).append(one, batch)}
        acks = self._send(_SEVERAL if several else topics[0].name, parts, producer, sequence)
        if producer is not None:
            for topic in batches:
                self._forget((topic if several else _SEVERAL, producer), topic)
        return dict(zip(batches, acks, strict=True))

    def last_sequence(self, topic: str, producer: str) -> int | None:
        """The committed offset of the producer's own group, once nobody of its name has a transaction open."""
        with self._beginning(topic, producer) as client:
            return client.stored(topic)

    def renumber(self, topic: str, producer: str, sequence: int, *, after: int | None) -> bool:
        """A transaction with nothing in it but the number."""
        with self._beginning(topic, producer) as client:
            self._forget((_SEVERAL, producer), topic)
            return client.stored(topic) == after and client.renumber(topic, sequence)

    def delete(self, topic: str) -> None:
        """Close the clients of a topic."""
        with self._lock:
            gone = [self._clients.pop(key) for key in list(self._clients) if key[0] == topic]
            for client in self._clients.values():
                client.forget(topic)
        for client in gone:
            client.close()

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _group(self, topic: str) -> GroupedAppends:
        with self._lock:
            if topic not in self._groups:
                self._groups[topic] = GroupedAppends(lambda parts: self._send(topic, parts))
            return self._groups[topic]

    def _send(
        self,
        place: str,
        parts: Sequence[tuple[Topic, Batch]],
        producer: str | None = None,
        sequence: int | None = None,
    ) -> list[Ack]:
        limits = limits_of([topic for topic, _ in parts], sum(len(batch.events) for _, batch in parts))
        with self._sending(place, producer, limits, [topic.name for topic, _ in parts]) as client:
            return client.append(parts, sequence)

    def _cut(self, topic: Topic, events: Sequence[Event], sequence: int | None, own: bool) -> Batch:
        spread = next(self._spread) * len(events) if sequence is None else sequence
        batch = Batch(topic, events, spread, own=own)
        batch.check_types()  # the client would take text as well
        return batch

    @contextmanager
    def _beginning(self, topic: str, producer: str) -> Iterator[TransactionalClient]:
        """The client of a topic, once what another of its name has open over several topics is settled."""
        with self._sending(topic, producer, limits_of([self._log.described(topic)]), [topic]) as client:
            with self._lock:
                if (_SEVERAL, producer) not in self._clients:
                    TransactionalClient(self._log, self._name(_SEVERAL, producer), None, Limits(), [topic]).close()
            yield client

    @contextmanager
    def _sending(
        self, place: str, producer: str | None, limits: Limits, topics: Sequence[str]
    ) -> Iterator[TransactionalClient]:
        client = self._client(place, producer, limits, topics)
        try:
            yield client
        except BaseException:
            with self._lock:  # what the client still holds must not leak into the next transaction
                if self._clients.get((place, producer or "")) is client:
                    del self._clients[place, producer or ""]
            client.close()
            raise

    def _client(self, place: str, producer: str | None, limits: Limits, topics: Sequence[str]) -> TransactionalClient:
        key = (place, check_name("producer", producer) if producer is not None else "")
        with self._lock:
            known = self._clients.get(key)
            if known is not None and known.limits | limits == known.limits:
                return known
            if known is not None:
                limits |= known.limits
                if producer is not None:  # it appends one batch after the other, so nobody else is using it
                    known.close()
                else:  # other threads may be: they end with it, and the next one has a name of its own
                    self._anonymous = secrets.token_hex(8)
            self._clients[key] = client = TransactionalClient(
                self._log, self._name(place, producer), producer, limits, list(dict.fromkeys(topics))
            )
            return client

    def _name(self, place: str, producer: str | None) -> str:
        name = producer if producer is not None else self._anonymous
        return f"millstream:{name}" if place == _SEVERAL else f"millstream.{place}.{name}"

    def _forget(self, key: tuple[str, str], topic: str) -> None:
        with self._lock:
            if key in self._clients:
                self._clients[key].forget(topic)
