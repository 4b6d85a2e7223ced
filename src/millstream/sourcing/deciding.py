"""Deciding: commands that were asked for together become one transaction.

Invariant: what is appended for an aggregate follows from the very state that it is appended to. Deciding happens before the log's lock
is taken; the transaction then looks whether the last event of each aggregate is still the one that was folded last, and whether each
idempotency key is still unused. Where not, the commands concerned, and no others, are decided again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

from millstream.errors import Conflict, KeyReused, LogError, LogUnavailable, MillstreamError
from millstream.event import Event
from millstream.failpoint import failpoint
from millstream.log.conditional import Conditional
from millstream.log.contract import Ack, Log
from millstream.log.partitioner import partition_of
from millstream.sourcing.decider import Decider, Rejected, S
from millstream.sourcing.envelope import Answer, Coded, Why, pack_answer, unpack_answer, version_in
from millstream.sourcing.load import Aggregate, Loader, Position, records_of
from millstream.sourcing.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a command that was taken.

    :param events: the events that followed, perhaps none
    :param version: how many events the aggregate has had with them
    :param position: where a reader has seen them: topic → partition → next offset
    :param repeated: whether this is the answer of an earlier command with the same key
    """

    events: tuple[Any, ...]
    version: int
    position: Position
    repeated: bool = field(default=False, compare=False)


Outcome: TypeAlias = Decided | Rejected


@dataclass(slots=True, eq=False)
class Asked:
    """A command on its way, and what became of it."""

    id: bytes
    command: Any
    key: str | None
    who: str | None
    attempts: int = 0
    alone: bool = False
    """Whether it shares no chain with others, because what it was in could not be appended."""
    answer: Outcome | None = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        """Whether there is an answer or an error."""
        return self.answer is not None or self.error is not None


@dataclass(slots=True)
class _Chain(Generic[S]):
    """The commands to one aggregate in one round, each decided on what the one before it left."""

    id: bytes
    base: Aggregate[S]
    known: bool
    """Whether it was known from before this round, so that somebody else may have gone on."""
    state: S
    version: int
    members: list[Asked] = field(default_factory=list)
    outcomes: list[tuple[Asked, tuple[Any, ...] | Rejected, int]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    answers: list[Event] = field(default_factory=list)


class Deciding(Generic[S]):
    """Decides commands on one log; ``answers`` is the topic of answers. Used by one thread at a time."""

    def __init__(
        self,
        decider: Decider[S],
        coded: Coded,
        loader: Loader[S],
        snapshots: Snapshots[S],
        answers: str,
        *,
        every: int | None,
        retries: int,
        cached: int,
    ) -> None:
        self._decider, self._coded, self._loader, self._snapshots = decider, coded, loader, snapshots
        self._topic, self._answers = loader.topic, answers
        self._every, self._retries, self._cached = every, retries, cached
        self._known: OrderedDict[bytes, Aggregate[S]] = OrderedDict()

    def work(self, log: Log, partitions: int, asked: Sequence[Asked]) -> None:
        """Answer everything that was asked, in as many transactions as it takes."""
        left = list(asked)
        while left := [each for each in left if not each.over]:
            try:
                self._round(log, partitions, left)
            except BaseException:
                self._known.clear()  # nobody knows what was appended
                raise

    def _round(self, log: Log, partitions: int, asked: Sequence[Asked]) -> None:
        chains = self._chains(log, asked)
        for chain in chains:
            for member in chain.members:
                self._decide(chain, member)
                if (
                    member.error is not None and member.key is not None
                ):  # a repeat is not to fail where the first did not
                    self._answer_as_before(log, member, partitions)
        writing = [chain for chain in chains if chain.events or chain.answers]
        failpoint("sourcing.before_append")
        acks = dict(zip(map(id, writing), _append(log, [self._unit(chain) for chain in writing]), strict=True))
        failpoint("sourcing.after_append")
        for chain in chains:
            ack = acks.get(id(chain))
            if isinstance(ack, MillstreamError):
                self._failed(chain, ack)
            elif ack is not None or (id(chain) not in acks and self._is_fresh(log, chain)):
                self._taken(chain, partitions, ack or {})
            else:
                self._lost(log, chain, partitions)
        while len(self._known) > self._cached:
            self._known.popitem(last=False)

    def _chains(self, log: Log, asked: Sequence[Asked]) -> list[_Chain[S]]:
        """What can be decided at once: a key that is there twice waits for the answer to the first."""
        chains: dict[bytes, _Chain[S]] = {}
        keys: set[str] = set()
        for each in asked:
            chain = chains.get(each.id)
            if each.key in keys or (chain is not None and (each.alone or chain.members[0].alone)):
                continue
            if each.key is not None:
                keys.add(each.key)
            if chain is None:
                base = self._known.get(each.id)
                try:
                    found = base if base is not None else self._loader.load(log, each.id)
                except Exception as error:
                    each.error = error
                    continue
                chain = chains[each.id] = _Chain(each.id, found, base is not None, found.state, found.version)
            chain.members.append(each)
        return list(chains.values())

    def _decide(self, chain: _Chain[S], asked: Asked) -> None:
        """Decide one command on the state that the chain has come to."""
        name = type(asked.command).__name__
        why = Why(name, asked.key, asked.who)
        try:
            found = self._decider.decide(chain.state, asked.command)
            outcome = found if isinstance(found, Rejected) else events_of(found)
            state, packed = chain.state, []
            for number, event in enumerate(() if isinstance(outcome, Rejected) else outcome, chain.version + 1):
                packed.append(self._coded.pack(chain.id, event, number, why))
                state = self._decider.evolve(state, event)
        except Exception as error:
            asked.error = error
            return
        chain.state, chain.version = state, chain.version + len(packed)
        chain.events += packed
        chain.outcomes.append((asked, outcome, chain.version))
        if asked.key is not None:
            last = -1 if chain.base.last is None else chain.base.last
            rejected = outcome.reason if isinstance(outcome, Rejected) else None
            answer = Answer(chain.id.decode(), name, rejected, chain.version, len(packed), last)
            chain.answers.append(pack_answer(asked.key, answer))

    def _unit(self, chain: _Chain[S]) -> Conditional | MillstreamError:
        """What a chain appends, and on which conditions; the error if its state does not survive a snapshot."""
        base = chain.base
        batches: dict[str, Sequence[Event]] = {self._topic: chain.events}
        if chain.answers:
            batches[self._answers] = chain.answers
        if self._every and chain.events and base.last is not None and base.version - base.kept >= self._every:
            try:
                batches[self._snapshots.topic] = [self._snapshots.pack(chain.id, base.state, base.version, base.last)]
            except MillstreamError as error:
                return error
        last: dict[tuple[str, bytes], int | None] = {(self._topic, chain.id): base.last}
        for event in chain.answers:
            last[self._answers, event.key or b""] = None
        return Conditional(batches, last)

    def _is_fresh(self, log: Log, chain: _Chain[S]) -> bool:
        """Whether an aggregate that gets nothing is still as it was known; what was loaded in this round is."""
        if not chain.known:
            return True
        newest = log.of_key(self._topic, chain.id, newest_first=True, limit=1)
        return (newest[0].offset if newest else None) == chain.base.last

    def _taken(self, chain: _Chain[S], partitions: int, acks: Mapping[str, Ack]) -> None:
        """What was appended is known from now on."""
        offsets = acks[self._topic].offsets if chain.events else []
        last = offsets[-1] if offsets else chain.base.last
        kept = chain.base.version if acks.get(self._snapshots.topic, Ack([], [])).offsets else chain.base.kept
        self._known[chain.id] = Aggregate(chain.state, chain.version, last, chain.base.read, kept)
        self._known.move_to_end(chain.id)
        partition = partition_of(chain.id, partitions)
        for asked, outcome, version in chain.outcomes:
            if isinstance(outcome, Rejected):
                asked.answer = outcome
                continue
            number = version - chain.base.version
            place = offsets[number - 1] if number > 0 else chain.base.last
            asked.answer = Decided(outcome, version, {self._topic: {partition: 0 if place is None else place + 1}})

    def _failed(self, chain: _Chain[S], error: MillstreamError) -> None:
        """What one of several would append is refused: each is decided alone, to see whose it is."""
        self._known.pop(chain.id, None)
        for asked, *_ in chain.outcomes:
            if len(chain.outcomes) > 1:
                asked.alone = True
            else:
                asked.error = error

    def _lost(self, log: Log, chain: _Chain[S], partitions: int) -> None:
        """Somebody else was faster, with the aggregate or with a key: answer what was answered, the rest is decided again."""
        self._known.pop(chain.id, None)
        for asked, *_ in chain.outcomes:
            if asked.key is not None:
                self._answer_as_before(log, asked, partitions)
            asked.attempts += 1
            if not asked.over and asked.attempts > self._retries:
                asked.error = Conflict(
                    f"{self._topic} {chain.id.decode()}: others appended to it each of the {asked.attempts} times that"
                    f" {type(asked.command).__name__} was decided; nothing of it was appended",
                    hint="execute it again; or let one process write, which shares its transactions among its threads",
                )

    def _answer_as_before(self, log: Log, asked: Asked, partitions: int) -> None:
        """Give a command the answer that one with its key got, if there was one."""
        try:
            asked.answer = self._first_answer(log, asked, partitions)
        except Exception as error:
            asked.error = error
        if asked.answer is not None:
            asked.error = None

    def _first_answer(self, log: Log, asked: Asked, partitions: int) -> Outcome | None:
        """The answer that a command with this key got, if there was one."""
        assert asked.key is not None  # noqa: S101  (who asks has looked)
        found = log.of_key(self._answers, asked.key.encode(), limit=1)
        if not found:
            return None
        answer = unpack_answer(found[0])
        if (answer.id, answer.command) != (asked.id.decode(), type(asked.command).__name__):
            raise KeyReused(
                f"key {asked.key} was that of {answer.command} to {answer.id}; found {type(asked.command).__name__}"
                f" to {asked.id.decode()}",
                hint="give each command a key of its own, and the same key only to its repeats",
            )
        if answer.rejected is not None:
            return Rejected(answer.rejected, repeated=True)
        events, place = [], answer.after
        for record in records_of(log, self._topic, asked.id, answer.after):
            if version_in(record) > answer.version:
                break
            place = record.offset
            if version_in(record) > answer.version - answer.count:
                events.append(self._coded.unpack(record))
        position = {self._topic: {partition_of(asked.id, partitions): place + 1}}
        return Decided(tuple(events), answer.version, position, repeated=True)


def _append(log: Log, units: Sequence[Conditional | MillstreamError]) -> list[dict[str, Ack] | MillstreamError | None]:
    """Append together, and one by one if one of them is refused; what is an error already stays one."""
    ready = [unit for unit in units if isinstance(unit, Conditional)]
    found: list[dict[str, Ack] | MillstreamError | None]
    try:
        found = [*log.append_if(ready)] if ready else []
    except LogUnavailable:
        raise
    except LogError as error:
        found = [error] if len(ready) == 1 else [each for unit in ready for each in _append(log, [unit])]
    answers = iter(found)
    return [next(answers) if isinstance(unit, Conditional) else unit for unit in units]


def events_of(found: Any) -> tuple[Any, ...]:
    """What decide gave, as a tuple; one event may come alone."""
    return tuple(found) if isinstance(found, Iterable) else (found,)
