"""Patterns as text: what is read, what is written of it, and what is refused at its character."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.relation.pattern import Alternatives, Anchor, Excluded, Pattern, Repeated, Sequential, Variable
from millstream.relation.pattern_text import PatternMistake, read_pattern, variables_of, written

A, B, C = (Variable(name) for name in "ABC")

READ: list[tuple[str, Pattern]] = [
    ("A", A),
    ("A B C", Sequential((A, B, C))),
    ("A | B C", Alternatives((A, Sequential((B, C))))),
    ("(A | B) C", Sequential((Alternatives((A, B)), C))),
    ("A*", Repeated(A, 0, None)),
    ("A+?", Repeated(A, 1, None, greedy=False)),
    ("A??", Repeated(A, 0, 1, greedy=False)),
    ("A{3}", Repeated(A, 3, 3)),
    ("A{2,}?", Repeated(A, 2, None, greedy=False)),
    ("A{,4}", Repeated(A, 0, 4)),
    ("A{2,4}", Repeated(A, 2, 4)),
    ("(A B)+", Repeated(Sequential((A, B)), 1, None)),
    ("^ A $", Sequential((Anchor("start"), A, Anchor("end")))),
    ("A {- B+ -} C", Sequential((A, Excluded(Repeated(B, 1, None)), C))),
    ("()", Sequential()),
    ("A ()", Sequential((A, Sequential()))),
    ("A | ()", Alternatives((A, Sequential()))),
    ("A -- a comment\n /* and another */ B", Sequential((A, B))),
    ("a A", Sequential((Variable("a"), Variable("a")))),
    ("`no name` B", Sequential((Variable("no name"), B))),
    ("`end`", Variable("end")),
    ("PERMUTE(A)", A),
    ("PERMUTE(A+, B)", Alternatives((Sequential((Repeated(A, 1, None), B)), Sequential((B, Repeated(A, 1, None)))))),
]


@pytest.mark.parametrize(("text", "pattern"), READ, ids=[text for text, _ in READ])
def test_a_pattern_is_read(text: str, pattern: Pattern) -> None:
    assert read_pattern(text) == pattern


REFUSED = [
    ("", 0, "expected a variable; found the end", "() is the empty pattern"),
    ("A |", 3, "expected a variable; found the end", ""),
    ("| A", 0, "expected a variable; found `|`", ""),
    ("(A", 2, "expected ); found the end", ""),
    ("A)", 1, "expected a variable, a quantifier or |; found `)`", ""),
    ("A + +", 4, "expected one quantifier; found `+`", "(A+)*"),
    ("A+? {2}", 4, "expected one quantifier; found `{`", ""),
    ("A{3,2}", 1, "the smaller number first; found {3,2}", "{2,3}"),
    ("A{0}", 1, "at least one repeat", ""),
    ("A{}", 1, "expected how often", "{2,}"),
    ("A{,}", 1, "expected how often", ""),
    ("^*", 0, "a quantifier behind ^", ""),
    ("{- A -}+", 0, "a quantifier behind {- A -}", "{- A* -}"),
    ("A 3", 2, "found `3`", ""),
    ("A; B", 1, "found `;`", ""),
    ("A END", 2, "expected the name of a variable; found `END`", "`END`"),
    ("PERMUTE(A, B", 12, "expected ); found the end", ""),
    ("X PERMUTE(A, B, C, D, E, F, G, H, I)", 2, "PERMUTE of 9 parts; at most 8", "362,880"),
    ("((A{1000}){1000})", 0, "more than 250,000 places", "* for any number"),
]


@pytest.mark.parametrize(("text", "at", "message", "hint"), REFUSED, ids=[text for text, *_ in REFUSED])
def test_what_is_no_pattern_is_refused_at_its_character(text: str, at: int, message: str, hint: str) -> None:
    with pytest.raises(PatternMistake) as caught:
        read_pattern(text)
    assert (caught.value.at, message in caught.value.message, hint in caught.value.hint) == (at, True, True), (
        caught.value
    )


def orders(pattern: Pattern) -> list[tuple[str, ...]]:
    """The rows that a pattern without quantifiers can be, the preferred ones first."""
    match pattern:
        case Variable(name=name):
            return [(name,)]
        case Alternatives(parts=parts):
            return [each for part in parts for each in orders(part)]
        case Sequential(parts=parts):
            made: list[tuple[str, ...]] = [()]
            for part in parts:
                made = [(*before, *each) for before in made for each in orders(part)]
            return made
    raise AssertionError(pattern)


def test_permutations_are_in_the_order_of_the_text() -> None:
    assert orders(read_pattern("PERMUTE(A, B, C, D)")) == list(permutations("ABCD"))
    assert orders(read_pattern("PERMUTE(A B, C | D)")) == [
        ("A", "B", "C"),
        ("A", "B", "D"),
        ("C", "A", "B"),
        ("D", "A", "B"),
    ]
    assert len(orders(read_pattern("PERMUTE(A, B, C, D, E, F, G, H)"))) == 40320


def test_a_name_is_spelled_as_it_first_comes() -> None:
    assert variables_of(read_pattern("Up (down | UP)+ DOWN")) == ("Up", "down")


PATTERNS: st.SearchStrategy[Pattern] = st.recursive(
    st.sampled_from([A, B, C, Variable("no name"), Sequential()]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Sequential(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Alternatives(tuple(parts))),
        st.tuples(
            inner, st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (0, 3), (2, 5), (2, None)]), st.booleans()
        ).map(lambda said: Repeated(said[0], *said[1], said[2])),
        inner.map(Excluded),
    ),
    max_leaves=8,
)
WRITABLE = PATTERNS.filter(
    lambda pattern: not any(isinstance(each, Repeated) and isinstance(each.part, Excluded) for each in _all(pattern))
)


def _all(pattern: Pattern) -> list[Pattern]:
    inner = getattr(pattern, "parts", None) or ([pattern.part] if hasattr(pattern, "part") else [])
    return [pattern, *(found for each in inner for found in _all(each))]


@given(WRITABLE)
def test_what_is_written_is_read_again(pattern: Pattern) -> None:
    read = read_pattern(written(pattern))
    assert read == pattern
