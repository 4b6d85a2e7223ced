"""Whatever a text holds, what is shown of it is obeyed by no terminal and forges no line."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import MillstreamError
from millstream.printable import printable, printable_json

ODD = st.text(st.sampled_from("\x00\t\n\r\x1b]52;c\x07\x7f\x85\x9b\u2028\u202e[/red]\\a é\ud800"))


def is_safe(text: str, kept: str = "") -> bool:
    text.encode()
    return not any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") and letter not in kept for letter in text)


@given(st.text() | ODD)
@example("\x1b]52;c;cHduZWQ=\x07")
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert is_safe(shown)
    assert len(shown.splitlines()) <= 1
    assert is_safe(printable(text, lines=True), kept="\n\t")


@given(st.text() | ODD)
def test_what_is_printable_is_left_alone(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert shown == "".join(map(printable, text))
    assert printable("[red] é ☃ שלום 日本") == "[red] é ☃ שלום 日本"


@given(
    st.recursive(
        st.text(st.characters(exclude_categories=["Cs"])), lambda inner: st.dictionaries(st.text("a\x9b"), inner)
    )
)
def test_json_says_the_same(value: object) -> None:
    shown = printable_json(json.dumps(value, ensure_ascii=False))
    assert is_safe(shown)
    assert json.loads(shown) == value


def test_an_error_is_printable_whatever_it_cites() -> None:
    error = MillstreamError("found \x1b[2J\nand more", hint="\x9b")
    assert (error.message, error.hint) == ("found \\x1b[2J\nand more", "\\x9b")
    assert is_safe(str(error), kept="\n")
