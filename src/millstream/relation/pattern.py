"""Row patterns: what ``match`` looks for, as frozen clauses. Nothing here reads text or looks at rows.

A pattern is a regular expression over *variables*. A variable is a condition that a row meets, and a row of a match is mapped to one
variable. Conditions and measures are scalar expressions over *slots*: values taken from the rows of a match, such as the price of the
last row mapped to A, or the average over all of them. A search is one pattern with its conditions and measures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from millstream.relation.clauses import NOWHERE, Function, Place

Shown: TypeAlias = Literal["one", "all", "all_with_empty", "all_with_unmatched"]
"""ONE ROW PER MATCH; or ALL ROWS, where empty matches are omitted or shown, or rows of no match are shown too."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A row that meets the condition of this name; without a condition any row does."""

    tag: ClassVar[str] = "Variable"
    name: str


@dataclass(frozen=True, slots=True)
class Sequential:
    """One part after the other; none is the empty pattern."""

    tag: ClassVar[str] = "Sequential"
    parts: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of the parts, the first one preferred."""

    tag: ClassVar[str] = "Alternatives"
    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part from ``least`` to ``most`` times, None being any number: as often as possible, or as seldom."""

    tag: ClassVar[str] = "Repeated"
    part: Pattern
    least: int
    most: int | None
    greedy: bool = True


@dataclass(frozen=True, slots=True)
class Excluded:
    """``{- part -}``: rows that are matched and not shown."""

    tag: ClassVar[str] = "Excluded"
    part: Pattern


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place without a row: before the first row of the partition, behind the last, or where the match has run out of time.

    ``expiry`` is met where the next row lies at or beyond the first row's time and ``within``, or where there is no next row and time has gone
    on as far as that.
    """

    tag: ClassVar[str] = "Anchor"
    at: Literal["start", "end", "expiry"]


Pattern: TypeAlias = Variable | Sequential | Alternatives | Repeated | Excluded | Anchor


@dataclass(frozen=True, slots=True)
class Navigation:
    """A value of one row: the first or the last one so far that is mapped to one of ``variables``, any row if there are none.

    ``steps`` goes on among the rows that are mapped so, as in ``LAST(A.price, 1)``; ``away`` goes from there by rows of the partition, as in ``PREV``
    (below zero) and ``NEXT``. Where there is no such row the value is null. In a condition the row in question counts as mapped to its variable.
    ``final`` looks at the whole match; it is for measures of all rows alone.
    """

    tag: ClassVar[str] = "Navigation"
    which: Literal["first", "last"]
    variables: tuple[str, ...]
    argument: str
    """An expression over the input; in a spec the column that has it."""
    steps: int = 0
    away: int = 0
    final: bool = False


@dataclass(frozen=True, slots=True)
class Aggregated:
    """An aggregate over the rows so far that are mapped to one of ``variables``, all rows of the match if there are none."""

    tag: ClassVar[str] = "Aggregated"
    function: Function
    variables: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    fraction: float = 0.0
    final: bool = False


@dataclass(frozen=True, slots=True)
class Classifier:
    """The name of the variable that a row is mapped to; the row is found as by :class:`Navigation`."""

    tag: ClassVar[str] = "Classifier"
    which: Literal["first", "last"] = "last"
    variables: tuple[str, ...] = ()
    steps: int = 0
    away: int = 0
    final: bool = False


@dataclass(frozen=True, slots=True)
class MatchNumber:
    """How many matches of the partition there are up to this one."""

    tag: ClassVar[str] = "MatchNumber"


@dataclass(frozen=True, slots=True)
class MatchId:
    """Text that identifies the match, the same after every restart and rebuild."""

    tag: ClassVar[str] = "MatchId"


@dataclass(frozen=True, slots=True)
class Stage:
    """Of a near miss the variable that its last row is mapped to; of a match null."""

    tag: ClassVar[str] = "Stage"


Slot: TypeAlias = Navigation | Aggregated | Classifier | MatchNumber | MatchId | Stage


@dataclass(frozen=True, slots=True)
class Formula:
    """A condition or a measure: ``expression`` is scalar SQL over the names of ``slots``; the name is the variable's, or the column's."""

    tag: ClassVar[str] = "Formula"
    name: str
    expression: str
    slots: tuple[tuple[str, Slot], ...]
    written: str = field(default="", compare=False, repr=False)
    place: Place = field(default=NOWHERE, compare=False, repr=False)
    """Where it was said, if that is not where all of the pattern was."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Where the search goes on behind a match: past its last row, at the row after its first, or at the first or last row of some variables."""

    tag: ClassVar[str] = "Skip"
    to: Literal["past_last", "next_row", "first", "last"] = "past_last"
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """One pattern, the conditions of its variables, and what is shown of each match.

    ``within`` is how long a match may be, from its first row to its last, in microseconds and exclusive. With ``near`` what almost happened is
    shown too: of a start that ran out of time without a match, the longest beginning of one.
    """

    tag: ClassVar[str] = "Search"
    name: str
    pattern: Pattern
    conditions: tuple[Formula, ...]
    measures: tuple[Formula, ...]
    shown: Shown = "one"
    skip: Skip = Skip()
    within: int | None = None
    near: bool = False
