"""What DEFINE and MEASURES say, read: values of rows of a match are cut out as slots, and what is left is an expression over them.

``A.price > PREV(A.price)`` becomes ``_s0 > _s1``, with the slots beside it. The rules are those of SQL:2016, part 5: a column without a
variable is one of any row of the match, all columns inside of one call belong to the same variable, a condition sees the match as far as it has
come. Of a condition what looks at the row in question alone is one slot as a whole, so that it is computed like any other
expression over the input.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from sqlglot import Token, TokenType

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.approximate import EXACT, refused
from millstream.relation.clauses import META_COLUMNS
from millstream.relation.pattern import Aggregated, Classifier, Formula, MatchId, MatchNumber, Navigation, Slot, Stage
from millstream.relation.syntax import between_commas, closing_bracket, quote, words_of

_SLOT = re.compile(r"\b_s\d+\b")
_NAVIGATIONS = ("first", "last", "prev", "next")
_OF_MATCHES: dict[str, Slot] = {"match_number": MatchNumber(), "match_id": MatchId(), "stage": Stage()}
_MEANT = {"lag": "PREV(A.x, 1)", "lead": "NEXT(A.x, 1)", "first_value": "FIRST(A.x)", "last_value": "LAST(A.x)"}
_CALLS = frozenset((*_NAVIGATIONS, "classifier", *_OF_MATCHES, *_MEANT)) | expression.AGGREGATES
_WHEN = ("FINAL", "RUNNING")
_ALIKE = "all columns inside of one call are of one variable; SUBSET U = (A, B) makes one of several"
_NESTED = "PREV and NEXT go around FIRST and LAST: PREV(LAST(A.x, 1), 2)"


@dataclass(frozen=True, slots=True)
class PatternScope:
    """What names mean: the columns of the rows, and the variables, in lower case, each as those of the pattern that it stands for."""

    columns: tuple[str, ...]
    variables: Mapping[str, tuple[str, ...]]

    def column(self, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """The variable before a column, in lower case or nothing, and the rest of the names, the column as it was declared."""
        qualified = len(names) > 1 and names[0].lower() in self.variables
        rest = names[1:] if qualified else names
        declared = {name.lower(): name for name in self.columns}
        found = declared.get(rest[0].lower())
        if found is None:
            raise self._unknown(names, rest[0], declared)
        return (names[0].lower() if qualified else ""), (found, *rest[1:])

    def of(self, qualifier: str) -> tuple[str, ...]:
        """The variables of the pattern that a qualifier stands for; none is any row."""
        return self.variables[qualifier] if qualifier else ()

    def _unknown(self, names: tuple[str, ...], name: str, declared: Mapping[str, str]) -> PlanError:
        said = ".".join(names)
        if name.lower() in self.variables and len(names) == 1:
            return PlanError(f"{said} is a variable; expected a column of it", hint=f"{said}.{self.columns[0]}")
        close = difflib.get_close_matches(name.lower(), declared, 1)
        shown = ", ".join(each for each in self.columns if each not in META_COLUMNS) or "none"
        variables = ", ".join(dict.fromkeys(each for some in self.variables.values() for each in some))
        hint = f"did you mean {declared[close[0]]}?" if close else f"the variables are {variables}"
        return PlanError(f"no column {said}; there are {shown}", hint=hint)


def condition(name: str, text: str, scope: PatternScope, own: Sequence[str] = ()) -> Formula:
    """Read the condition of a variable; ``own`` are more names for the row in question than the variable's.

    :raises PlanError: if it is none, without a place
    """
    from millstream.relation.predicate import parts

    reader = _Reader(f"define {name}", scope, mine=frozenset({name.lower(), *(each.lower() for each in own)}))
    with reader.worded(text):
        reader.refuse_when(text)
        cut = parts(text)
        own = [each for each in cut if reader.is_of_row(each)]
        made = [
            *([reader.of_row(" AND ".join(own))] if own else []),
            *(reader.read(each) for each in cut if each not in own),
        ]
        return reader.formula(name, " AND ".join(made), text)


def measure(name: str, text: str, scope: PatternScope, all_rows: bool) -> Formula:
    """Read a measure; with ``all_rows`` FINAL looks at the whole match, else there is nothing but the whole match.

    :raises PlanError: if it is none, without a place
    """
    reader = _Reader(f"measure {name}", scope, all_rows=all_rows)
    with reader.worded(text):
        reader.refuse_when(text)
        return reader.formula(name, reader.read(text), text)


@dataclass(slots=True)
class _Reader:
    """Cuts the slots out of the parts of one expression."""

    what: str
    scope: PatternScope
    mine: frozenset[str] = frozenset()
    """Of a condition the names of the row in question."""
    all_rows: bool = False
    slots: dict[Slot, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def worded(self, text: str) -> Iterator[None]:
        """Let errors say what its author wrote, and of what."""
        try:
            if not isinstance(text, str):
                raise PlanError(f"{self.what}: expected an expression as text; found {text!r}")
            yield
        except PlanError as error:
            message = _SLOT.sub(lambda slot: self.said.get(slot[0], slot[0]), error.message)
            message = re.sub(f"^(expression|aggregate {re.escape(self.what)})(?=[ :])", lambda _: self.what, message)
            raise PlanError(message, hint=error.hint) from error.__cause__

    def formula(self, name: str, sql: str, text: str) -> Formula:
        """The formula, once what is left is found to be an expression over the slots."""
        expression.check(sql, self.slots.values(), self.what)
        return Formula(name, sql, tuple((here, slot) for slot, here in self.slots.items()), text.strip())

    def is_of_row(self, text: str) -> bool:
        """Whether a part of a condition looks at the row in question alone; one that looks at nothing does not."""
        found = [] if _calls(words_of(text, self.what)) else self._qualifiers(text)
        return bool(found) and all(map(self._is_own, found))

    def of_row(self, text: str) -> str:
        """What looks at the row in question alone, as one slot: a part may guard those behind it, as in ``n <> 0 AND m / n > 1``."""
        plain = self._plain(text)
        expression.check(plain, self.scope.columns, self.what)
        return self._slot(Navigation("last", (), plain), text)

    def read(self, text: str) -> str:
        """An expression with slots in the place of calls and columns."""
        tokens = words_of(text, self.what)
        parts, done = [], 0
        for begin, at, close in _calls(tokens):
            start = tokens[begin].start
            if start < done:
                continue
            end = self._behind_filter(tokens, close)
            said = text[start : tokens[end].end + 1]
            when = tokens[begin].text.upper() if begin < at else ""
            parts += [
                text[done:start],
                self._slot(self._call(text[tokens[at].start : tokens[end].end + 1], when), said),
            ]
            done = tokens[end].end + 1
        cut = "".join((*parts, text[done:]))
        return expression.replace_columns(cut, self._stand_in)

    # columns

    def _stand_in(self, names: tuple[str, ...], _: int) -> tuple[int, str] | None:
        if names[0] in self.said:
            return None
        qualifier, rest = self._column(names)
        return len(names), self._slot(Navigation("last", self._variables(qualifier), _path(rest)), ".".join(names))

    def _column(self, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        try:
            return self.scope.column(names)
        except PlanError as error:
            raise PlanError(f"{self.what}: {error.message}", hint=error.hint) from error

    def _qualifiers(self, text: str) -> list[str]:
        """The variable of each column of an expression; nothing for a column without one."""
        found: list[str] = []
        expression.replace_columns(text, lambda names, _: found.append(self._column(names)[0]))
        return found

    def _plain(self, text: str) -> str:
        """An expression without the variables before its columns."""

        def stand_in(names: tuple[str, ...], _: int) -> tuple[int, str]:
            qualifier, rest = self._column(names)
            return 1 + bool(qualifier), quote(rest[0])

        return expression.replace_columns(text, stand_in)

    def _is_own(self, qualifier: str) -> bool:
        """Whether the last row of a variable is the row in question, which counts as mapped to its own."""
        names = {qualifier, *(each.lower() for each in self.scope.of(qualifier))}
        return not qualifier or bool(names & self.mine)

    def _variables(self, qualifier: str) -> tuple[str, ...]:
        return () if self.mine and self._is_own(qualifier) else self.scope.of(qualifier)

    def _alike(self, text: str, call: str, given: str | None = None) -> str:
        """The one variable of all columns of an expression."""
        found = list(dict.fromkeys([*([] if given is None else [given]), *self._qualifiers(text)]))
        if len(found) > 1:
            shown = " and ".join(each.upper() if each else "no variable" for each in found)
            raise PlanError(f"{self.what} `{call}`: columns of {shown} in one call; expected those of one", hint=_ALIKE)
        return found[0] if found else ""

    # calls

    def _slot(self, slot: Slot, said: str) -> str:
        name = self.slots.setdefault(slot, f"_s{len(self.slots)}")
        self.said.setdefault(name, said)
        return name

    def _call(self, text: str, when: str) -> Slot:
        """The slot of one call; ``when`` is FINAL or RUNNING, or nothing."""
        tokens = words_of(text, self.what)
        name = tokens[0].text.lower()
        if when and name not in ("first", "last") and name not in expression.AGGREGATES:
            raise PlanError(f"{self.what}: {when} before {name.upper()}; expected FIRST, LAST or an aggregate")
        if when == "FINAL" and self.mine:
            hint = "a condition sees the match as far as it has come: leave out FINAL"
            raise PlanError(f"{self.what} `FINAL {text}`: DEFINE is always RUNNING", hint=hint)
        if name in _MEANT:
            raise PlanError(f"{self.what} `{text}`: {name} is no function of patterns", hint=_MEANT[name])
        close = closing_bracket(tokens, 1) or 0
        arguments = between_commas(tokens[2:close], text)
        final = when == "FINAL" and self.all_rows
        if name in _OF_MATCHES:
            return self._of_match(name, text, arguments)
        if name == "classifier":
            return self._classifier(text, arguments)
        if name in ("prev", "next"):
            return self._away(name, text, arguments)
        if name in ("first", "last"):
            return self._navigation(name, text, arguments, final)
        return self._aggregate(text, tokens, close, final)

    def _of_match(self, name: str, text: str, arguments: tuple[str, ...]) -> Slot:
        if arguments:
            raise PlanError(f"{self.what} `{text}`: {name.upper()} takes no argument; found {len(arguments)}")
        if self.mine:
            raise PlanError(
                f"{self.what} `{text}`: a condition cannot ask for it; expected {name.upper()}() in a measure"
            )
        return _OF_MATCHES[name]

    def _classifier(self, text: str, arguments: tuple[str, ...]) -> Classifier:
        known = [each.strip("`").lower() for each in arguments]
        if len(arguments) > 1 or not set(known) <= set(self.scope.variables):
            raise PlanError(f"{self.what} `{text}`: expected CLASSIFIER(), or one variable in the brackets")
        return Classifier("last", self.scope.of(known[0]) if known else ())

    def _away(self, name: str, text: str, arguments: tuple[str, ...]) -> Slot:
        inner, rows = self._offset(name, text, arguments, 1)
        away = -rows if name == "prev" else rows
        tokens = words_of(inner, self.what)
        begin = tokens[0].text.upper() in _WHEN
        called = next(iter(_calls(tokens)), None)
        whole = called is not None and called[0] == 0 and called[2] == len(tokens) - 1
        if called is None or (whole and tokens[begin].text.lower() == "classifier"):
            found = self._navigation("last", inner, (inner,), False)
        elif whole and tokens[begin].text.lower() in ("first", "last"):
            found = self._call(inner[tokens[begin].start :], tokens[0].text.upper() if begin else "")  # type: ignore[assignment]
        else:
            raise PlanError(
                f"{self.what} `{text}`: expected columns, FIRST or LAST inside; found `{inner}`", hint=_NESTED
            )
        kind = type(found)
        values = {each: getattr(found, each) for each in found.__slots__}
        return kind(**{**values, "away": away})

    def _navigation(self, name: str, text: str, arguments: tuple[str, ...], final: bool) -> Navigation | Classifier:
        inner, steps = self._offset(name, text, arguments, 0)
        tokens = words_of(inner, self.what)
        which = "first" if name == "first" else "last"
        called = next(iter(_calls(tokens)), None)
        if called is not None and tokens[0].text.lower() == "classifier" and called[2] == len(tokens) - 1:
            of = self._classifier(inner, between_commas(tokens[2:-1], inner)).variables
            return Classifier(which, of, steps, final=final)  # type: ignore[arg-type]
        if called is not None:
            raise PlanError(f"{self.what} `{text}`: expected columns inside; found `{inner}`", hint=_NESTED)
        qualifier = self._alike(inner, text)
        if not self._qualifiers(inner):
            raise PlanError(f"{self.what} `{text}`: expected a column inside; found `{inner}`")
        plain = self._plain(inner)
        expression.check(plain, self.scope.columns, self.what)
        own = which == "last" and not steps
        variables = self._variables(qualifier) if own else self.scope.of(qualifier)
        return Navigation(which, variables, plain, steps, final=final)  # type: ignore[arg-type]

    def _offset(self, name: str, text: str, arguments: tuple[str, ...], default: int) -> tuple[str, int]:
        if len(arguments) not in (1, 2) or not (arguments[1:] or ("1",))[0].isdigit():
            hint = f"{name.upper()}(A.x) or {name.upper()}(A.x, 2)"
            raise PlanError(f"{self.what} `{text}`: expected a value, and a whole number of rows or none", hint=hint)
        return arguments[0], int(arguments[1]) if len(arguments) == 2 else default

    def _aggregate(self, text: str, tokens: Sequence[Token], close: int, final: bool) -> Aggregated:
        inner = list(tokens[2:close])
        star = len(inner) == 3 and inner[1].token_type == TokenType.DOT and inner[2].token_type == TokenType.STAR
        given = None
        if star:
            given = inner[0].text.lower()
            if given not in self.scope.variables:
                raise PlanError(f"{self.what} `{text}`: {inner[0].text} is no variable of the pattern")
            text = f"{tokens[0].text}(*){text[tokens[close].end + 1 :]}"
        elif _calls(inner):
            hint = "compute with values of one row inside: sum(A.price * A.n)"
            raise PlanError(f"{self.what} `{text}`: a call over rows inside another", hint=hint)
        variables = self.scope.of(self._alike(text, text, given))
        made = expression.parse_aggregate(self.what, self._plain(text), self.scope.columns)
        if made.function in EXACT:
            raise refused(made, "a match")
        return Aggregated(made.function, variables, made.arguments, made.fraction, final)

    def _behind_filter(self, tokens: Sequence[Token], close: int) -> int:
        """The last token of a call with the FILTER behind it."""
        if close + 1 < len(tokens) and tokens[close + 1].token_type == TokenType.FILTER:
            return closing_bracket(list(tokens), close + 2) or close
        return close

    def refuse_when(self, text: str) -> None:
        """Refuse FINAL and RUNNING before what is no call."""
        tokens = words_of(text, self.what)
        begun = {begin for begin, at, _ in _calls(tokens) if begin < at}
        for index, (token, behind) in enumerate(pairwise(tokens)):
            when = token.text.upper()
            if when in _WHEN and index not in begun and behind.token_type in (TokenType.VAR, TokenType.L_PAREN):
                hint = f"{when} LAST({text[behind.start :].strip()})"
                raise PlanError(f"{self.what} `{text}`: {when} goes before FIRST, LAST or an aggregate", hint=hint)


def _calls(tokens: Sequence[Token]) -> list[tuple[int, int, int]]:
    """The calls that look at rows, the outer ones first: where FINAL or RUNNING is, or the name, then the name, then the closing bracket."""
    found = []
    listed = list(tokens)
    for at, token in enumerate(listed[:-1]):
        before = listed[at - 1] if at else None
        if token.text.lower() not in _CALLS or token.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            continue
        if before is not None and before.token_type in (TokenType.DOT, TokenType.LIKE, TokenType.ILIKE):
            continue
        close = closing_bracket(listed, at + 1)
        if close is not None:
            begin = at - 1 if before is not None and before.text.upper() in _WHEN else at
            found.append((begin, at, close))
    return found


def _path(names: tuple[str, ...]) -> str:
    return ".".join(map(quote, names))
