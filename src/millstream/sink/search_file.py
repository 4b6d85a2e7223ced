"""The SQLite file of a text index: its tables, what its troubles are called, and searching it.

The rows of a view are kept as JSON by the JSON of their key, the words of the searched columns in a table of SQLite's FTS5 beside them.
The file is of one sink and one view, and says of which. Rows, words and the batch's number change in one transaction, so whoever
searches sees whole batches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from millstream.database import Database, Db, Form, Words
from millstream.errors import ConfigError, SinkError, SinkUnavailable

FORMAT = 1
MARKS = "[", "]"
"""What stands before and behind a word that was found, in a snippet."""
_AROUND = 12
_ANEW = "remove it, and the sink begins with all that its view holds"

_SCHEMA = """
CREATE TABLE millstream_index (
    one INTEGER PRIMARY KEY CHECK (one = 1), sink TEXT NOT NULL, view TEXT NOT NULL, key TEXT NOT NULL, columns TEXT NOT NULL,
    tokenizer TEXT NOT NULL, sequence INTEGER
) STRICT;
CREATE TABLE millstream_rows (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, document TEXT NOT NULL) STRICT;
"""

INDEX_FILE = Form(
    "search",
    0x4D494C46,  # "MILF"
    FORMAT,
    _SCHEMA,
    {
        "missing": Words(SinkError, "no text index at {where}", "a sink to search:PATH?columns=… makes it"),
        "closed": Words(SinkUnavailable, "{where}: the text index is closed{why}", "check the disk and run again"),
        "full": Words(
            SinkUnavailable, "{where}: no room on the disk; nothing of the batch was kept", "free some space"
        ),
        "refused": Words(SinkError, "{where}: {why}; nothing was written"),
        "large": Words(SinkError, "{where}: more than SQLite can hold in one value ({why})"),
        "corrupt": Words(SinkError, "{where}: the stored bytes are not what was written ({why})", _ANEW),
        "failed": Words(
            SinkUnavailable, "{where}: {why}", "check the disk and run again: the file knows which batches it has"
        ),
        "busy": Words(
            SinkUnavailable, "{where}: another process held the write lock for {why}", "look for a stuck writer"
        ),
        "shut": Words(SinkUnavailable, "cannot open {where}: {why}", "check the path and its permissions"),
        "read-only": Words(
            SinkUnavailable,
            "cannot open {where}: its folder is read-only, and SQLite writes beside the file even to read it",
            "make the folder writable, or copy the file with its -wal, if there is one, to a folder that is",
        ),
        "unmade": Words(
            SinkUnavailable, "cannot make {where}: {why}", "check the folder, its permissions and its room"
        ),
        "no database": Words(ConfigError, "{where} is no text index, nor a file of SQLite", "name another path"),
        "foreign": Words(ConfigError, "{where} is a SQLite database of something else", "name another path"),
        "newer": Words(SinkError, "{where} {why}", "pip install --upgrade millstream"),
    },
)


class Hit(NamedTuple):
    """A row that was found."""

    rank: float
    """How well it fits: larger is better (BM25 of SQLite, without its minus)."""
    snippet: str
    """The words around those that were found, these in brackets, of the column in which they fit best."""
    row: dict[str, Any]
    """The row of the view, as JSON says it."""


class Index(NamedTuple):
    """What a file says of itself."""

    sink: str
    view: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    tokenizer: str


class IndexFile(Database):
    """The file of a text index."""

    def __init__(self, path: Path, *, create: bool) -> None:
        super().__init__(path, INDEX_FILE, create=create)

    def become(self, wanted: Index) -> None:
        """Make it the index of a sink; ConfigError if it is another's, or of other columns."""
        with self.read() as db:
            found = index_of(db)
        if found is None:
            with self.write() as db:
                found = index_of(db)
                if found is None:
                    _make(db, wanted)
                    found = wanted
        for name in Index._fields:
            here, there = getattr(wanted, name), getattr(found, name)
            if here != there:
                raise ConfigError(
                    f"{self.path}: found a text index whose {name} is {_said(there)}, expected {_said(here)}",
                    hint=f"name another path; or {_ANEW}",
                )


def search(path: str | Path, words: str | Sequence[str], *, limit: int = 10, either: bool = False) -> list[Hit]:
    """Find the rows of a text index in which words are, the best first.

    It never waits for the sink that writes, and sees whole batches. Case and accents count for nothing.

    :param path: the file of a sink ``search:PATH?columns=…``
    :param words: what is searched: words, all of which must be there. ``mill*`` is every word that begins so; a text with a space in it
        is words in that order
    :param limit: at most so many rows
    :param either: whether one of the words is enough
    :raises SinkError: if there is no index, or its bytes are not what was written
    :raises ConfigError: if there is no word, or the file is something else
    """
    said = [words] if isinstance(words, str) else list(words)
    query = (" OR " if either else " AND ").join(phrase for each in said if (phrase := _phrase(each)))
    if not query:
        raise ConfigError("search: expected a word at least; found none", hint='search("posts.search.db", "mill*")')
    if limit < 1:
        raise ConfigError(f"search: found limit={limit}, expected 1 at least")
    file = IndexFile(Path(path), create=False)
    try:
        with file.read() as db:
            if index_of(db) is None:
                return []
            found = db.execute(
                "SELECT -bm25(millstream_words) AS rank, snippet(millstream_words, -1, ?, ?, '…', ?), document"
                " FROM millstream_words JOIN millstream_rows ON id = millstream_words.rowid"
                " WHERE millstream_words MATCH ? ORDER BY rank DESC, id LIMIT ?",
                (*MARKS, _AROUND, query, limit),
            )
            return [Hit(rank, snippet, json.loads(document)) for rank, snippet, document in found]
    except apsw.SQLError as error:
        raise ConfigError(f"search: {query}: {error}", hint="search for words; quotes and * are taken") from error
    finally:
        file.close()


def index_of(db: Db) -> Index | None:
    """What a file says of itself; None of one that no sink has written to."""
    found = db.execute("SELECT sink, view, key, columns, tokenizer FROM millstream_index").fetchone()
    if found is None:
        return None
    sink, view, key, columns, tokenizer = found
    return Index(sink, view, tuple(json.loads(key)), tuple(json.loads(columns)), tokenizer)


def _make(db: Db, wanted: Index) -> None:
    names = ", ".join(quoted(name) for name in wanted.columns)
    tokenizer = f"{wanted.tokenizer} unicode61" if wanted.tokenizer == "porter" else wanted.tokenizer
    db.execute(f"CREATE VIRTUAL TABLE millstream_words USING fts5({names}, tokenize='{tokenizer}')")
    db.execute(
        "INSERT INTO millstream_index (one, sink, view, key, columns, tokenizer) VALUES (1, ?, ?, ?, ?, ?)",
        (wanted.sink, wanted.view, json.dumps(wanted.key), json.dumps(wanted.columns), wanted.tokenizer),
    )


def quoted(name: str) -> str:
    """A column's name as FTS5 takes it: rank and rowid are its own, so no column is called as it is in the view."""
    return '"c_' + name.replace('"', '""') + '"'


def _phrase(text: str) -> str:
    """Words as FTS5 takes them: in quotes, so that nothing in them is an operator."""
    plain = text.strip().strip('"')
    bare = plain.rstrip("*")
    return f'"{bare.replace(chr(34), chr(34) * 2)}"{"*" * (bare != plain)}' if bare.strip() else ""


def _said(found: str | tuple[str, ...]) -> str:
    return found if isinstance(found, str) else ", ".join(found)
