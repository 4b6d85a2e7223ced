"""Appends of several threads in one transaction of Kafka, which costs the same for one event and for thousands.

An error in what was sent together is nobody's in particular: it is sent again one by one, and each caller has its own. Only where
nobody knows whether it was kept, because the brokers do not answer, it is not sent again, and all are told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.errors import LogUnavailable, MillstreamError
from millstream.gather import Gathered
from millstream.log.contract import Ack, Topic
from millstream.log.embedded.batch import Batch

RECORDS, BYTES = 10_000, 8 << 20
"""What goes into one transaction, at most, unless one append alone is more."""


@dataclass(slots=True, eq=False)
class _Waiting:
    topic: Topic
    batch: Batch
    ack: Ack | None = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.ack is not None or self.error is not None

    @property
    def size(self) -> int:
        return sum(part.size for part in self.batch.parts.values())


class GroupedAppends:
    """The appends to one topic by producers without a name; ``send`` is one transaction."""

    def __init__(self, send: Callable[[Sequence[tuple[Topic, Batch]]], list[Ack]]) -> None:
        self._send = send
        self._gathered: Gathered[_Waiting] = Gathered(self._send_for, _fitting)

    def append(self, topic: Topic, batch: Batch) -> Ack:
        """Append, with whoever else waits for it."""
        mine = _Waiting(topic, batch)
        self._gathered.ask([mine])
        if mine.error is not None:
            raise mine.error
        assert mine.ack is not None  # noqa: S101  (one of both is there)
        return mine.ack

    def _send_for(self, taken: Sequence[_Waiting]) -> None:
        try:
            acks = self._send([(each.topic, each.batch) for each in taken])
        except MillstreamError as error:
            if len(taken) > 1 and not isinstance(error, LogUnavailable):
                for each in taken:
                    self._send_for([each])
                return
            for each in taken:
                each.error = error
        else:
            for each, ack in zip(taken, acks, strict=True):
                each.ack = ack


def _fitting(waiting: deque[_Waiting]) -> list[_Waiting]:
    """The first that wait, as many as go into one transaction."""
    taken, records, size = list[_Waiting](), 0, 0
    while waiting:
        records, size = records + len(waiting[0].batch.events), size + waiting[0].size
        if taken and (records > RECORDS or size > BYTES):
            break
        taken.append(waiting.popleft())
    return taken
