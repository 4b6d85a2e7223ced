"""Regular expressions that mean the same in Java and in Rust: a conservative subset, translated.

In it are ASCII characters, classes of them, ``.``, ``^``, ``$``, alternatives, groups, and quantifiers of single characters. Both
take the leftmost match and the first alternative that leads to one. A group can be optional but not repeated: of what is repeated
Java remembers the last time in its own way, and its stack is not deep. Look-around, flags and possessive quantifiers are refused;
escapes never come here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.scalar.types import need

LINES = r"[\n\r\x{85}\x{2028}\x{2029}]"
"""What ends a line in Java, as Rust writes it."""

_NO_LINE = r"[^\n\r\x85\u2028\u2029]"
# Java's $: at the end, or before what ends the last line; never between \r and \n.
_END = r"(?:\Z|(?=\r\n\Z)|(?=[\r\x85\u2028\u2029]\Z)|(?<!\r)(?=\n\Z))"

_PIECE = re.compile(
    r"""
    (?P<plain>   [A-Za-z0-9 !"'#%&,\-/:;<=>@_`~] )
  | (?P<class>   \[ (?P<no>\^?) (?P<members> (?: [A-Za-z0-9]-[A-Za-z0-9] | [A-Za-z0-9 !"'#%&,/:;<=>@_`~$.|?*+(){}] )* -? ) \] )
  | (?P<any>     \. )
  | (?P<anchor>  [\^$] )
  | (?P<open>    \( (?: \?: )? )
  | (?P<close>   \) )
  | (?P<or>      \| )
  | (?P<times>   (?: [*+?] | \{ [0-9]{1,2} (?: , (?: [0-9]{1,2} )? )? \} ) \?? )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern for Rust."""

    rust: str
    groups: int
    by_line: bool
    """Whether it means the same only in a text without the end of a line: Java's ``$`` also matches before the last one."""
    python: str = ""
    """The pattern for Python, where it always means the same."""


def translate(java: str) -> Pattern:
    """Give the pattern for Rust, or refuse."""
    need(0 < len(java) <= 200)
    rust, python, groups, by_line, at = "", "", 0, False, 0
    before, open_ = "open", 0
    while at < len(java):
        piece = _PIECE.match(java, at)
        need(piece is not None)
        assert piece is not None  # noqa: S101
        kind, text, at = str(piece.lastgroup), piece.group(), piece.end()
        match kind:
            case "plain":
                rust, python = rust + _code(text), python + re.escape(text)
            case "class":
                rust, python = rust + _class(piece["no"], piece["members"]), python + text
            case "any":
                rust, python = rust + LINES.replace("[", "[^"), python + _NO_LINE
            case "anchor":
                rust, python = rust + (r"\A" if text == "^" else r"\z"), python + (r"\A" if text == "^" else _END)
                by_line |= text == "$"
            case "open":
                rust, python, open_, groups = rust + text, python + text, open_ + 1, groups + (text == "(")
            case "close":
                need(open_ > 0, before != "open")
                rust, python, open_ = rust + text, python + text, open_ - 1
            case "or":
                need(before != "open")
                rust, python, kind = rust + text, python + text, "open"
            case _:
                need(before in ("plain", "class", "any") or (before == "close" and text == "?"))
                low, _, high = text.strip("{}?").partition(",")
                need(not high or int(low) <= int(high))
                rust, python = rust + text, python + text
        before = kind
    need(open_ == 0, before != "open")
    return Pattern(rust, groups, by_line, python)


def _code(character: str) -> str:
    return rf"\x{{{ord(character):x}}}"


def _class(no: str, members: str) -> str:
    need(bool(members), "&&" not in members, "~~" not in members)  # Java's and Rust's ways to combine classes
    made = ""
    for item in re.findall("[A-Za-z0-9]-[A-Za-z0-9]|.", members):
        need(len(item) == 1 or item[0] <= item[2])
        made += "-".join(_code(end) for end in (item[::2] if len(item) == 3 else item))
    return f"[{no}{made}]"
