"""What a database is to a capture: tables, a snapshot of them, and then the transactions that were committed.

A position is where reading goes on: JSON that one source writes and only it understands. A transaction's position is that of its end,
so a source that is asked for changes after it begins with the next one. What a source cannot read without a gap is an error that says
what mends it, never a gap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

Position = Mapping[str, Any]
"""Where to go on, as JSON; what is in it is the source's own."""
Row = Mapping[str, Any]
"""Values by column: what JSON has; numbers that JSON would round, bytes and times are text."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a captured table: its name, the database's name of its type, and the Spark type that a pipeline declares it with."""

    name: str
    native: str
    type: str


@dataclass(frozen=True, slots=True)
class Table:
    """A captured table, as it is at one place of the history; ``key`` names the columns that tell its rows apart."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def full_name(self) -> str:
        """With its schema, where it has one."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


Remembered: TypeAlias = Callable[[Table, Row, str], Any]
"""Gives the last value of a column of the row with this key, as the changes before have left it; KeyError if it is not known."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row that came, changed or went; ``r`` is a row of a snapshot, ``t`` all rows of the table at once.

    ``before`` is None where the database does not say; of a row whose key changed or that went, it has at least the old key.
    """

    table: Table
    op: Literal["c", "u", "d", "r", "t"]
    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one transaction of the database changed, in its order; ``changes`` may be read once, and may be larger than memory.

    Without changes it says that nothing of ours was committed up to the position.
    """

    position: Position
    time: datetime | None
    id: str
    changes: Iterable[Change]


class Snapshot(AbstractContextManager["Snapshot"], ABC):
    """The rows of tables at one position; changes after that position are what the snapshot does not have."""

    position: Position

    @abstractmethod
    def count(self, table: Table) -> int | None:
        """About how many rows there are, for a progress bar."""

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Sequence[Row]]:
        """All rows, in pieces."""


class Source(ABC):
    """A database to capture."""

    connector: str
    """What ``source.connector`` says in an envelope: ``postgresql``, ``mariadb``, ``mysql`` or ``sqlite``."""

    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now; an error for one that is not there, or has nothing to tell rows apart by."""

    @abstractmethod
    def prepare(self, after: Position | None) -> None:
        """Make what capturing needs in the database (slot, publication, triggers), or see that it is there and reaches back to ``after``."""

    @abstractmethod
    def snapshot(self, tables: Sequence[Table]) -> Snapshot:
        """Begin to read what is there now."""

    @abstractmethod
    def changes(self, after: Position) -> Iterator[Transaction | None]:
        """What was committed after a position, without end. None says that there is nothing at the moment: at least once a second."""

    @abstractmethod
    def acknowledge(self, position: Position) -> None:
        """Everything up to there is in the log, durably: the database may forget it."""

    def remember(self, remembered: Remembered) -> None:  # noqa: B027  most databases tell whole rows
        """Ask this for values that the database does not tell because they are as they were; before ``changes``.

        It is asked while a change is read, when the ones before it have been taken.
        """

    def end(self) -> Position:
        """Where the database is now: what is committed already is not after it."""
        with self.snapshot(()) as snapshot:
            return snapshot.position

    def is_quiet(self, after: Position, until: Position) -> bool:  # noqa: ARG002  most databases stand still where nobody writes
        """Whether it is known that nothing of ours was committed between two positions. Nobody who reads changes is disturbed."""
        return False

    @abstractmethod
    def remove(self) -> None:
        """Take everything out of the database that :meth:`prepare` made."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connections."""


@contextmanager
def closed(changes: Iterator[Transaction | None]) -> Iterator[Iterator[Transaction | None]]:
    """Let an iterator of changes end with the block, whatever it waits for."""
    try:
        yield changes
    finally:
        if isinstance(changes, Generator):
            changes.close()
