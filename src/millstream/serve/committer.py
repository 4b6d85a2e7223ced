"""Group commit: requests that wait together are one append, and each is answered when it is durable.

While one append is on its way to the disk, the next requests gather; there is no other pause. A request is in the log whole or not at
all, and one that the log does not take harms no other. When it is unknown whether an append arrived, it is sent again under the same
number until that is known; its requests are answered 503 meanwhile, and their keys stay taken, so a retry finds out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from millstream.errors import BadEvent, Fenced, LogFailed, LogFull, LogUnavailable, MillstreamError, UnknownTopic
from millstream.event import Event
from millstream.failpoint import failpoint
from millstream.log.contract import Ack, Log
from millstream.serve.journal import HEADER, Journal, Position, Taken, find_events
from millstream.serve.refusal import Refusal, refusal_of

_EVENTS, _BYTES = 20_000, 8 << 20  # of one append, about
_RETRY = (0.05, 1.0)  # seconds between two tries: the first, and the most
_logger = logging.getLogger("millstream")

Judge = Callable[[str, Sequence[Event]], Mapping[int, str]]
"""Why events of a topic cannot be used, by their place."""


@dataclass(eq=False)
class Append:
    """What one request appends, and where its answer will be."""

    topic: str
    events: list[Event]
    size: int
    key: bytes | None = None
    digest: bytes = b""
    done: Future[Position] = field(default_factory=Future)


@dataclass
class Totals:
    """What has been done since the start."""

    appends: int = 0
    events: int = 0
    requests: int = 0
    refused: int = 0
    repeated: int = 0
    seconds: float = 0.0


class Committer:
    """The one thread that appends. :meth:`submit` may be called by any thread; ``stopped`` is called once if it cannot go on."""

    def __init__(self, log: Log, journal: Journal, judge: Judge, *, keys: int, stopped: Callable[[], None]) -> None:
        self._log, self._journal, self._judge, self._keys, self._stopped = log, journal, judge, keys, stopped
        self._waiting: deque[Append] = deque()
        self._pending: dict[bytes, Append] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._since: dict[str, dict[int, int]] = {}
        self.error: MillstreamError | None = None
        self.away = False
        self.totals = Totals()
        self._thread = threading.Thread(target=self._run, name="millstream-serve-append", daemon=True)
        self._thread.start()

    def submit(self, append: Append) -> tuple[Future[Position], bool]:
        """Take a request; give its answer to come, and whether the key was there before.

        Refusal 409 for a key that was taken by another body, 503 where there is no room for it or the log is away.
        """
        with self._changed:
            if self._closing or self.error is not None:
                raise Refusal(503, "the server is ending", after=2)
            if append.key is not None and (known := self._known(append)) is not None:
                self.totals.repeated += 1
                return known, True
            if append.key is not None:
                if len(self._journal.entries) >= self._keys:
                    raise Refusal(503, "too many idempotency keys are remembered", after=60)
                self._journal.take(append.key, append.digest)
                self._pending[append.key] = append
            self._waiting.append(append)
            self._changed.notify()
            return append.done, False

    def close(self) -> None:
        """Append what waits, and end. What the log does not take any more is refused."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _known(self, append: Append) -> Future[Position] | None:
        assert append.key is not None  # noqa: S101 - the caller looked
        entry = self._journal.find(append.key)
        if entry is None:
            return None
        if entry.digest != append.digest:
            raise Refusal(409, "this idempotency key was used for another body", hint="a new request needs a new key")
        if entry.answer is None:
            return self._pending[append.key].done
        done: Future[Position] = Future()
        done.set_result(entry.answer)
        return done

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._judged(batch)
            self._journal.close()
        except MillstreamError as error:
            self._fail(error)
        except Exception as error:
            _logger.exception("the thread that appends has failed")
            self._fail(MillstreamError(f"{type(error).__name__}"))
            raise

    def _fail(self, error: MillstreamError) -> None:
        """End: nobody knows what the log has of the last append. The next server finds out."""
        with self._changed:
            self.error = error
            left = [*self._pending.values(), *self._waiting]
            self._waiting.clear()
        for each in left:
            if not each.done.done():
                each.done.set_exception(
                    Refusal(503, "the log has failed; whether the events were appended is unknown", after=5)
                )
        _logger.error("the server cannot append any more: %s", error)
        self._stopped()

    def _take(self) -> list[Append]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            batch, events, size = list[Append](), 0, 0
            while self._waiting and (not batch or (events < _EVENTS and size < _BYTES)):
                batch.append(each := self._waiting.popleft())
                events, size = events + len(each.events), size + each.size
            return batch

    def _judged(self, batch: list[Append]) -> None:
        """Refuse what definitions refuse, and append the rest."""
        good = []
        by_topic: dict[str, list[Append]] = {}
        for each in batch:
            by_topic.setdefault(each.topic, []).append(each)
        for topic, appends in by_topic.items():
            reasons = self._reasons(topic, [event for each in appends for event in each.events])
            first = 0
            for each in appends:
                bad = [(i, reasons[first + i]) for i in range(len(each.events)) if first + i in reasons]
                first += len(each.events)
                if bad:
                    self._refuse(each, Refusal(422, f"{bad[0][1]}; nothing was appended", events=bad[:100]))
                else:
                    good.append(each)
        if good:
            self._append(good)

    def _reasons(self, topic: str, events: Sequence[Event]) -> Mapping[int, str]:
        try:
            return self._judge(topic, events)
        except Exception as error:  # no event may stop the thread for all others; the pipeline will judge it
            _logger.error("events of topic %s could not be judged: %s", topic, type(error).__name__)
            return {}

    def _append(self, batch: list[Append]) -> None:
        begun = time.monotonic()
        try:
            positions = self._send(batch)
        except LogFull as error:
            for each in batch:
                self._refuse(each, refusal_of(error))
            return
        except (BadEvent, UnknownTopic) as error:
            if len(batch) == 1:
                self._check_ours(batch[0])
                self._refuse(batch[0], refusal_of(error))
            else:  # one is at fault: each by itself
                for each in batch:
                    self._append([each])
            return
        self.totals.appends += 1
        self.totals.seconds += time.monotonic() - begun
        self._answer(batch, positions)

    def _send(self, batch: list[Append]) -> list[Position]:
        """One transaction; again, under its number, as long as it is unknown whether it arrived."""
        events: dict[str, list[Event]] | None = None
        sequence, pause, tried = self._journal.next_sequence(), _RETRY[0], False
        while True:
            try:
                events = events or self._prepared(batch, sequence)
                failpoint("serve.before_append")
                acks = self._log.append_all(events, producer=self._journal.producer, sequence=sequence)
                failpoint("serve.after_append")
                self.away = False
                if any(ack.duplicate for ack in acks.values()):
                    return self._repeated(batch, acks, sequence if tried else None)
                return self._appended(batch, acks)
            except LogFailed:
                raise
            except LogUnavailable as error:
                tried = tried or events is not None
                self._wait(batch, error, pause)
                pause = min(pause * 2, _RETRY[1])

    def _appended(self, batch: list[Append], acks: Mapping[str, Ack]) -> list[Position]:
        """Where the events of each request are."""
        for topic, ack in acks.items():
            for partition, offset in zip(ack.partitions, ack.offsets, strict=True):
                self._since.setdefault(topic, {})[partition] = offset + 1
        at, positions = dict.fromkeys(acks, 0), []
        for each in batch:
            ack, low = acks[each.topic], at[each.topic]
            at[each.topic] = high = low + len(each.events)
            positions.append(Position(tuple(ack.partitions[low:high]), tuple(ack.offsets[low:high])))
        return positions

    def _repeated(self, batch: list[Append], acks: Mapping[str, Ack], tried: int | None) -> list[Position]:
        """The same, of what the log takes for a repeat: of ours, or because another server has taken over and is further.
        ``tried`` is the number under which it was sent before, if it was.

        Kafka remembers no more than the highest number, so there the events themselves must say that they are in the log.
        """
        if tried is not None and all(-1 not in ack.offsets for ack in acks.values()):
            return self._appended(batch, acks)
        keyed = {each.key: each for each in batch if each.key is not None}
        found: dict[bytes, Position] = {}
        if tried is not None:
            found = find_events(
                self._log, {key: (_taken(each, tried), self._since[each.topic]) for key, each in keyed.items()}
            )
        if tried is None or any(found[key].offsets is None for key in keyed):
            raise self._fenced()
        return [found[each.key] if each.key is not None else Position((), None) for each in batch]

    def _check_ours(self, append: Append) -> None:
        """Raise Fenced if the log refuses an append because another server has raised the number of the journal."""
        last = self._log.last_sequence(self._journal.topic, self._journal.producer) if append.key is not None else None
        if last is not None and last > self._journal.sequence:
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(
            f"another server called {self._journal.name} has taken over this log; the last append was not made",
            hint="let one of them run, or give them different names: --name",
        )

    def _prepared(self, batch: list[Append], sequence: int) -> dict[str, list[Event]]:
        """What is appended to each topic; that of the journal too, if a request has a key."""
        topics = dict.fromkeys(each.topic for each in batch)
        for topic in topics:
            if topic not in self._since:
                self._since[topic] = {partition: bound.end for partition, bound in self._log.bounds(topic).items()}
        events = {
            topic: [event for each in batch if each.topic == topic for event in _marked(each, sequence)]
            for topic in topics
        }
        taken = [_taken(each, sequence) for each in batch if each.key is not None]
        if taken:
            events[self._journal.topic] = self._journal.pages(taken, self._since)
        return events

    def _wait(self, batch: list[Append], error: LogUnavailable, pause: float) -> None:
        if not self.away:
            _logger.warning("the log is away: %s", error.message)
        self.away = True
        for each in batch:
            if each.key is None and not each.done.done():  # with a key, a retry may wait for it
                each.done.set_exception(
                    Refusal(503, "the log is away; whether the events were appended is unknown", after=1)
                )
        with self._changed:
            if self._changed.wait_for(lambda: self._closing, pause):
                raise error

    def _answer(self, batch: list[Append], positions: list[Position]) -> None:
        with self._changed:
            answers = {each.key: found for each, found in zip(batch, positions, strict=True) if each.key is not None}
            if answers:
                self._journal.answer(answers)
            for key in answers:
                self._pending.pop(key, None)
            self.totals.requests += len(batch)
            self.totals.events += sum(len(each.events) for each in batch)
        for each, position in zip(batch, positions, strict=True):
            if not each.done.done():
                each.done.set_result(position)

    def _refuse(self, append: Append, refusal: Refusal) -> None:
        with self._changed:
            if append.key is not None:
                self._journal.drop(append.key)
                self._pending.pop(append.key, None)
            self.totals.refused += 1
        if not append.done.done():
            append.done.set_exception(refusal)


def _taken(append: Append, sequence: int) -> Taken:
    """That a request has taken its key."""
    assert append.key is not None  # noqa: S101 - the caller looked
    return Taken(append.key, append.digest, append.topic, len(append.events), sequence)


def _marked(append: Append, sequence: int) -> list[Event]:
    """The events of a request, which say whose they are if it has a key."""
    if append.key is None:
        return append.events
    key = append.key.hex()
    return [
        event._replace(headers=(*event.headers, (HEADER, f"{key}:{sequence}:{place}".encode())))
        for place, event in enumerate(append.events)
    ]
