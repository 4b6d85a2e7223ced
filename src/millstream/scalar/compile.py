"""Scalar Spark SQL as Polars computes it: a subset of Spark's expressions, each exactly as Spark has it or not at all.

In the subset are columns and literals; arithmetic, comparisons and conditions (``scalar/term.py``); casts and functions
(``scalar/functions.py``); CASE. A row where Spark may fail, or where the two may differ, is *unsure*, and whoever asks
gives it to Spark. For any other text :func:`compile_scalar` answers None.

Sqlglot cuts the text into tokens. How they hang together is read here, level by level as in Spark's grammar, because
sqlglot's tree is not always Spark's: ``a = b < c`` groups otherwise, ``varchar(3)`` is ``string`` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import polars as pl
from sqlglot import TokenError, TokenType

from millstream.relation.clauses import HEADERS
from millstream.relation.functions import Function
from millstream.scalar.function import Call, Calls
from millstream.scalar.functions import TYPES, call, cast, compare, concat, operate
from millstream.scalar.literals import number, span, text
from millstream.scalar.term import (
    COMPARISONS,
    Term,
    among,
    any_of,
    choose,
    coalesce,
    common,
    conjunction,
    disjunction,
    divide,
    is_state,
    literal,
    modulo,
    negation,
    negative,
    widen,
)
from millstream.scalar.text import element, like, like_without_case, matches, trimmed
from millstream.scalar.time import INTERVAL, function_of
from millstream.scalar.tokens import Tokens
from millstream.scalar.types import BOOLEAN, DATE, DECIMALS, NULL, TEXT, Refused, declared_decimal, need

# Comments, escapes and ${variables} are where readers of SQL differ.
_UNREADABLE = ("--", "/*", "\\", "${")
# Unquoted, these are not columns to Spark, or not everywhere.
_WORDS = frozenset((
    "and", "between", "case", "cast", "distinct", "else", "end", "exists", "false", "from", "in", "interval", "is",
    "like", "not", "null", "or", "then", "true", "when",
))  # fmt: skip
_ONCE = pl.QueryOptFlags.none(simplify_expression=True, comm_subexpr_elim=True)


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
        self._tokens, self._utc, self._exact, self.calls = Tokens(sql), utc, exact, calls
        self._columns: dict[str, list[Term]] = {}
        for name, dtype in columns.items():
            # Polars takes a name that begins with ^ for a pattern.
            if name != "*" and not name.startswith("^"):
                self._columns.setdefault(name.lower(), []).append(Term(pl.col(name), dtype))

    def whole(self, final: bool = False) -> Term:
        """Read all of it."""
        term = self._expression(final)
        need(self._tokens.at_end, term.dtype not in (NULL, INTERVAL))
        return term

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
        while self._tokens.take(word):
            parts.append(part())
        return reduce(lambda right, left: join(left, right), reversed(parts))

    def _negation(self) -> Term:
        return negation(self._negation()) if self._tokens.take("not", "!") else self._predicate()

    def _predicate(self) -> Term:
        term = self._comparison()
        if self._tokens.take("is"):
            opposite = self._tokens.take("not")
            if self._tokens.take("distinct"):
                self._tokens.expect("from")
                same = compare("<=>", term, self._sum())
                return same if opposite else negation(same)
            found = is_state(term, self._tokens.expect("null", "true", "false"))
            return negation(found) if opposite else found
        opposite = self._tokens.take("not")
        if self._tokens.take("between"):
            low = self._sum()
            self._tokens.expect("and")
            found = conjunction(compare(">=", term, low), compare("<=", term, self._sum()))
        elif self._tokens.take("in"):
            self._tokens.expect("(")
            found = among(term, self._list())
        elif self._tokens.take("like"):
            found = like(term, self._sum())
        elif self._tokens.take("ilike"):
            found = like_without_case(term, self._sum())
        elif self._tokens.take("rlike", "regexp"):
            found = matches(term, self._sum(), exact=self._exact)
        else:
            need(not opposite)
            return term
        return negation(found) if opposite else found

    def _comparison(self) -> Term:
        left = self._sum()
        while symbol := self._tokens.take(*COMPARISONS):
            left = compare(symbol, left, self._sum())
        return left

    def _sum(self) -> Term:
        left = self._product()
        while symbol := self._tokens.take("+", "-", "||"):
            right = self._product()
            left = (
                concat([left, right])
                if symbol == "||"
                else operate(symbol, left, right, utc=self._utc, exact=self._exact)
            )
        return left

    def _product(self) -> Term:
        left = self._signed()
        while symbol := self._tokens.take("*", "/", "%"):
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
        if not self._tokens.take("-"):
            return self._converted(self._primary())
        if self._tokens.kind() == TokenType.NUMBER:  # -2147483648 is one number, and an int
            return self._converted(number(self._tokens, "-"))
        return negative(self._signed(), exact=self._exact)

    def _converted(self, term: Term) -> Term:
        while symbol := self._tokens.take("::", "["):
            if symbol == "::":
                term = cast(term, self._type(), utc=self._utc, exact=self._exact)
            else:
                term = element(term, self._expression(), first=0)
                self._tokens.expect("]")
        return term

    def _primary(self) -> Term:
        word, called = self._tokens.word(), self._tokens.word(1) == "("
        if self._tokens.kind() == TokenType.NUMBER:
            return number(self._tokens)
        if self._tokens.kind() == TokenType.STRING:
            return text(self._tokens)
        if self._tokens.take("("):
            term = self._expression()
            self._tokens.expect(")")
            return term
        if self._tokens.take("case"):
            return self._case()
        if self._tokens.take("null"):
            return literal(None, NULL)
        if self._tokens.take("true", "false"):
            return literal(word == "true", BOOLEAN)
        if word == "date" and self._tokens.kind(1) == TokenType.STRING:
            self._tokens.next()
            need(self._tokens.kind(1) != TokenType.STRING)  # it takes one
            return cast(text(self._tokens), DATE)
        if self._tokens.take("interval"):
            return span(self._tokens)
        if not word or not called:
            return self._column(word)
        self._tokens.next()
        self._tokens.expect("(")
        if word == "cast":
            return self._cast()
        if word == "coalesce" and self._tokens.false_for_null():
            self._tokens.expect("(")
            term = self._expression(final=True)
            for each in (")", ",", "false", ")"):
                self._tokens.expect(each)
            return coalesce([term, literal(False, BOOLEAN)])
        if word == "trim":
            return self._trim()
        name, given = self._arguments(word)
        if (function := self.calls.functions.get(word)) is not None:
            return self.calls.add(function, given)
        return call(name, given, utc=self._utc, exact=self._exact)

    def _arguments(self, word: str) -> tuple[str, list[Term]]:
        """The function that is called and its arguments, whichever way SQL has of writing them."""
        if word == "extract":
            field = self._tokens.word()
            self._tokens.next()
            self._tokens.expect("from")
            return function_of(field), self._list()
        if word in ("substring", "substr"):
            first = self._expression()
            if self._tokens.take("from"):
                terms = [first, self._expression()]
                if self._tokens.take("for"):
                    terms.append(self._expression())
                self._tokens.expect(")")
                return word, terms
            self._tokens.expect(",")
            return word, [first, *self._list()]
        return word, self._list()

    def _trim(self) -> Term:
        """Read ``trim(s)`` or ``trim(BOTH 'x' FROM s)``."""
        side = "" if self._tokens.word(1) == ")" else self._tokens.take("both", "leading", "trailing")
        first = None if self._tokens.word() == "from" else self._expression()
        of = {"leading": "ltrim", "trailing": "rtrim"}.get(side, "trim")
        if first is not None and not side and self._tokens.take(")"):
            return call(of, [first], utc=self._utc)
        self._tokens.expect("from")
        source = self._expression()
        self._tokens.expect(")")
        return trimmed(of, source, first)

    def _column(self, word: str) -> Term:
        name = self._tokens.next().text.lower()
        while self._tokens.take("."):
            name += f".{self._tokens.next().text.lower()}"
        found = self._columns.get(name, [])
        need(len(found) == 1, word not in _WORDS)
        return self._header(found[0]) if name == HEADERS else found[0]

    def _header(self, headers: Term) -> Term:
        """The last header of a name: of the map that it is in Spark no other use is read here."""
        self._tokens.expect("[")
        need(self._tokens.kind() == TokenType.STRING, self._tokens.word(1) == "]")
        name = text(self._tokens)
        self._tokens.expect("]")
        named = pl.element().filter(pl.element().struct.field("key") == name.value)
        return Term(headers.value.list.eval(named).list.last().struct.field("value"), TEXT)

    def _list(self) -> list[Term]:
        """What stands between commas, up to the closing bracket."""
        terms = [] if self._tokens.word() == ")" else [self._expression()]
        while self._tokens.take(","):
            terms.append(self._expression())
        self._tokens.expect(")")
        return terms

    def _cast(self) -> Term:
        term = self._expression()
        self._tokens.expect("as")
        term = cast(term, self._type(), utc=self._utc, exact=self._exact)
        self._tokens.expect(")")
        return term

    def _type(self) -> pl.DataType:
        name = self._tokens.expect(*TYPES, *DECIMALS)
        if name in TYPES:
            return TYPES[name]
        if self._tokens.take("("):
            name += "(" + self._tokens.next().text
            while self._tokens.take(","):
                name += "," + self._tokens.next().text
            self._tokens.expect(")")
            name += ")"
        found = declared_decimal(name)
        if found is None:
            raise Refused
        return found

    def _case(self) -> Term:
        subject = None if self._tokens.word() == "when" else self._expression()
        branches: list[tuple[Term, Term]] = []
        before = len(self.calls.rows)
        while self._tokens.take("when"):
            condition = self._expression(final=subject is None)
            self._tokens.expect("then")
            condition = condition if subject is None else compare("=", subject, condition)
            chosen = condition.value.fill_null(False)
            self.calls.rows.append(chosen)
            branches.append((condition, self._expression()))
            self.calls.rows[-1] = ~chosen
        result = self._expression() if self._tokens.take("else") else literal(None, NULL)
        del self.calls.rows[before:]
        self._tokens.expect("end")
        result = widen(result, common([*(value for _, value in branches), result]))
        for condition, value in reversed(branches):
            result = choose(condition, value, result)
        return result
