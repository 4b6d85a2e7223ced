"""Columns and durations as people write them: Spark DDL for a source's columns, ``10 seconds`` or ``5m`` for a time span.

A type is kept in the user's own spelling, with spaces made regular, because Spark is what reads it in the end; but it is
one that Spark knows, all the way down, and a wrong one is found here and not when the first record comes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache

from sqlglot import Token, TokenError, TokenType, tokenize

from millstream.errors import PlanError
from millstream.relation.clauses import WINDOW_COLUMNS, Column
from millstream.relation.foreign_names import meant_type, not_of_columns

DIALECT = "databricks"

_PLAIN_TYPES = (
    "boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real", "double",
    "decimal", "dec", "numeric", "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "string", "binary", "variant", "void",
)  # fmt: skip
_SIZED_TYPES = {"decimal": 2, "dec": 2, "numeric": 2, "char": 1, "character": 1, "varchar": 1}
_NESTED_TYPES = ("array", "map", "struct")
_TYPE_NAMES = sorted({*_PLAIN_TYPES, *_SIZED_TYPES, *_NESTED_TYPES, "interval"})
_INTERVAL_UNITS = ("year", "month", "day", "hour", "minute", "second")

_UNITS = {
    timedelta(microseconds=1): ("us", "microsecond", "microseconds"),
    timedelta(milliseconds=1): ("ms", "millisecond", "milliseconds"),
    timedelta(seconds=1): ("s", "sec", "second", "seconds"),
    timedelta(minutes=1): ("m", "min", "minute", "minutes"),
    timedelta(hours=1): ("h", "hour", "hours"),
    timedelta(days=1): ("d", "day", "days"),
    timedelta(weeks=1): ("w", "week", "weeks"),
}
_UNIT = {name: size for size, names in _UNITS.items() for name in names}
_CALENDAR = ("mo", "month", "months", "quarter", "quarters", "y", "yr", "year", "years")
_PART = re.compile(r"\s*([0-9]+)\s*([A-Za-z]+)\s*")


def tokens_of(text: str) -> list[Token]:
    """The tokens of a piece of Spark SQL; TokenError where a quote or comment is left open."""
    return list(_tokens(text))


@lru_cache(maxsize=4096)  # one definition asks many times about the same texts
def _tokens(text: str) -> tuple[Token, ...]:
    return tuple(tokenize(text, dialect=DIALECT))


def parse_columns(ddl: str, *, source: bool = False) -> tuple[Column, ...]:
    """Read Spark DDL; a ``:`` between name and type is fine, ``NOT NULL`` and ``COMMENT`` are not. Columns of a source may be ``sealed``.

    >>> [f"{column.name}: {column.type}" for column in parse_columns("user_id long, tags array< string >")]
    ['user_id: long', 'tags: array<string>']
    """
    try:
        tokens = tokens_of(ddl)
    except TokenError as error:
        raise PlanError(f"not a schema: {error}; found {ddl!r}", hint=_SCHEMA_HINT) from error
    if not tokens:
        raise PlanError("a schema needs at least one column; found none", hint=_SCHEMA_HINT)
    reader = _Reader(ddl, tokens)
    columns: list[Column] = []
    taken: set[str] = set()
    while True:
        name = reader.name("a column's name")
        if name.startswith("_"):
            raise PlanError(
                f"column {name}: names beginning with _ are Millstream's own",
                hint=f"call it {name.lstrip('_') or 'something else'}; what a record has besides its columns is there as _key,"
                " _partition, _offset, _append_time, _timestamp, _headers",
            )
        if "`" in name:
            raise PlanError(f"column {name}: a backquote in a name; expected another", hint="rename the column")
        if name.lower() in WINDOW_COLUMNS:
            raise PlanError(
                f"column {name}: the name is reserved for windows; expected another", hint="rename the column"
            )
        if name.lower() in taken:
            raise PlanError(
                f"column {name} is there twice; expected different names (Spark does not see the difference between a and A)"
            )
        taken.add(name.lower())
        reader.skip(":")
        columns.append(
            Column(name, "string", sealed=True) if source and reader.sealed() else Column(name, reader.type(name))
        )
        if reader.at_end:
            return tuple(columns)
        reader.expect(",", f"a comma or the end after column {name}")


def fields_of(kind: str) -> tuple[Column, ...]:
    """The fields of a struct's type; none for any other type.

    >>> [field.name for field in fields_of("struct<id: long, `unit price`: double>")]
    ['id', 'unit price']
    """
    tokens = tokens_of(kind)
    if tokens[0].text.lower() != "struct":
        return ()
    reader = _Reader(kind, tokens)
    return tuple(reader.struct(kind))


def inner_of(kind: str) -> tuple[str, ...]:
    """The types inside an array or a map; none for any other type.

    >>> inner_of("map<string, array<decimal(9, 2)>>"), inner_of("struct<a: int>")
    (('string', 'array<decimal(9, 2)>'), ())
    """
    tokens = tokens_of(kind)
    if tokens[0].text.lower() not in ("array", "map"):
        return ()
    return _Reader(kind, tokens).within(kind)


def is_timestamp(column: Column) -> bool:
    """Whether it holds a point in time; ``timestamp_ntz`` does not, having no zone."""
    return column.type.lower() in ("timestamp", "timestamp_ltz")


def parse_duration(text: str | timedelta) -> timedelta:
    """Read a length of time that is the same everywhere, so no months and no years.

    >>> parse_duration("1 hour 30 minutes") == parse_duration("90m") == timedelta(minutes=90)
    True
    """
    if isinstance(text, timedelta):
        if text < timedelta(0):
            raise PlanError(f"a duration cannot be negative; found {text}")
        return text
    if not isinstance(text, str):
        raise PlanError(f"expected a duration; found {text!r}", hint=_DURATION_HINT)
    total, at = timedelta(0), 0
    while (part := _PART.match(text, at)) is not None:
        count, unit = part.groups()
        # A lone letter counts as written: 5M is more likely five months than five minutes.
        size = _UNIT.get(unit if len(unit) == 1 else unit.lower())
        if size is None:
            calendar = unit.lower() in _CALENDAR or unit == "M"
            why = "is not always the same length" if calendar else "is not a unit of time"
            raise PlanError(f"expected a duration; found {text!r}, where {unit!r} {why}", hint=_DURATION_HINT)
        try:
            total += int(count) * size
        except OverflowError as error:
            raise PlanError(f"expected a duration; found {text!r}, which is too long", hint=_DURATION_HINT) from error
        at = part.end()
    if at == 0 or at < len(text):
        raise PlanError(f"expected a duration; found {text!r}", hint=_DURATION_HINT)
    return total


def format_duration(duration: timedelta) -> str:
    """Write a duration so that :func:`parse_duration` reads it.

    >>> format_duration(timedelta(minutes=90))
    '1 hour 30 minutes'
    """
    parts = []
    for size, (_, *_, singular, plural) in reversed([each for each in _UNITS.items() if each[0] < timedelta(weeks=1)]):
        count, duration = divmod(duration, size)
        if count:
            parts.append(f"{count} {singular if count == 1 else plural}")
    return " ".join(parts) or "0 seconds"


_SCHEMA_HINT = 'columns are written like "user_id long, page string, at timestamp, tags array<string>"'
_DURATION_HINT = "a duration is like '10 seconds', '1 hour 30 minutes', '500ms', '5m' or '7d'"


class _Reader:
    """The tokens of a DDL text, read from left to right."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    def _next(self) -> str:
        """The next token as it was written; empty at the end."""
        if self.at_end:
            return ""
        token = self._tokens[self._at]
        return self._text[token.start : token.end + 1]

    def _fail(self, expected: str) -> PlanError:
        found = repr(self._next()) if not self.at_end else "the end"
        hint = not_of_columns(self._next()) or _SCHEMA_HINT
        return PlanError(f"schema {self._text.strip()!r}: expected {expected}; found {found}", hint=hint)

    def skip(self, mark: str) -> bool:
        """Pass over a mark or word if it is next."""
        if self._next().lower() != mark:
            return False
        self._at += 1
        return True

    def expect(self, mark: str, what: str) -> None:
        if not self.skip(mark):
            raise self._fail(what)

    def name(self, what: str) -> str:
        """Read a name, in backquotes or a plain word; which words are keywords is not our concern, nor Spark's."""
        word = self._next()
        quoted = not self.at_end and self._tokens[self._at].token_type == TokenType.IDENTIFIER
        if not quoted and not re.fullmatch(r"[^\W\d]\w*", word):
            raise self._fail(what)
        name = self._tokens[self._at].text if quoted else word
        self._at += 1
        return name

    def _number(self) -> str:
        number = self._next()
        if not re.fullmatch(r"[0-9]+", number):
            raise self._fail("a whole number")
        self._at += 1
        return number

    def type(self, owner: str) -> str:
        """Read one type, however deep, and give it with regular spaces."""
        word = self._next()
        kind = word.lower()
        if kind not in _TYPE_NAMES:
            close = difflib.get_close_matches(kind, _TYPE_NAMES, 1)
            error = self._fail(f"a Spark type for {owner}")
            near = f"did you mean {close[0]}?" if close else f"types: {', '.join(_TYPE_NAMES)}"
            raise PlanError(error.message, hint=meant_type(word) or near)
        self._at += 1
        if kind in _NESTED_TYPES:
            self.expect("<", f"{kind}<…>")
            inner = self._inner(kind, owner)
            self.expect(">", f"the > of {kind}<…>")
            return f"{word}<{inner}>"
        if kind == "interval":
            return self._interval(word)
        if kind in _SIZED_TYPES and self.skip("("):
            sizes = [self._number()]
            while len(sizes) < _SIZED_TYPES[kind] and self.skip(","):
                sizes.append(self._number())
            self.expect(")", f"the ) of {kind}(…)")
            return f"{word}({', '.join(sizes)})"
        if kind not in _PLAIN_TYPES:
            raise PlanError(self._fail(f"a length, {kind}(…)").message, hint=meant_type(kind))
        return word

    def sealed(self) -> bool:
        """Pass over ``sealed`` or ``sealed string``, if that is next."""
        if not self.skip("sealed"):
            return False
        if not self.at_end and self._next() != "," and not self.skip("string"):
            raise PlanError(
                self._fail("nothing behind sealed, or string").message,
                hint="a sealed column is text, whatever was sealed",
            )
        return True

    def _inner(self, kind: str, owner: str) -> str:
        if kind == "array":
            return self.type(owner)
        if kind == "map":
            key = self.type(owner)
            self.expect(",", "the value's type of map<…>")
            return f"{key}, {self.type(owner)}"
        fields = []
        while True:
            start = self._at
            name = self.name(f"a field's name in {owner}")
            written = self._text[self._tokens[start].start : self._tokens[start].end + 1]
            self.skip(":")
            fields.append(f"{written}: {self.type(f'{owner}.{name}')}")
            if not self.skip(","):
                return ", ".join(fields)

    def struct(self, owner: str) -> Iterator[Column]:
        """Read the fields of a whole struct<…>."""
        self._at = 2
        while True:
            name = self.name(f"a field's name in {owner}")
            self.skip(":")
            yield Column(name, self.type(owner))
            if not self.skip(","):
                return

    def within(self, owner: str) -> tuple[str, ...]:
        """Read the types of a whole array<…> or map<…>."""
        self._at = 2
        first = self.type(owner)
        return (first, self.type(owner)) if self.skip(",") else (first,)

    def _interval(self, word: str) -> str:
        words = [word]
        for _ in range(2):
            unit = self._next()
            if unit.lower() not in _INTERVAL_UNITS:
                raise self._fail(f"one of {', '.join(_INTERVAL_UNITS)} after interval")
            words.append(unit)
            self._at += 1
            if len(words) > 2 or not self.skip("to"):
                return " ".join(words)
            words.append("to")
        return " ".join(words)
