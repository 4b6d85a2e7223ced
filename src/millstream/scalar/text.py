"""Functions of text, as Spark has them, and the elements of lists that they give."""

from __future__ import annotations

import re
from collections.abc import Callable

import polars as pl

from millstream.scalar.regex import LINES, Pattern, translate
from millstream.scalar.term import Term, any_of, literal
from millstream.scalar.types import BOOLEAN, BOUNDS, INTEGERS, TEXT, Refused, need

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")
_ALONE = re.compile(r"\[([^\[\]^\\&-])\]")  # a class of one character is how that is written without an escape

# Whether a Σ at the end of a word becomes ς depends on which characters around it are letters. Of these, most of them newer than
# Polars' tables, Java thinks otherwise. In all else both agree on upper and lower case.
_RANGES = """
    295 897 1acf-1add 1ae0-1aeb 1c89-1c8a a7cb-a7cf a7d2 a7d4 a7da-a7dc a7f1 10d4e 10d50-10d65 10d69-10d6d 10d6f-10d85 10ec5 10efa-10efc
    113bb-113c0 113ce 113d0 113d2 113e1-113e2 1171e 11b60 11b62-11b64 11b66 11dd9 11f5a 1611e-16129 1612d-1612f 16d40-16d42 16d6b-16d6c
    16ea0-16eb8 16ebb-16ed3 16ff2-16ff3 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1e6ff
"""
_NEW = "[" + "".join(re.sub("[0-9a-f]+", r"\\x{\g<0>}", each) for each in _RANGES.split()) + "]"


def of_text(name: str, given: list[Term], *, exact: bool = False) -> Term:
    """Compute a function whose first argument is a text."""
    need(bool(given) and given[0].dtype == TEXT)
    text, *rest = given
    unsure, methods = text.unsure, text.value.str
    match name, rest:
        case "length" | "len" | "char_length" | "character_length", []:
            return Term(methods.len_chars().cast(pl.Int32), pl.Int32(), unsure, (0, BOUNDS[pl.Int32()][1]))
        case "lower" | "lcase", []:
            return Term(
                methods.to_lowercase(),
                TEXT,
                any_of(unsure, methods.contains("Σ", literal=True) & methods.contains(_NEW)),
            )
        case "upper" | "ucase", []:
            return Term(methods.to_uppercase(), TEXT, unsure)
        case "trim" | "ltrim" | "rtrim", []:
            return trimmed(name, text)
        case "substring" | "substr", [Term(dtype=pl.Int32(), constant=int(first))]:
            return Term(methods.slice(first - (first > 0)), TEXT, unsure)
        case "substring" | "substr", [
            Term(dtype=pl.Int32(), constant=int(first)),
            Term(dtype=pl.Int32(), constant=int(count)),
        ]:
            return Term(methods.slice(first - (first > 0), max(0, count)), TEXT, unsure)
        case "left", [Term(dtype=pl.Int32(), constant=int(count))]:
            return Term(methods.head(max(0, count)), TEXT, unsure)
        case "right", [Term(dtype=pl.Int32(), constant=int(count))]:
            return Term(methods.tail(max(0, count)), TEXT, unsure)
        case "startswith" | "endswith" | "contains", [Term(dtype=pl.String()) as part]:
            need(text.has_columns or not part.has_columns)  # one text in many: Polars may give one row
            if name == "contains":
                found = methods.contains(part.value, literal=True)
            else:
                found = methods.starts_with(part.value) if name == "startswith" else methods.ends_with(part.value)
            return Term(found, BOOLEAN, any_of(unsure, part.unsure))
        case "replace", [Term(dtype=pl.String(), constant=str(old)), *new]:
            return _replaced(text, old, new)
        case "split", [Term(dtype=pl.String(), constant=str(by))]:
            alone = _ALONE.fullmatch(by)
            need(bool(by), alone is not None or not _SPECIAL.search(by))
            return Term(methods.split(alone[1] if alone else by), pl.List(TEXT), unsure)
        case "split_part", [Term(dtype=pl.String(), constant=str(by)), Term(dtype=pl.Int32(), constant=int(nth))]:
            need(bool(by), nth != 0)
            found = methods.split(by).list.get(nth - (nth > 0), null_on_oob=True)
            return Term(pl.coalesce(found, methods.head(0)), TEXT, unsure)  # no such part is an empty one
        case "regexp_extract", [Term(dtype=pl.String(), constant=str(pattern))]:
            return _extracted(text, pattern, 1, exact)
        case "regexp_extract", [
            Term(dtype=pl.String(), constant=str(pattern)),
            Term(dtype=pl.Int32(), constant=int(group)),
        ]:
            return _extracted(text, pattern, group, exact)
        case "regexp_like" | "rlike" | "regexp", [pattern]:
            return matches(text, pattern, exact=exact)
    raise Refused


def trimmed(name: str, text: Term, characters: Term | None = None) -> Term:
    """Take characters off both ends of a text, or one: blanks, or those of a literal."""
    which = " " if characters is None else characters.constant
    need(text.dtype == TEXT)
    if not isinstance(which, str):
        raise Refused
    methods = text.value.str
    strip = {"trim": methods.strip_chars, "ltrim": methods.strip_chars_start, "rtrim": methods.strip_chars_end}[name]
    return Term(strip(which) if which else text.value, TEXT, text.unsure)


def matches(text: Term, pattern: Term, *, exact: bool = False) -> Term:
    """Look for a literal pattern in a text."""
    need(text.dtype == TEXT)
    if not isinstance(pattern.constant, str):
        raise Refused
    found = translate(pattern.constant)
    if exact and found.by_line:
        return Term(_by_python(text, found, lambda match: match is not None, BOOLEAN), BOOLEAN, text.unsure)
    return Term(text.value.str.contains(found.rust), BOOLEAN, any_of(text.unsure, _lines(text, found.by_line)))


def like(text: Term, pattern: Term) -> Term:
    """Match a text with a literal pattern; there is no escape in it, because no backslash comes here."""
    need(text.dtype == TEXT)
    if not isinstance(pattern.constant, str) or len(pattern.constant) > 200:  # there is a limit to what Polars compiles
        raise Refused
    marks = {"%": ".*", "_": "."}
    regex = "".join(marks.get(each) or pl.escape_regex(each) for each in re.split("([%_])", pattern.constant))
    return Term(text.value.str.contains(rf"(?s)\A{regex}\z"), BOOLEAN, text.unsure)


def like_without_case(text: Term, pattern: Term) -> Term:
    """Match a text with a literal pattern where upper and lower case do not matter."""
    if not isinstance(pattern.constant, str) or not pattern.constant.isascii():
        raise Refused
    return like(of_text("lower", [text]), literal(pattern.constant.lower(), TEXT))


def element(array: Term, index: Term, *, first: int, null: bool = False) -> Term:
    """Give an element by a literal number, counted from ``first``; unsure where there is none, unless that is ``null``."""
    if not isinstance(array.dtype, pl.List) or not isinstance(index.constant, int):
        raise Refused
    at = index.constant
    need(index.dtype in INTEGERS, at != 0 if first else at >= 0)
    place = at - first if at > 0 else at  # below zero it is counted from the end
    value = array.value.list.get(place, null_on_oob=True)
    inner = array.dtype.inner
    assert isinstance(inner, pl.DataType)  # noqa: S101
    if null:
        return Term(value, inner, array.unsure)
    least = place + 1 if place >= 0 else -place
    return Term(value, inner, any_of(array.unsure, array.value.list.len() < least))


def _replaced(text: Term, old: str, new: list[Term]) -> Term:
    match new:
        case []:
            by = ""
        case [Term(dtype=pl.String(), constant=str(by))]:
            pass
        case _:
            raise Refused
    # To Spark an empty text is nowhere; to Polars it is everywhere.
    return Term(text.value.str.replace_all(old, by, literal=True) if old else text.value, TEXT, text.unsure)


def _extracted(text: Term, pattern: str, group: int, exact: bool) -> Term:
    found = translate(pattern)
    need(0 <= group <= found.groups)
    if exact and found.by_line:
        taken = _by_python(text, found, lambda match: (match[group] or "") if match else "", TEXT)
        return Term(taken, TEXT, text.unsure)
    value = pl.coalesce(text.value.str.extract(found.rust, group), text.value.str.head(0))  # nothing found is ""
    return Term(value, TEXT, any_of(text.unsure, _lines(text, found.by_line)))


def _by_python(
    text: Term, pattern: Pattern, take: Callable[[re.Match[str] | None], object], dtype: pl.DataType
) -> pl.Expr:
    """What is taken of the first match, text by text: Python can look ahead, which Rust cannot, but is slow."""
    found = re.compile(pattern.python)
    return text.value.map_elements(lambda each: take(found.search(each)), dtype)


def _lines(text: Term, by_line: bool) -> pl.Expr | None:
    return text.value.str.contains(LINES) if by_line else None
