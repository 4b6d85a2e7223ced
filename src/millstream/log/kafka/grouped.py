"""Appends of several threads in one transaction of Kafka, which costs the same for one event and for thousands.

Whoever finds nobody sending sends for all that wait; the others wait for their acknowledgements. An error in what was sent
together is nobody's in particular: it is sent again one by one, and each caller has its own. Only where nobody knows
whether it was kept, because the brokers do not answer, it is not sent again, and all are told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.errors import LogUnavailable, MillstreamError
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
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._sending = False

    def append(self, topic: Topic, batch: Batch) -> Ack:
        """Append, with whoever else waits for it."""
        mine = _Waiting(topic, batch)
        with self._changed:
            self._waiting.append(mine)
        while not mine.over:
            with self._changed:
                self._changed.wait_for(lambda: mine.over or not self._sending)
                if mine.over:
                    break
                self._sending, taken = True, self._take()
            try:
                self._send_for(taken)
            finally:
                with self._changed:
                    for each in taken:
                        if not each.over:  # this thread was interrupted
                            each.error = LogUnavailable(
                                "the append was interrupted; whether the batch was kept is unknown"
                            )
                    self._sending = False
                    self._changed.notify_all()
        if mine.error is not None:
            raise mine.error
        assert mine.ack is not None  # noqa: S101  (one of both is there)
        return mine.ack

    def _take(self) -> list[_Waiting]:
        taken, records, size = list[_Waiting](), 0, 0
        while self._waiting:
            records, size = records + len(self._waiting[0].batch.events), size + self._waiting[0].size
            if taken and (records > RECORDS or size > BYTES):
                break
            taken.append(self._waiting.popleft())
        return taken

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
