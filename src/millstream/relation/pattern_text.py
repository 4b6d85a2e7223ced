"""Patterns as text: ``A B+ (C | D)*?`` read into clauses, a mistake at its character, and clauses written as text again.

A pattern that says more than it can be searched for, such as a permutation of many parts or a number of repeats that is very large, is
refused here, before anything is made of it.
"""

from __future__ import annotations

import re
from itertools import permutations
from typing import NamedTuple

from millstream.relation.pattern import Alternatives, Anchor, Excluded, Pattern, Repeated, Sequential, Variable

MOST_PERMUTED = 8
MOST_STATES = 250_000
"""Places in a pattern, with each repeat that is counted written out."""
_WORD = re.compile(
    r"(?P<gap>\s+|--[^\n]*|/\*.*?\*/)|(?P<quoted>`[^`]+`)|(?P<name>[^\W\d]\w*)|(?P<number>\d+)|(?P<mark>\{-|-\}|[()|*+?{},^$])",
    re.DOTALL,
)
_RESERVED = ("CASE", "END", "PERMUTE")
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_EXAMPLE = "A B+ (C | D)*?"


class PatternMistake(Exception):
    """What is wrong with the text of a pattern, and at which character."""

    def __init__(self, at: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.at, self.message, self.hint = at, message, hint


class _Word(NamedTuple):
    kind: str
    text: str
    at: int


def read_pattern(text: str) -> Pattern:
    """Read a pattern.

    >>> written(read_pattern("(A B{2,3}? | C) {- D* -} $"))
    '(A B{2,3}? | C) {- D* -} $'

    :raises PatternMistake: if it is none
    """
    reader = _Reader(text)
    made = reader.alternatives()
    if reader.word:
        raise reader.fail("a variable, a quantifier or |")
    if _states(made) > MOST_STATES:
        raise PatternMistake(
            0, f"this pattern has more than {MOST_STATES:,} places", "fewer repeats, or * for any number of them"
        )
    return made


def variables_of(pattern: Pattern) -> tuple[str, ...]:
    """The names of a pattern's variables, each once, in the order of the text."""
    match pattern:
        case Variable(name=name):
            return (name,)
        case Anchor():
            return ()
        case Sequential(parts=parts) | Alternatives(parts=parts):
            return tuple(dict.fromkeys(name for each in parts for name in variables_of(each)))
        case Repeated(part=part) | Excluded(part=part):
            return variables_of(part)


def written(pattern: Pattern) -> str:
    """A pattern as text."""
    match pattern:
        case Variable(name=name):
            return name if re.fullmatch(r"[^\W\d]\w*", name) and name.upper() not in _RESERVED else f"`{name}`"
        case Anchor(at=at):
            return {"start": "^", "end": "$", "expiry": "until time runs out"}[at]
        case Sequential(parts=parts):
            return (
                " ".join(
                    f"({written(each)})"
                    if isinstance(each, Alternatives | Sequential) and each.parts
                    else written(each)
                    for each in parts
                )
                or "()"
            )
        case Alternatives(parts=parts):
            return " | ".join(
                f"({written(each)})" if isinstance(each, Alternatives) else written(each) for each in parts
            )
        case Excluded(part=part):
            return f"{{- {written(part)} -}}"
        case Repeated(part=part):
            inner = written(part)
            inner = inner if isinstance(part, Variable | Excluded) or inner == "()" else f"({inner})"
            return f"{inner}{_quantifier(pattern)}"


def _quantifier(part: Repeated) -> str:
    said = {bounds: mark for mark, bounds in _QUANTIFIERS.items()}.get((part.least, part.most))
    if said is None:
        counts = f"{part.least}" if part.least == part.most else f"{part.least or ''},{part.most or ''}"
        said = f"{{{counts}}}"
    return said + "?" * (not part.greedy)


def _states(pattern: Pattern) -> int:
    match pattern:
        case Variable() | Anchor():
            return 1
        case Sequential(parts=parts) | Alternatives(parts=parts):
            return 1 + sum(map(_states, parts))
        case Excluded(part=part):
            return _states(part)
        case Repeated(part=part, least=least, most=most):
            return 1 + _states(part) * max(1, least if most is None else most)


class _Reader:
    """The words of a pattern, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.index = text, 0
        self.spelled: dict[str, str] = {}
        self.words: list[_Word] = []
        at = 0
        while at < len(text):
            found = _WORD.match(text, at)
            if found is None:
                raise PatternMistake(at, f"expected a pattern such as {_EXAMPLE}; found `{text[at]}`")
            if found.lastgroup != "gap":
                self.words.append(_Word(str(found.lastgroup), found[0], at))
            at = found.end()

    @property
    def word(self) -> str:
        """The next word; nothing at the end."""
        return self.words[self.index].text if self.index < len(self.words) else ""

    @property
    def at(self) -> int:
        return self.words[self.index].at if self.index < len(self.words) else len(self.text)

    def fail(self, expected: str, hint: str = "") -> PatternMistake:
        return PatternMistake(
            self.at, f"expected {expected}; found {f'`{self.word}`' if self.word else 'the end'}", hint
        )

    def skip(self, word: str) -> bool:
        found = self.word == word
        self.index += found
        return found

    def expect(self, word: str) -> None:
        if not self.skip(word):
            raise self.fail(word)

    def alternatives(self) -> Pattern:
        parts = [self._sequence()]
        while self.skip("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self.word not in ("", "|", ")", "-}", ","):
            parts.append(self._part())
        if not parts:
            raise self.fail("a variable", "() is the empty pattern")
        return parts[0] if len(parts) == 1 else Sequential(tuple(parts))

    def _part(self) -> Pattern:
        at, made = self.at, self._primary()
        bounds = self._bounds()
        if bounds is None:
            return made
        if isinstance(made, Anchor | Excluded):
            hint = "{- A* -} has it inside" if isinstance(made, Excluded) else ""
            raise PatternMistake(
                at, f"a quantifier behind {written(made)}; expected one behind a variable or brackets", hint
            )
        greedy = not self.skip("?")
        if self.word in ("*", "+", "?", "{"):
            raise self.fail("one quantifier", "put what is repeated in brackets: (A+)*")
        return Repeated(made, *bounds, greedy)

    def _primary(self) -> Pattern:
        for mark, place in (("^", "start"), ("$", "end")):
            if self.skip(mark):
                return Anchor(place)  # type: ignore[arg-type]
        if self.skip("("):
            if self.skip(")"):
                return Sequential()
            made = self.alternatives()
            self.expect(")")
            return made
        if self.skip("{-"):
            made = self.alternatives()
            self.expect("-}")
            return Excluded(made)
        if self.index == len(self.words) or self.words[self.index].kind not in ("name", "quoted"):
            raise self.fail("a variable, brackets, {- … -}, ^ or $")
        word = self.words[self.index]
        if word.text.upper() == "PERMUTE" and self._next() == "(":
            return self._permuted()
        if word.text.upper() in _RESERVED:
            raise self.fail("the name of a variable", f"in backquotes it is one: `{word.text}`")
        self.index += 1
        name = word.text.strip("`")
        return Variable(self.spelled.setdefault(name.lower(), name))

    def _next(self) -> str:
        return self.words[self.index + 1].text if self.index + 1 < len(self.words) else ""

    def _permuted(self) -> Pattern:
        at = self.at
        self.index += 2
        parts = [self.alternatives()]
        while self.skip(","):
            parts.append(self.alternatives())
        self.expect(")")
        if len(parts) > MOST_PERMUTED:
            raise PatternMistake(
                at,
                f"PERMUTE of {len(parts)} parts; at most {MOST_PERMUTED} are taken",
                "each order is an alternative: 9 parts have 362,880",
            )
        return permuted(tuple(parts))

    def _bounds(self) -> tuple[int, int | None] | None:
        if self.word in _QUANTIFIERS:
            self.index += 1
            return _QUANTIFIERS[self.words[self.index - 1].text]
        at = self.at
        if not self.skip("{"):
            return None
        least = self._number()
        if self.skip("}"):
            bounds: tuple[int, int | None] | None = None if least is None else (least, least)
        else:
            self.expect(",")
            most = self._number()
            self.expect("}")
            bounds = None if least is None and most is None else (least or 0, most)
        if bounds is None:
            raise PatternMistake(at, "expected how often; found {}", "{2}, {2,}, {,3} or {2,3}")
        if bounds[1] is not None and (bounds[1] == 0 or bounds[1] < bounds[0]):
            raise PatternMistake(
                at,
                f"expected at least one repeat, and the smaller number first; found {self.text[at : self.at].strip()}",
                "{2}, {2,}, {,3} or {2,3}",
            )
        return bounds

    def _number(self) -> int | None:
        if self.index == len(self.words) or self.words[self.index].kind != "number":
            return None
        self.index += 1
        return int(self.words[self.index - 1].text[:9])


def permuted(parts: tuple[Pattern, ...]) -> Pattern:
    """The parts in any order, those that keep the order of the text preferred.

    Of plain variables what comes first is written once: no choice within them could make another order be preferred.
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(each, Variable) for each in parts):
        rests = [(each, permuted((*parts[:at], *parts[at + 1 :]))) for at, each in enumerate(parts)]
        return Alternatives(tuple(Sequential((first, *_flat(rest))) for first, rest in rests))
    return Alternatives(tuple(Sequential(order) for order in permutations(parts)))


def _flat(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.parts if isinstance(pattern, Sequential) and pattern.parts else (pattern,)
