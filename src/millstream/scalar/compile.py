"""Scalar Spark SQL as Polars computes it: a subset of Spark's expressions, each exactly as Spark has it or not at all.

In the subset are columns and literals; arithmetic, comparisons and conditions (``scalar/term.py``); casts and functions
(``scalar/functions.py``); CASE. A row where Spark may fail, or where the two may differ, is *unsure*, and whoever asks
gives it to Spark. For any other text :func:`compile_scalar` answers None.

Sqlglot cuts the text into tokens. How they hang together is read here, level by level as in Spark's grammar, because
sqlglot's tree is not always Spark's: ``a = b < c`` groups otherwise, ``varchar(3)`` is ``string`` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import polars as pl
from sqlglot import Token, TokenError, TokenType

from millstream.relation.functions import Function
from millstream.relation.schema import tokens_of
from millstream.scalar.function import Call, Calls
from millstream.scalar.functions import TYPES, call, cast, concat, operate
from millstream.scalar.term import (
    COMPARISONS,
    Term,
    among,
    any_of,
    choose,
    coalesce,
    common,
    compare,
    conjunction,
    decimal,
    disjunction,
    divide,
    is_state,
    literal,
    modulo,
    negation,
    negative,
    widen,
)
from millstream.scalar.text import element, like, matches
from millstream.scalar.time import INTERVAL, STEPS, interval
from millstream.scalar.types import BOOLEAN, BOUNDS, DATE, DOUBLE, LONG, NULL, TEXT, Refused, need

# Comments, escapes and ${variables} are where readers of SQL differ.
_UNREADABLE = ("--", "/*", "\\", "${")
_LONGEST = 200  # tokens; sums and products of many parts repeat each other in what is unsure
# Unquoted, these are not columns to Spark, or not everywhere.
_WORDS = frozenset((
    "and", "between", "case", "cast", "distinct", "else", "end", "exists", "false", "from", "in", "interval", "is",
    "like", "not", "null", "or", "then", "true", "when",
))  # fmt: skip
_SUFFIXES: dict[str, pl.DataType] = {"y": pl.Int8(), "s": pl.Int16(), "l": LONG}
_ONCE = pl.QueryOptFlags.none(simplify_expression=True, comm_subexpr_elim=True)
_SPANS = {name + plural: micros for name, micros in STEPS.items() for plural in ("", "s")}


@dataclass(frozen=True, slots=True)
class Scalar:
    """An expression as Polars computes it; one without columns has one value, for all rows."""

    value: pl.Expr
    dtype: pl.DataType
    """What Spark's result becomes through Arrow."""
    unsure: pl.Expr | None
    """True where only Spark can answer, and the value then means nothing; null or false: sure. None: always sure."""
    calls: tuple[Call, ...] = ()
    """Columns that must be made before, by :func:`~millstream.scalar.function.with_calls`: calls of the pipeline's functions."""
    why: pl.Expr | None = None
    """What such a function raised where one failed, else null."""


def compile_scalar(
    sql: str,
    columns: Mapping[str, pl.DataType],
    *,
    utc: bool = False,
    exact: bool = False,
    functions: Iterable[Function] = (),
    rows: Scalar | None = None,
    final: bool = False,
    label: str = "",
) -> Scalar | None:
    """Give the expression for Polars, or None if it is not in the subset; names of columns compare without case.

    A field of a struct is known under both names with a dot between them. ``utc`` says that Spark's session has UTC as its
    time zone; without it, what depends on one is not in the subset. With ``exact`` a row is unsure only where Spark fails, and it
    may take long: this is for the few rows that the quick way was not sure of, where nobody can be asked.

    ``functions`` are those of the pipeline. They are called where ``rows`` is true, and what ``AND`` or ``CASE`` puts before them;
    ``final`` says that null is as good as false. What they give is in columns whose names begin with ``label``.

    >>> minute = compile_scalar("pmod(n, 60) + 1", {"N": pl.Int64()})
    >>> minute.dtype, minute.unsure
    (Int64, None)
    >>> times = {"at": pl.Datetime("us", "UTC")}
    >>> compile_scalar("hour(at)", times), compile_scalar("hour(at)", times, utc=True).dtype
    (None, Int32)
    """
    if any(mark in sql for mark in _UNREADABLE):
        return None
    try:
        reader = _Reader(sql, columns, utc, exact, Calls(functions, label, () if rows is None else (rows.value,)))
        term = reader.whole(final)
    except (Refused, TokenError, RecursionError):
        return None
    made, why = reader.calls.made, reader.calls.why
    return Scalar(
        term.value, term.dtype, any_of(term.unsure, None if why is None else why.is_not_null()), tuple(made), why
    )


def guarded(scalar: Scalar, guard: Scalar) -> Scalar:
    """The expression where a condition is true, else null: then it can make no row unsure."""
    asked = guard.value.fill_null(False)
    unsure = any_of(guard.unsure, None if scalar.unsure is None else asked & scalar.unsure)
    return replace(scalar, value=pl.when(asked).then(scalar.value), unsure=unsure, calls=(*guard.calls, *scalar.calls))


def select_once(frame: pl.DataFrame, *wanted: pl.Expr) -> pl.DataFrame:
    """Compute expressions together; what several have in common, such as a value and whether it is sure, is computed once."""
    return frame.lazy().select(*wanted).collect(optimizations=_ONCE)


class _Reader:
    """The tokens of an expression, read from left to right; each method reads one level of Spark's grammar."""

    def __init__(self, sql: str, columns: Mapping[str, pl.DataType], utc: bool, exact: bool, calls: Calls) -> None:
        self._sql, self._utc, self._exact, self.calls = sql, utc, exact, calls
        self._tokens: list[Token] = tokens_of(sql)
        need(len(self._tokens) <= _LONGEST)
        self._at = 0
        self._columns: dict[str, list[Term]] = {}
        for name, dtype in columns.items():
            # Polars takes a name that begins with ^ for a pattern.
            if name != "*" and not name.startswith("^"):
                self._columns.setdefault(name.lower(), []).append(Term(pl.col(name), dtype))

    def whole(self, final: bool = False) -> Term:
        """Read all of it."""
        term = self._expression(final)
        need(self._at == len(self._tokens), term.dtype not in (NULL, INTERVAL))
        return term

    def _kind(self, ahead: int = 0) -> TokenType | None:
        at = self._at + ahead
        return self._tokens[at].token_type if at < len(self._tokens) else None

    def _word(self, ahead: int = 0) -> str:
        """The next token as it was written, in lower case; nothing for literals, quoted names and the end."""
        if self._kind(ahead) in (None, TokenType.STRING, TokenType.NUMBER, TokenType.IDENTIFIER):
            return ""
        token = self._tokens[self._at + ahead]
        return self._sql[token.start : token.end + 1].lower()

    def _take(self, *words: str) -> str:
        """Pass over one of the words if it is next, and give it."""
        word = self._word()
        if word not in words:
            return ""
        self._at += 1
        return word

    def _expect(self, *words: str) -> str:
        word = self._take(*words)
        need(bool(word))
        return word

    def _next(self) -> Token:
        need(self._at < len(self._tokens))
        self._at += 1
        return self._tokens[self._at - 1]

    def _expression(self, final: bool = False) -> Term:
        """Read an expression; ``final`` if null is as good as false."""
        return self._chain("or", lambda: self._conjunction(final), disjunction)

    def _conjunction(self, final: bool) -> Term:
        before = len(self.calls.rows)

        def part() -> Term:
            term = self._negation()
            self.calls.rows.append(term.value.fill_null(not final) if term.dtype == BOOLEAN else pl.lit(True))
            return term

        made = self._chain("and", part, conjunction)
        del self.calls.rows[before:]
        return made

    def _chain(self, word: str, part: Callable[[], Term], join: Callable[[Term, Term], Term]) -> Term:
        """Read parts and join them from the right, so that each is repeated only once in what is unsure."""
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return reduce(lambda right, left: join(left, right), reversed(parts))

    def _false_for_null(self) -> bool:
        """Whether the brackets that are next stand in ``coalesce((…), false)``."""
        depth = 0
        for ahead in range(len(self._tokens) - self._at):
            depth += (self._kind(ahead) == TokenType.L_PAREN) - (self._kind(ahead) == TokenType.R_PAREN)
            if depth == 0:
                behind = [self._word(ahead + step) for step in (1, 2, 3)]
                return self._kind() == TokenType.L_PAREN and behind == [",", "false", ")"]
        return False

    def _negation(self) -> Term:
        return negation(self._negation()) if self._take("not", "!") else self._predicate()

    def _predicate(self) -> Term:
        term = self._comparison()
        if self._take("is"):
            opposite = self._take("not")
            found = is_state(term, self._expect("null", "true", "false"))
            return negation(found) if opposite else found
        opposite = self._take("not")
        if self._take("between"):
            low = self._sum()
            self._expect("and")
            found = conjunction(compare(">=", term, low), compare("<=", term, self._sum()))
        elif self._take("in"):
            self._expect("(")
            found = among(term, self._list())
        elif self._take("like"):
            found = like(term, self._sum())
        elif self._take("rlike", "regexp"):
            found = matches(term, self._sum(), exact=self._exact)
        else:
            need(not opposite)
            return term
        return negation(found) if opposite else found

    def _comparison(self) -> Term:
        left = self._sum()
        while symbol := self._take(*COMPARISONS):
            left = compare(symbol, left, self._sum())
        return left

    def _sum(self) -> Term:
        left = self._product()
        while symbol := self._take("+", "-", "||"):
            right = self._product()
            left = (
                concat([left, right])
                if symbol == "||"
                else operate(symbol, left, right, utc=self._utc, exact=self._exact)
            )
        return left

    def _product(self) -> Term:
        left = self._signed()
        while symbol := self._take("*", "/", "%"):
            right = self._signed()
            if symbol == "%":
                left = modulo(left, right, positive=False)
            else:
                left = (
                    divide(left, right)
                    if symbol == "/"
                    else operate(symbol, left, right, utc=self._utc, exact=self._exact)
                )
        return left

    def _signed(self) -> Term:
        if not self._take("-"):
            return self._converted(self._primary())
        if self._kind() == TokenType.NUMBER:  # -2147483648 is one number, and an int
            return self._converted(self._number("-"))
        return negative(self._signed(), exact=self._exact)

    def _converted(self, term: Term) -> Term:
        while symbol := self._take("::", "["):
            if symbol == "::":
                term = cast(term, self._type(), utc=self._utc)
            else:
                term = element(term, self._expression(), first=0)
                self._expect("]")
        return term

    def _primary(self) -> Term:
        word, called = self._word(), self._word(1) == "("
        if self._kind() == TokenType.NUMBER:
            return self._number()
        if self._kind() == TokenType.STRING:
            return self._text()
        if self._take("("):
            term = self._expression()
            self._expect(")")
            return term
        if self._take("case"):
            return self._case()
        if self._take("null"):
            return literal(None, NULL)
        if self._take("true", "false"):
            return literal(word == "true", BOOLEAN)
        if word == "date" and self._kind(1) == TokenType.STRING:
            self._at += 1
            return cast(self._text(), DATE)
        if self._take("interval"):
            return self._interval()
        if not word or not called:
            return self._column(word)
        self._at += 2
        if word == "cast":
            return self._cast()
        if word == "coalesce" and self._false_for_null():
            self._at += 1
            term = self._expression(final=True)
            self._expect(")")
            self._at += 3
            return coalesce([term, literal(False, BOOLEAN)])
        given = self._list()
        if (function := self.calls.functions.get(word)) is not None:
            return self.calls.add(function, given)
        return call(word, given, utc=self._utc, exact=self._exact)

    def _interval(self) -> Term:
        """Read ``10 SECONDS``, ``'10' SECOND``, ``1 HOUR 30 MINUTES`` or ``'10 seconds'``, behind the word."""
        micros = 0
        while True:
            sign, token = -1 if self._take("-") else 1, self._next()
            number, _, unit = token.text.partition(" ")
            need(token.token_type in (TokenType.NUMBER, TokenType.STRING))
            need(re.fullmatch("-?[0-9]{1,12}", number) is not None)
            micros += sign * int(number) * _SPANS[unit.lower() if unit.lower() in _SPANS else self._expect(*_SPANS)]
            if unit or self._kind() not in (TokenType.NUMBER, TokenType.STRING):
                return interval(micros)

    def _column(self, word: str) -> Term:
        name = self._next().text.lower()
        while self._take("."):
            name += f".{self._next().text.lower()}"
        found = self._columns.get(name, [])
        need(len(found) == 1, word not in _WORDS)
        return found[0]

    def _list(self) -> list[Term]:
        """What stands between commas, up to the closing bracket."""
        terms = [] if self._word() == ")" else [self._expression()]
        while self._take(","):
            terms.append(self._expression())
        self._expect(")")
        return terms

    def _cast(self) -> Term:
        term = self._expression()
        self._expect("as")
        term = cast(term, self._type(), utc=self._utc)
        self._expect(")")
        return term

    def _type(self) -> pl.DataType:
        return TYPES[self._expect(*TYPES)]

    def _case(self) -> Term:
        subject = None if self._word() == "when" else self._expression()
        branches: list[tuple[Term, Term]] = []
        before = len(self.calls.rows)
        while self._take("when"):
            condition = self._expression(final=subject is None)
            self._expect("then")
            condition = condition if subject is None else compare("=", subject, condition)
            chosen = condition.value.fill_null(False)
            self.calls.rows.append(chosen)
            branches.append((condition, self._expression()))
            self.calls.rows[-1] = ~chosen
        result = self._expression() if self._take("else") else literal(None, NULL)
        del self.calls.rows[before:]
        self._expect("end")
        result = widen(result, common([*(value for _, value in branches), result]))
        for condition, value in reversed(branches):
            result = choose(condition, value, result)
        return result

    def _text(self) -> Term:
        text = self._next().text
        need("'" not in text, '"' not in text)  # what two quotes in a row mean is a setting of Spark's
        return literal(text, TEXT)

    def _number(self, sign: str = "") -> Term:
        token = self._next()
        text, suffix = (sign + token.text).lower(), ""
        if self._kind() == TokenType.DCOLON and self._tokens[self._at].start == token.start:  # 1L comes as 1, ::, L
            suffix = self._tokens[self._at + 1].text.lower()
            self._at += 2
        if re.fullmatch("-?[0-9]+", text) and suffix != "d":
            for dtype in (pl.Int32(), LONG) if not suffix else [_SUFFIXES[suffix]] if suffix in _SUFFIXES else ():
                if BOUNDS[dtype][0] <= int(text) <= BOUNDS[dtype][1]:
                    return literal(int(text), dtype)
            raise Refused
        need(re.fullmatch(r"-?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", text) is not None, suffix in ("", "d"))
        need(len(text) <= 38, abs(float(text)) < float("inf"))  # a longer one is no decimal
        if not suffix and "e" not in text:
            return decimal(text)
        need(float(text) != 0 or not sign)  # to Spark's optimizer the literals -0.0 and 0.0 are the same
        return literal(float(text), DOUBLE)
