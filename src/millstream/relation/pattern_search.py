"""One search for a pattern, from what is said of it to its clauses: names checked, expressions read, what cannot be meant refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple, get_args

from millstream.errors import PlanError
from millstream.relation.clauses import NOWHERE, Place
from millstream.relation.operators.checks import as_list
from millstream.relation.pattern import (
    Alternatives,
    Anchor,
    Excluded,
    Formula,
    Pattern,
    Repeated,
    Search,
    Sequential,
    Shown,
    Skip,
    Stage,
    Variable,
)
from millstream.relation.pattern_formula import PatternScope, condition, measure
from millstream.relation.pattern_text import PatternMistake, read_pattern, variables_of, written
from millstream.relation.schema import parse_duration

_MICROSECOND = timedelta(microseconds=1)
_SKIPS = '"past last row", "to next row", "to first A", "to last A"'


class Said(NamedTuple):
    """A name and an expression, and where they were said, if that is not where all of it was."""

    name: str
    text: str
    place: Place | None = None


class Subset(NamedTuple):
    """A name for several variables, and where it was said."""

    name: str
    variables: Sequence[str]
    place: Place | None = None


class Places(NamedTuple):
    """Where the parts of a search were said, if that is not where all of it was."""

    pattern: Place | None = None
    skip: Place | None = None
    within: Place | None = None


@dataclass(frozen=True, slots=True)
class Sought:
    """A search as it is said. ``own`` are more names for the row that the condition of a variable is about."""

    pattern: Pattern
    define: Sequence[Said] = ()
    measures: Sequence[Said] = ()
    subset: Sequence[Subset] = ()
    shown: Shown = "one"
    skip: Skip = field(default_factory=Skip)
    within: timedelta | None = None
    near: bool = False
    name: str = "match"
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: Places = field(default_factory=Places)


@contextmanager
def at_its_place(place: Place | None) -> Iterator[None]:
    """Put a place before errors inside, if there is one."""
    try:
        yield
    except PlanError as error:
        if place is None:
            raise
        raise PlanError(f"{place}: {error.message}", hint=error.hint) from error.__cause__


def sought(
    pattern: Any,
    define: Mapping[str, str] | None = None,
    measures: Mapping[str, str] | None = None,
    *,
    rows: Any = "one",
    skip: Any = "past last row",
    within: str | timedelta | None = None,
    subset: Mapping[str, Sequence[str]] | None = None,
    near: bool = False,
    name: str = "match",
) -> Sought:
    """Read what Python says of a search."""
    if not isinstance(pattern, str):
        raise PlanError(f"match: expected a pattern as text; found {pattern!r}", hint='"A B+ C"')
    try:
        read = read_pattern(pattern)
    except PatternMistake as error:
        raise PlanError(
            f"match: pattern `{pattern}`, character {error.at + 1}: {error.message}", hint=error.hint
        ) from None
    if rows not in get_args(Shown):
        raise PlanError(f"match: expected rows to be one of {', '.join(get_args(Shown))}; found {rows!r}")
    if not isinstance(name, str) or not name:
        raise PlanError(f"match: expected a name as text; found {name!r}")
    return Sought(
        read,
        [Said(each, text) for each, text in (define or {}).items()],
        [Said(each, text) for each, text in (measures or {}).items()],
        [Subset(union, as_list(names)) for union, names in (subset or {}).items()],
        rows,
        read_skip(skip),
        parse_duration(within) if within is not None else None,
        bool(near),
        name,
    )


def read_skip(text: Any) -> Skip:
    """Read ``past last row`` and its like; ``to A`` is the last row of A."""
    words = text.split() if isinstance(text, str) else []
    match [word.lower() for word in words]:
        case ["past", "last", "row"]:
            return Skip()
        case ["to", "next", "row"]:
            return Skip("next_row")
        case ["to", "first" | "last" as which, _]:
            return Skip(which, (words[2],))
        case ["to", _]:
            return Skip("last", (words[1],))
    raise PlanError(f"match: expected skip to be one of {_SKIPS}; found {text!r}")


def search_of(said: Sought, columns: Sequence[str]) -> Search:
    """The search over rows of these columns.

    :raises PlanError: if it does not hold together
    """
    spelled = {name.lower(): name for name in variables_of(said.pattern)}
    scope = PatternScope(tuple(columns), _variables(said, spelled))
    conditions = _conditions(said, spelled, scope)
    measures = _measures(said, scope)
    with at_its_place(said.places.skip):
        skip = Skip(said.skip.to, tuple(name for each in said.skip.variables for name in _named(each, scope, "skip")))
    made = Search(
        said.name,
        said.pattern,
        conditions,
        measures,
        said.shown,
        skip,
        None if said.within is None else said.within // _MICROSECOND,
        said.near,
    )
    with at_its_place(said.places.pattern):
        _refuse_exclusion(made)
    with at_its_place(said.places.skip):
        _refuse_endless_skip(made, said.skip)
    if said.near and (said.within is None or said.shown != "one"):
        hint = 'within="5 minutes": a near miss is the beginning of a match that ran out of time'
        raise PlanError("match: near=True needs within=, and one row per match", hint=hint)
    return made


def _variables(said: Sought, spelled: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """What each name stands for: a variable for itself, a union for several."""
    made: dict[str, tuple[str, ...]] = {lower: (name,) for lower, name in spelled.items()}
    for union, names, place in said.subset:
        unknown = [name for name in names if name.lower() not in spelled]
        with at_its_place(place):
            if union.lower() in made:
                raise PlanError(f"subset {union}: there is a variable or a subset of that name already")
            if unknown or not names:
                there = ", ".join(spelled.values())
                found = unknown[0] if unknown else "none"
                raise PlanError(f"subset {union}: expected variables of the pattern, {there}; found {found}")
        made[union.lower()] = tuple(dict.fromkeys(spelled[name.lower()] for name in names))
    for name, others in said.own.items():
        made.update((other.lower(), (other,)) for other in others if other.lower() not in made and name)
    return made


def _named(name: str, scope: PatternScope, what: str) -> tuple[str, ...]:
    if name.lower() not in scope.variables:
        there = ", ".join(dict.fromkeys(each for some in scope.variables.values() for each in some))
        raise PlanError(f"{what}: {name} is no variable of the pattern; there are {there}")
    return scope.variables[name.lower()]


def _conditions(said: Sought, spelled: Mapping[str, str], scope: PatternScope) -> tuple[Formula, ...]:
    made: dict[str, Formula] = {}
    for each in said.define:
        with at_its_place(each.place):
            name = spelled.get(each.name.lower())
            if name is None:
                there = ", ".join(spelled.values()) or "none"
                hint = "a variable without a definition matches any row; leave out what the pattern does not have"
                raise PlanError(f"define {each.name}: the pattern has no such variable; there are {there}", hint=hint)
            if name in made:
                raise PlanError(f"define {each.name}: it is defined twice", hint="join the conditions by AND")
            read = condition(name, each.text, scope, said.own.get(each.name, ()))
            made[name] = replace(read, place=each.place or NOWHERE)
    return tuple(made.values())


def _measures(said: Sought, scope: PatternScope) -> tuple[Formula, ...]:
    made = []
    for each in said.measures:
        with at_its_place(each.place):
            read = measure(each.name, each.text, scope, said.shown != "one")
            made.append(replace(read, place=each.place or NOWHERE))
    if said.near and not any(isinstance(slot, Stage) for each in made for _, slot in each.slots):
        made.append(Formula("stage", "_s0", (("_s0", Stage()),), "STAGE()"))
    return tuple(made)


# what a pattern is


def inside(pattern: Pattern) -> Iterator[Pattern]:
    """A pattern and all its parts."""
    yield pattern
    match pattern:
        case Sequential(parts=parts) | Alternatives(parts=parts):
            for each in parts:
                yield from inside(each)
        case Repeated(part=part) | Excluded(part=part):
            yield from inside(part)


def may_be_empty(pattern: Pattern) -> bool:
    """Whether it can be met by no row."""
    match pattern:
        case Variable():
            return False
        case Anchor():
            return True
        case Sequential(parts=parts):
            return all(map(may_be_empty, parts))
        case Alternatives(parts=parts):
            return any(map(may_be_empty, parts))
        case Repeated(part=part, least=least):
            return not least or may_be_empty(part)
        case Excluded(part=part):
            return may_be_empty(part)


def beginnings(pattern: Pattern) -> set[str]:
    """The variables that the first row of a match may be mapped to."""
    match pattern:
        case Variable(name=name):
            return {name}
        case Anchor():
            return set()
        case Sequential(parts=parts):
            found: set[str] = set()
            for each in parts:
                found |= beginnings(each)
                if not may_be_empty(each):
                    break
            return found
        case Alternatives(parts=parts):
            return set[str]().union(*map(beginnings, parts))
        case Repeated(part=part) | Excluded(part=part):
            return beginnings(part)


def never_ends(search: Search) -> str:
    """What of a search can never be final without a WITHIN, as text; nothing if there is no such thing."""
    if search.within is not None:
        return ""
    if any(isinstance(each, Anchor) and each.at == "end" for each in inside(search.pattern)):
        return "$"
    defined = {each.name for each in search.conditions}
    tail = _endless_tail(search.pattern, defined)
    return written(tail) if tail else ""


def _endless_tail(pattern: Pattern, defined: set[str]) -> Pattern | None:
    """A part at the end of a match that any row makes longer."""
    match pattern:
        case Sequential(parts=parts):
            for each in reversed(parts):
                found = _endless_tail(each, defined)
                if found or not may_be_empty(each):
                    return found
        case Alternatives(parts=parts):
            return next((found for each in parts if (found := _endless_tail(each, defined))), None)
        case Repeated(part=part, most=most, greedy=greedy):
            return pattern if most is None and greedy and _is_any(part, defined) else _endless_tail(part, defined)
        case Excluded(part=part):
            return _endless_tail(part, defined)
    return None


def _is_any(pattern: Pattern, defined: set[str]) -> bool:
    match pattern:
        case Variable(name=name):
            return name not in defined
        case Alternatives(parts=parts):
            return any(_is_any(each, defined) for each in parts)
        case Sequential(parts=parts):
            return bool(parts) and all(_is_any(each, defined) for each in parts)
        case Repeated(part=part) | Excluded(part=part):
            return _is_any(part, defined)
        case Anchor():
            return False


def _refuse_exclusion(search: Search) -> None:
    if search.shown in ("all", "all_with_empty") or not any(
        isinstance(each, Excluded) for each in inside(search.pattern)
    ):
        return
    why = (
        "one row per match shows none of its rows"
        if search.shown == "one"
        else "with unmatched rows every row is shown"
    )
    raise PlanError(
        f"match: {{- … -}} leaves rows out of what is shown, and {why}", hint='ALL ROWS PER MATCH, rows="all"'
    )


def _refuse_endless_skip(search: Search, said: Skip) -> None:
    """Refuse to go on at the first row of a match: the same match would be found for ever."""
    to = set(search.skip.variables)
    if not to:
        return
    always = beginnings(search.pattern) <= to and not may_be_empty(search.pattern)
    if search.skip.to == "last":
        first = (
            search.pattern.parts[0]
            if isinstance(search.pattern, Sequential) and search.pattern.parts
            else search.pattern
        )
        rest = search.pattern.parts[1:] if isinstance(search.pattern, Sequential) else ()
        always &= isinstance(first, Variable) and not any(to & set(variables_of(each)) for each in rest)
    if always:
        raise PlanError(
            f"match: skip to {search.skip.to} {said.variables[0]}: that is the first row of every match, which would be found for ever",
            hint="skip to the next row, or to a variable behind it",
        )
