"""A producer that gathers events into batches in the background, behind a buffer of bounded size.

What happens when the log is slower than the caller is chosen by name: ``block`` makes the caller wait, ``drop`` throws
events away and counts them, ``buffer`` writes them to a file beside the process until a limit, then blocks. Events of
one producer reach the log in the order they were sent, and each batch carries a sequence number, so neither a retry
after a lost acknowledgement nor a restart over a spill file puts a batch in twice.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from millstream.errors import (
    BadEvent,
    ConfigError,
    LogError,
    LogFull,
    LogUnavailable,
    MillstreamError,
    SequenceTooOld,
)
from millstream.event import Event
from millstream.log.checks import check_name
from millstream.log.contract import Log

if TYPE_CHECKING:
    from millstream.log.spill import Spill

Policy: TypeAlias = Literal["block", "drop", "buffer"]
_RETRY = (0.05, 2.0)  # seconds between two tries: the first, and the most
_BYTES = 16 << 20  # of one append, about
_SPILLED = 1_000  # events in one batch of the file, at most: they wait in memory until then
_LAST = 1.0  # seconds for what is left, when someone asks to end


@dataclass(frozen=True, slots=True)
class Buffer:
    """How much a producer holds, and what it does beyond that.

    ``capacity`` counts events in memory. With ``drop``, ``dropping`` says which end loses. With ``buffer``, ``spill`` is
    the file and ``spill_bytes`` its limit.

    :param policy: when it is full: ``"block"`` waits, ``"drop"`` loses events, ``"buffer"`` writes them to a file
    :param capacity: events in memory
    :param batch: events in one append, at most; unless given, as suit the log: 1,000, or on Kafka what waits
    :param linger: how long a batch waits for more events
    :param dropping: which end loses, ``"newest"`` or ``"oldest"``
    :param spill: the file of ``"buffer"``
    :param spill_bytes: how large it may be
    :raises ConfigError: if these do not go together

    >>> Buffer("drop", capacity=100, dropping="oldest").capacity
    100
    """

    policy: Policy = "block"
    capacity: int = 10_000
    batch: int | None = None
    linger: timedelta = timedelta(milliseconds=5)
    dropping: Literal["newest", "oldest"] = "newest"
    spill: Path | None = None
    spill_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.policy not in ("block", "drop", "buffer"):
            raise ConfigError(f"policy: found {self.policy!r}, expected block, drop or buffer")
        if self.dropping not in ("newest", "oldest"):
            raise ConfigError(f"dropping: found {self.dropping!r}, expected newest or oldest")
        if self.capacity < 1 or (self.batch is not None and self.batch < 1):
            raise ConfigError(f"capacity {self.capacity} and batch {self.batch} must be at least 1")
        if self.policy == "buffer" and self.spill is None:
            raise ConfigError("policy buffer needs a file to spill to", hint="Buffer('buffer', spill=Path('spill.db'))")


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of the events: sent = accepted − failed, once flushed; dropped ones were never accepted.

    With ``dropping="oldest"`` an accepted event may still be dropped later; it is then counted in both.
    """

    accepted: int = 0
    sent: int = 0
    dropped: int = 0
    blocked: int = 0
    spilled: int = 0
    retried: int = 0
    failed: int = 0


class Producer:
    """Sends events to one topic. Thread-safe. Use it in a ``with`` block, or call :meth:`close`, or lose the tail.

    A ``name`` that is the same after a restart makes the restart part of one sequence; without one it is random.
    A log that is away is asked again and again, in silence; a disk that is full is told by the next :meth:`send` or
    :meth:`flush`, as LogFull, and what was accepted is tried again until :meth:`close`.

    :param log: an open log
    :param topic: where its events go
    :param buffer: how much it holds, and what it does beyond that
    :param name: what it is recognised by after a restart
    :param seal: what seals the personal fields of each event, before it is buffered or spilled: :meth:`millstream.Vault.sealing` gives one
    :raises ConfigError: if a ``"buffer"`` has no name
    :raises UnknownTopic: if there is no such topic
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        buffer: Buffer | None = None,
        *,
        name: str | None = None,
        seal: Callable[[Event], Event] | None = None,
    ) -> None:
        self._seal = seal
        self.buffer = buffer or Buffer()
        if self.buffer.policy == "buffer" and name is None:
            raise ConfigError(
                "policy buffer needs a producer name", hint="what is in the file must be recognised after a restart"
            )
        self.name = check_name("producer", name or f"producer-{secrets.token_hex(8)}")
        log.topic(topic)
        self._log, self._topic = log, topic
        self._head: deque[Event] = deque()  # the oldest events; then come those in the spill file, then `_tail`
        self._tail: list[Event] = []
        self._changed = threading.Condition()
        self._batch = self.buffer.batch or log.capabilities.batch
        self._wanted = 1  # events in memory at which the thread that appends is to be woken
        self._counters = Counters()
        self._accepted = 0  # apart, because it is counted event by event
        self._error: MillstreamError | None = None
        self._closing = self._sending = False
        last = log.last_sequence(topic, self.name)
        self._sequence = 0 if last is None else last + 1
        self._spill = self._open_spill()
        if self._spill:
            self._sequence = max(self._sequence, self._spill.next_sequence)
        self._head_sequence = self._sequence
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def _open_spill(self) -> Spill | None:
        if self.buffer.policy != "buffer" or self.buffer.spill is None:
            return None
        from millstream.log.spill import Spill

        return Spill(self.buffer.spill, self.buffer.spill_bytes)

    @property
    def counters(self) -> Counters:
        """A snapshot."""
        return replace(self._counters, accepted=self._accepted)

    def send(self, event: Event, *, timeout: float | None = None) -> bool:
        """Hand over an event; False says that it was dropped.

        It is in the log only after :meth:`flush` or :meth:`close` returned. Raises LogUnavailable if it had to wait
        longer than ``timeout``, and an earlier event's error if there was one. An event that cannot be sealed is refused, with BadEvent.
        """
        if self._seal:
            event = self._seal(event)
        with self._changed:
            self._check()
            if self._full():
                if self.buffer.policy == "drop":
                    self._count(dropped=1)
                    if self.buffer.dropping == "newest":
                        return False
                    self._head.popleft()
                else:
                    self._count(blocked=1)
                    if not self._changed.wait_for(lambda: not self._full() or self._stopped(), timeout):
                        raise LogUnavailable(
                            f"producer {self.name}: no room for {timeout} s", hint="is the log reachable?"
                        )
                    self._check()
            if self._spill and (self._spill.waiting or self._tail or len(self._head) >= self.buffer.capacity):
                self._spill.check(event)
                self._tail.append(event)
                if len(self._tail) >= min(self._batch, _SPILLED):
                    try:
                        self._spill_tail(self._spill)
                    except LogError:
                        self._tail.pop()  # not accepted: the caller keeps it
                        raise
                self._changed.notify_all()
            else:
                self._head.append(event)
                if len(self._head) >= self._wanted:
                    self._changed.notify_all()
            self._accepted += 1
            return True

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything accepted is in the log, or failed for good; then raise what went wrong. LogUnavailable after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pending() or self._closing or self._is_full(), timeout):
                raise LogUnavailable(f"producer {self.name}: not everything is in the log after {timeout} s")
            self._check()

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush for up to ``timeout`` seconds and stop. What is in a spill file stays there for the next producer of that name."""
        try:
            if not self._closing or self._error is not None:
                self.flush(timeout)
        finally:
            self._end(None)

    def _end(self, timeout: float | None) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._spill and not self._thread.is_alive():
            self._spill.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:  # Ctrl-C: the process does not wait for a log that may never answer
            with contextlib.suppress(MillstreamError):
                self.flush(_LAST)
            self._end(_LAST)

    def _full(self) -> bool:
        if self._spill and self._spill.waiting:  # everything goes through the file then, however empty the memory
            return self._spill.full
        return len(self._head) >= self.buffer.capacity and (self._spill is None or self._spill.full)

    def _pending(self) -> bool:
        return bool(self._head or self._tail or self._sending or (self._spill and self._spill.waiting))

    def _stopped(self) -> bool:
        return self._closing or self._error is not None

    def _is_full(self) -> bool:
        return isinstance(self._error, LogFull)

    def _check(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._closing:
            raise LogUnavailable(f"producer {self.name} is closed")

    def _count(self, **more: int) -> None:
        self._counters = replace(
            self._counters, **{name: getattr(self._counters, name) + n for name, n in more.items()}
        )

    def _spill_tail(self, spill: Spill) -> None:
        """Write the newest events to the file as one batch with a number of its own.

        Numbers must grow in the order of sending, and what is in memory goes before the file: when the file begins to
        fill, as many numbers are kept aside for the memory as it can need (each event singly, and each batch once).
        """
        if not spill.waiting:
            self._head_sequence = self._sequence
            self._sequence += 2 * len(self._head)
        spill.add(self._tail, self._sequence)
        self._sequence += len(self._tail) + 1
        self._count(spilled=len(self._tail))
        self._tail = []

    def _run(self) -> None:
        try:
            self._send_all()
        except MillstreamError as error:  # the spill file itself: nothing can go on in order without it
            with self._changed:
                self._error, self._closing, self._sending = error, True, False
                self._changed.notify_all()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._wanted = 1
                self._changed.wait_for(lambda: self._closing or self._pending())
                if self._closing:
                    return
                spill = self._spill if self._spill and self._spill.waiting and not self._head else None
                if not self._head and not spill:
                    self._head, self._tail = deque(self._tail), []
                self._wanted = min(self._batch, self.buffer.capacity)
                if self._head and len(self._head) < self._wanted:
                    self._changed.wait_for(
                        lambda: self._closing or len(self._head) >= self._wanted,
                        self.buffer.linger.total_seconds(),
                    )
                events = self._take() if not spill else []
                sequence = self._number(len(events))
                self._sending = True
                self._changed.notify_all()
            if spill:
                events, sequence = spill.next()
            done = self._send(events, sequence)
            with self._changed:
                if spill and done:
                    spill.done(len(events))
                self._sending = False
                self._changed.notify_all()

    def _take(self) -> list[Event]:
        """The oldest events, for one append."""
        events, size = list[Event](), 0
        while self._head and len(events) < self._batch and size < _BYTES:
            events.append(event := self._head.popleft())
            size += len(event[0] or b"")
        return events

    def _number(self, events: int) -> int:
        """A number for a batch, with room for one more per event in case they must go singly."""
        if self._spill and self._spill.waiting:
            self._head_sequence += events + 1
            return self._head_sequence - events - 1
        self._sequence += events + 1
        return self._sequence - events - 1

    def _send(self, events: list[Event], sequence: int) -> bool:
        """Append, again and again while the log is away; single out an event that the log will never take.

        False says that the producer was closed before the log was back.
        """
        pause = _RETRY[0]
        while events:
            try:
                self._log.append(self._topic, events, producer=self.name, sequence=sequence)
            except SequenceTooOld:
                pass  # a spilled batch that had arrived long before the restart
            except (LogUnavailable, LogFull) as error:
                with self._changed:
                    self._count(retried=1)
                    if isinstance(error, LogFull):
                        self._error = self._error or error
                        self._changed.notify_all()
                    if self._changed.wait_for(lambda: self._closing, pause):
                        self._error = error
                        return False
                pause = min(pause * 2, _RETRY[1])
                continue
            except LogError as error:
                if isinstance(error, BadEvent) and len(events) > 1:  # nothing has that number yet: a half may have it
                    half = len(events) // 2
                    return self._send(events[:half], sequence) and self._send(events[half:], sequence + half)
                with self._changed:
                    self._error = error
                    self._count(failed=len(events))
                return True
            with self._changed:
                self._count(sent=len(events))
                if self._is_full():
                    self._error = None  # there is room again
            return True
        return True
