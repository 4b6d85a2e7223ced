"""Statements of the binary log: what stands there as text, not as rows, and what it does to the rows of captured tables.

Only as much is read as tells which tables are meant. A statement that changes rows of a captured table without saying which is told as
such; it is for the caller to stop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Name: TypeAlias = tuple[str, str]
"""Database and table."""
Kind: TypeAlias = Literal[
    "begin",
    "commit",
    "rollback",
    "savepoint",
    "back",
    "xa",
    "empty",
    "rename",
    "rewrite",
    "alter",
    "rows",
    "call",
    "other",
]

_TOKEN = re.compile(
    r"(?P<space>\s+|--[ \t\n\r][^\n]*|--$|\#[^\n]*)|(?P<open>/\*M?!\d*)|(?P<comment>/\*.*?(?:\*/|$))|(?P<close>\*/)"
    r"|(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\")"
    r"|(?P<word>[\w$@]+)|(?P<mark>.)",
    re.DOTALL,
)
_ROWS = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH")
_CALLS = ("CALL", "DO", "SELECT")
_REWRITES = ("DEFAULT", "NOT", "AS", "AUTO_INCREMENT", "SERIAL", "GENERATED", "ROW", "CURRENT_TIMESTAMP")
"""Words behind ADD that give the rows that are there a value of the new column."""

_NO_COLUMNS = (
    "INDEX",
    "KEY",
    "UNIQUE",
    "PRIMARY",
    "FULLTEXT",
    "SPATIAL",
    "CONSTRAINT",
    "FOREIGN",
    "CHECK",
    "PARTITION",
    "PERIOD",
    "SYSTEM",
)
"""Words behind ADD that make no column."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement is, and which tables it names; ``word`` is the name of a savepoint, or what is said of an XA transaction."""

    kind: Kind
    tables: tuple[Name, ...] = ()
    word: str = ""
    xid: str = ""
    database: str = ""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    name: bool
    literal: bool = False

    def said(self, *words: str) -> bool:
        return not self.name and not self.literal and self.text.upper() in words


def read_statement(text: str, database: str, *, ansi: bool = False) -> Statement:
    """What a statement does; ``database`` is that in which names without one are meant. With ``ansi``, double quotes are for names."""
    tokens = list(_tokens(text, ansi))
    words = [token.text.upper() if not token.name and not token.literal else "" for token in tokens[:6]] + [""] * 6
    match words:
        case ["BEGIN", *_] | ["START", "TRANSACTION", *_]:
            return Statement("begin")
        case ["COMMIT", *_]:
            return Statement("commit")
        case ["ROLLBACK", "", *_] if len(tokens) == 1:
            return Statement("rollback")
        case ["ROLLBACK", *_]:
            found = [token.text for token in tokens[1:] if token.name or not token.said("WORK", "TO", "SAVEPOINT")]
            return Statement("back", word=found[-1].lower()) if found else Statement("rollback")
        case ["SAVEPOINT", *_]:
            return Statement("savepoint", word=tokens[1].text.lower())
        case ["XA", what, *_]:
            return Statement("xa", word=what, xid=xid_of(tokens[2:]))
        case ["TRUNCATE", *_]:
            return Statement("empty", (_names(tokens[2 if words[1] == "TABLE" else 1 :], database)[:1]))
        case ["CREATE", "OR", "REPLACE", "TABLE", *_]:
            return Statement("empty", _names(_without_if(tokens[4:]), database)[:1])
        case ["DROP", "TABLE" | "TABLES", *_]:
            return Statement("empty", _listed(_without_if(tokens[2:]), database))
        case ["DROP", "DATABASE" | "SCHEMA", *_]:
            rest = _without_if(tokens[2:])
            return Statement("empty", database=rest[0].text if rest else "")
        case ["RENAME", "TABLE" | "TABLES", *_]:
            return Statement("rename", _listed(_without_if(tokens[2:]), database, ("TO",)))
        case ["ALTER", *_]:
            return _alter(tokens, database)
        case [first, *_] if first in _ROWS:
            return Statement("rows", _all_names(tokens, database))
        case [first, *_] if first in _CALLS:
            return Statement("call")
    return Statement("other")


def xid_of(tokens: Sequence[_Token]) -> str:
    """An XA transaction's name as it is written: three parts, the last a number."""
    parts = [
        token.text for token in tokens if token.text not in (",", "X", "x") and not token.said("ONE", "PHASE", "FORCE")
    ]
    return ",".join(part.strip("'").lower() for part in parts[:3])


def _alter(tokens: list[_Token], database: str) -> Statement:
    at = next((place for place, token in enumerate(tokens[:4]) if token.said("TABLE")), None)
    if at is None:
        return Statement("other")
    rest = _without_if(tokens[at + 1 :])
    tables = _names(rest, database)[:1]
    rest = rest[3 if len(rest) > 1 and rest[1].text == "." else 1 :]
    added = False
    for place, token in enumerate(rest):
        after = rest[place + 1] if place + 1 < len(rest) else _Token("", False)
        if (
            token.said("PARTITION")
            and place
            and rest[place - 1].said("TRUNCATE", "DROP", "EXCHANGE", "DISCARD", "IMPORT")
        ):
            return Statement("rewrite", tables)
        if token.said("DISCARD", "IMPORT") and after.said("TABLESPACE"):
            return Statement("rewrite", tables)
        if token.said("RENAME") and not after.said("COLUMN", "INDEX", "KEY"):
            new = _names(rest[place + (2 if after.said("TO", "AS", "=") else 1) :], database)[:1]
            return Statement("rename", tables + new)
        if token.said("ADD", "DROP", "MODIFY", "CHANGE", "ALTER"):
            added = token.said("ADD") and not after.said(*_NO_COLUMNS)
        elif added and token.said(*_REWRITES) and not (token.said("DEFAULT") and after.said("NULL")):
            return Statement("rewrite", tables)
    return Statement("alter", tables)


def _tokens(text: str, ansi: bool) -> Iterator[_Token]:
    for found in _TOKEN.finditer(text):
        match found.lastgroup:
            case "quoted":
                yield _Token(found.group()[1:-1].replace("``", "`"), name=True)
            case "text" if ansi and found.group()[0] == '"':
                yield _Token(found.group()[1:-1].replace('""', '"'), name=True)
            case "text":
                yield _Token(found.group(), name=False, literal=True)
            case "word" | "mark" if found.group() != ";":
                yield _Token(found.group(), name=False)


def _without_if(tokens: list[_Token]) -> list[_Token]:
    """Without IF EXISTS or IF NOT EXISTS before a name."""
    if tokens and tokens[0].said("IF"):
        return tokens[next((place for place, token in enumerate(tokens) if token.said("EXISTS")), 0) + 1 :]
    return tokens


def _names(tokens: Sequence[_Token], database: str) -> tuple[Name, ...]:
    """The name at the beginning, if there is one."""
    if not tokens or tokens[0].literal:
        return ()
    if len(tokens) > 2 and tokens[1].text == ".":
        return ((tokens[0].text, tokens[2].text),)
    return ((database, tokens[0].text),)


def _listed(tokens: Sequence[_Token], database: str, also: tuple[str, ...] = ()) -> tuple[Name, ...]:
    """Names with commas between them, or with other words."""
    found: list[Name] = []
    at = 0
    while at < len(tokens):
        found += _names(tokens[at:], database)
        at += 3 if len(tokens) > at + 2 and tokens[at + 1].text == "." else 1
        while at < len(tokens) and not (tokens[at].text == "," or tokens[at].said(*also)):
            at += 1
        at += 1
    return tuple(found)


def _all_names(tokens: Sequence[_Token], database: str) -> tuple[Name, ...]:
    """Whatever could be the name of a table."""
    found: list[Name] = []
    for place, token in enumerate(tokens):
        if not token.literal:
            found += _names(tokens[place:], database)
    return tuple(found)


def members_of(text: str) -> tuple[str, ...]:
    """The members of ``enum('a','b')`` or a set, as the catalog writes it: quotes are doubled, nothing else is."""
    return tuple(found.replace("''", "'") for found in re.findall(r"'((?:[^']|'')*)'", text))
