"""What a store is, whichever engine keeps the views: tables kept up to date by batches, and a ledger of the batches.

A store promises that all of a batch is there or none of it: the net changes of every view, the dead letters, the admission
counts and the ledger's entry. A batch that is there already writes nothing, and a process that no longer holds the pipeline
writes nothing. Every engine must pass ``tests/contracts/store.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from millstream.closing import Closing
from millstream.log.heartbeat import Beat

Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic → partition → the next offset to read."""

WEIGHT = "_weight"
ORIGIN = ("_topic", "_partition", "_offset")
TIME = pa.timestamp("us", "UTC")
LETTERS_KEPT = 100_000
"""Dead letters of a pipeline that are kept, the newest, unless it says otherwise."""

REJECTS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time", TIME),
        ("append_time", TIME),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
"""The columns of :attr:`Batch.rejects`: records that were not admitted, and why."""

COUNTED = ("records", "admitted", "late", "duplicate", "future", "malformed", "erased", "wild", "heartbeats")
COUNTS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), *((name, pa.int64()) for name in COUNTED), ("watermark", TIME)]
)
"""The columns of :attr:`Batch.counts`: what admission saw of each partition."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table in which a view is kept.

    With a ``key``, one row for each key. Without one, rows are counted: equal rows are stored once, with how many there are.
    ``append`` means that rows only come, and that the columns ``_topic``, ``_partition``, ``_offset`` of the schema tell them
    apart.
    """

    name: str
    schema: Any  # pyarrow.Schema
    key: tuple[str, ...] = ()
    append: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none means the whole row."""
        return ORIGIN if self.append else self.key


@dataclass(frozen=True, slots=True)
class Batch:
    """What one micro-batch did to every view of a pipeline.

    ``offsets`` are the next to read after it. ``changes`` holds, for each view, rows with an int64 column ``_weight``; an
    updated key may come as −old and +new, or as +new alone; or it holds their net changes, a :class:`Net`. ``state`` is anything that JSON can say.
    """

    checkpoint: str
    batch: int
    fence: int
    offsets: Offsets = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)  # view → pyarrow.Table, or Net
    rejects: Any = field(default_factory=REJECTS.empty_table)  # pyarrow.Table
    counts: Any = field(default_factory=COUNTS.empty_table)  # pyarrow.Table
    state: Mapping[str, Any] = field(default_factory=dict)
    beats: Sequence[Beat] = ()
    """The heartbeats that it had; one that is there already is from now on of this batch."""


class Told(NamedTuple):
    """A heartbeat that the ledger has, and the batch that had it last."""

    checkpoint: str
    batch: int
    beat: Beat


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger holds of a batch; ``counts`` are summed over partitions."""

    checkpoint: str
    batch: int
    fence: int
    offsets: Offsets
    counts: Mapping[str, int]
    state: Mapping[str, Any]
    committed_at: datetime


class ViewInfo(NamedTuple):
    """A stored view: its columns with their Arrow types, how many rows, how many refused, and the last batch of its pipeline."""

    name: str
    pipeline: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    append: bool
    rows: int
    batch: int | None
    updated: datetime | None
    refused: int


class Refusal(NamedTuple):
    """A row that is not taken, and why."""

    row: str
    why: str


class Hidden(NamedTuple):
    """Rows of a view that readers do not see, whatever its version: those in which a column says ``value``, as text."""

    request: str
    view: str
    column: str
    value: str


Comparison: TypeAlias = Literal["=", "<>", "<", "<=", ">", ">="]


class Condition(NamedTuple):
    """A column compared with a value, as text in the form that Arrow reads. Null is like nothing."""

    column: str
    comparison: Comparison
    value: str


class Page(NamedTuple):
    """Which rows of a view, in which order: by columns, downwards where that is True, then by the key; nulls come first upwards."""

    limit: int
    offset: int = 0
    where: tuple[Condition, ...] = ()
    order: tuple[tuple[str, bool], ...] = ()
    without: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Columns, and what they must not say, as text."""


class Rows(NamedTuple):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class StoreWriter(Closing):
    """The writing side. One object writes for one pipeline at a time: the one it has claimed.

    Closed, it keeps the lease that it holds, until that is released or runs out.
    """

    @abstractmethod
    def claim(self, pipeline: str, *, takeover: bool = False) -> int:
        """Become the only writer of a pipeline and give the fence, which is one higher than any before.

        Raises AlreadyRunning while another holds a live lease, unless ``takeover``. Who held it is refused from here on.
        """

    @abstractmethod
    def renew(self) -> None:
        """Extend the lease; TakenOver if it is no longer ours. May be called from another thread."""

    @abstractmethod
    def release(self) -> None:
        """End the lease, so that the next may claim at once. Does nothing if it is not ours any more."""

    @abstractmethod
    def prepare(self, pipeline: str, fingerprint: str, targets: Sequence[Target]) -> None:
        """Make the tables of all views of a claimed pipeline, or check that they are as they were made.

        Raises CheckpointMismatch if the definition, a schema or a key is another than the stored one.
        """

    @abstractmethod
    def commit(self, batch: Batch) -> bool:
        """Apply a batch, whole; False if it is there already, and then nothing is written.

        Raises TakenOver for an older fence, CheckpointMismatch if a later batch is there, or this one with another end, and
        PipelineError if a batch was skipped or the changes contradict themselves; either way nothing is written.
        """

    @abstractmethod
    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of the ledger."""

    @abstractmethod
    def entries(self, pipeline: str, limit: int = 1000) -> list[Entry]:
        """The newest entries, newest first; the ledger keeps at least the newest 1,000."""

    @abstractmethod
    def heartbeats(self, pipeline: str) -> list[Told]:
        """The heartbeats of a pipeline, of all its checkpoints.

        Of those of one place and append time the latest is enough, once the ledger no longer keeps the batches before it.
        """

    @abstractmethod
    def forget(self, pipeline: str) -> None:
        """Drop the views of a pipeline and all that is known of its batches, but for heartbeats: they are facts of the log.

        AlreadyRunning if another has it.
        """

    @abstractmethod
    def swap(self, pipeline: str, coming: str, going: str) -> None:
        """Let what ``coming`` keeps take the place of what a claimed pipeline keeps, and that the place of ``going``.

        All in one transaction; what ``going`` had is dropped. The two are versions of the pipeline, and their views are named
        so: see :func:`version_of`.
        """

    @abstractmethod
    def hide(self, rows: Sequence[Hidden]) -> None:
        """Hide rows from those who read views, until :meth:`unhide`. What batches change is not changed by it."""

    @abstractmethod
    def unhide(self, requests: Sequence[str]) -> None:
        """Hide no longer what these requests have hidden."""


def refused_by(view: str) -> str:
    """What stands in the place of a dead letter's topic if a view's store refused the row, whatever version of the view.

    >>> refused_by("totals~next")
    'view totals'
    """
    return f"view {view.partition('~')[0]}"


def version_of(view: str, pipeline: str) -> str:
    """The name under which a version of a pipeline keeps a view: as it is called, with what follows ``~`` in the version's name.

    >>> version_of("totals", "shop"), version_of("totals", "shop~next"), version_of("totals~next", "shop~old")
    ('totals', 'totals~next', 'totals~old')
    """
    _, mark, version = pipeline.partition("~")
    return view.partition("~")[0] + mark + version


class StoreReader(Closing):
    """The reading side. It never waits for a writer, and sees whole batches only."""

    @abstractmethod
    def views(self) -> list[ViewInfo]:
        """Every view kept here, by name."""

    @abstractmethod
    def last(self, pipeline: str) -> Entry | None:
        """The newest entry of a pipeline's ledger; None if it has committed nothing here."""

    @abstractmethod
    def table(self, view: str, limit: int | None = None) -> Any:
        """All rows, or the first ones, as a pyarrow.Table in the declared schema, in the order of the key.

        UnknownView if there is none.
        """

    @abstractmethod
    def page(self, view: str, page: Page) -> Any:
        """Some rows as a pyarrow.Table in the declared schema.

        Columns and values are checked, and values bound: what a stranger asks for runs no SQL of his. ViewError for a column that is not
        there or has no order, and for a value that is none of its type.
        """

    @abstractmethod
    def get(self, view: str, key: Sequence[Any]) -> dict[str, Any] | None:
        """The row of a key, or None. ViewError if the view has no key, or another number of columns in it."""

    @abstractmethod
    def query(self, sql: str, hidden: Sequence[Hidden] = ()) -> Rows:
        """Run one statement that only reads, in the engine's SQL; ViewError for any other. Views are without hidden rows in it."""

    @abstractmethod
    def hidden(self) -> list[Hidden]:
        """Which rows are to be hidden; what is read here still has them, see :mod:`millstream.store.hiding`."""

    @abstractmethod
    def dead_letters(self, pipeline: str | None = None, *, reason: str | None = None, limit: int = 1000) -> Any:
        """The newest records that were not admitted: a pyarrow.Table of pipeline, batch and the columns of REJECTS."""

    @abstractmethod
    def admission(self, pipeline: str | None = None) -> Any:
        """What became of all records since the beginning: a pyarrow.Table of pipeline and the columns of COUNTS."""
