"""Text of others made safe to show: characters that a terminal or a reader would obey become escapes that it prints.

Whatever a record, a broker or a database says is data. Without this it could clear the screen, fill the clipboard (OSC 52), or
forge a line of our own output.
"""

from __future__ import annotations

_OBEYED = [
    *range(0x20),  # C0: escape, bell, carriage return, …
    *range(0x7F, 0xA0),  # delete and C1, whose U+009B begins a sequence as escape and [ do
    *range(0x2028, 0x202F),  # separators of lines and paragraphs; turns of the direction of writing
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # halves of a character: no terminal can be sent one
]
_NAMED = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_ONE_LINE = {code: _NAMED.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in _OBEYED}
_LINES = {code: text for code, text in _ONE_LINE.items() if chr(code) not in "\n\t"}
_JSON = {code: f"\\u{code:04x}" for code in _OBEYED if code >= 0x7F}


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with what a terminal obeys as escapes; ``lines`` keeps newlines and tabs, where no line is a record.

    >>> printable("a\x1b[2J\nb"), printable("a\tb\n\x9bc", lines=True)
    ('a\\x1b[2J\\nb', 'a\tb\n\\x9bc')
    """
    return text if text.isascii() and text.isprintable() else text.translate(_LINES if lines else _ONE_LINE)


def printable_json(text: str) -> str:
    r"""JSON that says the same, without the characters that JSON leaves as they are and a terminal obeys.

    >>> printable_json('{"a": "\x9b"}')
    '{"a": "\\u009b"}'
    """
    return text if text.isascii() and "\x7f" not in text else text.translate(_JSON)
