"""What stands in FROM, read by its words: names, queries in brackets, windows, and the time as of which a table is meant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import get_args

from millstream.errors import PlanError
from millstream.relation.nodes import How
from millstream.sql.ast import Deduplicated, Kind, Query, Table, Windowed
from millstream.sql.match_clause import read_match
from millstream.sql.tokens import Piece, Text, Word, depths, part, split, words

HOWS: dict[str, How] = {
    "INNER": "inner", "CROSS": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full", "SEMI": "semi", "ANTI": "anti",
}  # fmt: skip
REFUSED_TABLES = {
    "PIVOT": ("PIVOT", "write one aggregate a column: sum(n) FILTER (WHERE kind = 'a') AS a"),
    "UNPIVOT": ("UNPIVOT", "write one SELECT a column, with UNION ALL between them"),
    "TABLESAMPLE": ("TABLESAMPLE", "choose rows by a condition that a replay repeats: WHERE id % 10 = 0"),
}
_WINDOWS = {
    "tumble": "tumble(TABLE bid, at, INTERVAL 10 SECONDS)",
    "hop": "hop(TABLE bid, at, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS), how often first, then how long",
    "session": "session(TABLE bid PARTITION BY bidder, at, INTERVAL 10 SECONDS)",
    "slide": "slide(TABLE bid, at, INTERVAL 1 MINUTE)",
}
_DEDUPLICATE = "deduplicate(TABLE clicks PARTITION BY id, at), or with INTERVAL 1 HOUR at the end"
_NO_ALIAS = frozenset({
    "SELECT", "FROM", "WITH", "ON", "USING", "WHERE", "GROUP", "HAVING", "QUALIFY", "ORDER", "LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "JOIN",
    "NATURAL", "LATERAL", "WINDOW", "FOR", "EMIT", "FETCH", "SORT", "CLUSTER", "DISTRIBUTE", "PARTITION", "MATCH_RECOGNIZE", *HOWS, *REFUSED_TABLES,
})  # fmt: skip


class TableReader(ABC):
    """Words read from left to right, and what stands in FROM."""

    def __init__(self, text: Text, found: Sequence[Word], end: int | None = None) -> None:
        self.text, self.words, self.index = text, found, 0
        self.end = len(found) if end is None else end
        self._depths = depths(found)

    @abstractmethod
    def query(self) -> Query:
        """A whole query, up to the bracket that closes it."""

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self.index >= self.end

    @property
    def at(self) -> int:
        """The offset of the next word."""
        return len(self.text.sql) if self.done else self.words[self.index].start

    def word(self, ahead: int = 0) -> str:
        """The next word in capitals, or one further on; nothing if it is quoted or there is none."""
        return self.words[self.index + ahead].text if self.index + ahead < self.end else ""

    def fail(self, expected: str, hint: str = "") -> PlanError:
        """What to raise where something else was expected."""
        found = "the end" if self.done else f"`{self.text.sql[self.at : self.words[self.index].end]}`"
        return self.text.error(self.at, f"expected {expected}; found {found}", hint)

    def skip(self, *some: str) -> bool:
        """Pass over words if they are next."""
        if any(self.word(ahead) != word for ahead, word in enumerate(some)):
            return False
        self.index += len(some)
        return True

    def expect(self, *some: str, hint: str = "") -> None:
        """Pass over words that must be next."""
        for word in some:
            if not self.skip(word):
                raise self.fail(word, hint)

    def name(self, what: str) -> str:
        """A name: a plain word, or anything in backquotes."""
        if self.done or not self.words[self.index].is_name:
            raise self.fail(what)
        self.index += 1
        return self.words[self.index - 1].value

    def names(self) -> tuple[str, ...]:
        """Names in brackets."""
        self.expect("(")
        made = [self.name("a column")]
        while self.skip(","):
            made.append(self.name("a column"))
        self.expect(")")
        return tuple(made)

    def piece(self, ends: Callable[[], bool]) -> Piece:
        """The text up to where, outside of brackets, something ends it."""
        start = self.index
        depth = self._depths[start] if start < self.end else 0
        while not self.done and self._depths[self.index] >= depth:
            if self._depths[self.index] == depth and ends():
                break
            self.index += 1
        return part(Piece(self.text.sql, 0), self.words[start : self.index])

    def brackets(self) -> Piece:
        """The text inside of brackets that must be next."""
        self.expect("(")
        inside = TableReader.piece(self, lambda: False)
        self.expect(")")
        return inside

    def table(self) -> Table:
        """A name, a query in brackets or windows, and its alias; behind it the pattern that its rows are searched for."""
        made = self._table()
        while self.skip("MATCH_RECOGNIZE"):
            what = read_match(self, made)
            alias = self._alias()
            made = Table(what, alias, made.at, columns=self.names() if alias and self.word() == "(" else ())
        if self.word() in REFUSED_TABLES:
            name, hint = REFUSED_TABLES[self.word()]
            raise self.text.error(self.at, f"{name} is not taken", hint)
        return made

    def _table(self) -> Table:
        at, as_of, history = self.at, None, False
        what: str | Query | Windowed | Deduplicated
        if self.word() in ("LATERAL", "UNNEST", "VALUES"):
            raise self.fail(
                "a name, a query in brackets or a window", "rows of an array: LATERAL VIEW explode(array) t AS x"
            )
        if self.skip("TABLE", "("):
            what = self._windowed()
            self.expect(")")
        elif self.word(1) == "(" and self.words[self.index].is_name:
            what = self._windowed()
        elif self.skip("("):
            what = self.query()
            self.expect(")")
        else:
            what = self.name("a name, a query in brackets or a window")
            if self.word() == ".":
                raise self.fail("one name", "streams, tables and views have no name before theirs")
        alias = self._alias()
        if self.skip("FOR"):
            self.expect("SYSTEM_TIME", hint="FOR SYSTEM_TIME AS OF s.at, or FOR SYSTEM_TIME ALL")
            history = self.skip("ALL")
            if not history:
                self.expect("AS", "OF", hint="FOR SYSTEM_TIME AS OF s.at, or FOR SYSTEM_TIME ALL")
                as_of = self._time()
            alias = alias or self._alias()
        columns = self.names() if alias and self.word() == "(" else ()
        return Table(what, alias or (what if isinstance(what, str) else ""), at, as_of, columns, history)

    def _alias(self) -> str:
        if self.skip("AS"):
            return self.name("an alias")
        ok = not self.done and self.words[self.index].is_name and self.word() not in _NO_ALIAS
        return self.name("an alias") if ok else ""

    def _time(self) -> Piece:
        """A column, or a call without arguments such as PROCTIME()."""
        start = self.index
        self.name("the stream's time")
        while self.skip("."):
            self.name("a column")
        self.skip("(", ")")
        return part(Piece(self.text.sql, 0), self.words[start : self.index])

    def _deduplicated(self, at: int) -> Deduplicated:
        """``deduplicate(TABLE clicks PARTITION BY id, at, INTERVAL 1 HOUR)``; PARTITION BY may have several columns."""
        inside = self.brackets()
        given = split(inside, (",",)) if inside.sql else []
        within = given.pop() if len(given) > 2 and words(given[-1].sql)[0].text == "INTERVAL" else None
        if len(given) < 2:
            raise self.text.error(at, "deduplicate: expected a table and its time", _DEDUPLICATE)
        table, partition = self._table_of(_from_to(self.text.sql, given[0], given[-2]))
        return Deduplicated(table, _described(given[-1]), within, partition)

    def _windowed(self) -> Windowed | Deduplicated:
        at, name = self.at, self.name("tumble, hop, session or slide")
        if name.lower() == "deduplicate":
            return self._deduplicated(at)
        kind = next((each for each in get_args(Kind) if each == name.lower()), None)
        if kind is None:
            hint = "; ".join((*_WINDOWS.values(), _DEDUPLICATE))
            raise self.text.error(at, f"{name}(…) in FROM; expected tumble, hop, session, slide or deduplicate", hint)
        inside = self.brackets()
        spans = 2 if kind == "hop" else 1
        given = split(inside, (",",)) if inside.sql else []
        if len(given) < 2 + spans:
            raise self.text.error(
                at, f"{name}: expected a table, its time and {spans} interval{'s' * (spans > 1)}", _WINDOWS[kind]
            )
        time = len(given) - spans - 1
        table, partition = self._table_of(_from_to(self.text.sql, given[0], given[time - 1]))
        return Windowed(kind, table, _described(given[time]), tuple(given[time + 1 :]), partition)

    def _table_of(self, first: Piece) -> tuple[Table, tuple[Piece, ...]]:
        """``TABLE bid PARTITION BY bidder``, or a query in brackets."""
        inner = [word for word in self.words if first.at <= word.start < first.at + len(first.sql)]
        start = self.words.index(inner[0])
        reader = type(self)(self.text, self.words, start + len(inner))
        reader.index = start
        reader.skip("TABLE")
        table = reader.table()
        partition: tuple[Piece, ...] = ()
        if reader.skip("PARTITION", "BY"):
            keys = reader.brackets() if reader.word() == "(" else TableReader.piece(reader, lambda: False)
            partition = tuple(split(keys, (",",)))
        if not reader.done:
            raise reader.fail("a comma", "tumble(TABLE bid, at, INTERVAL 10 SECONDS)")
        return table, partition


def _from_to(sql: str, first: Piece, last: Piece) -> Piece:
    """The text from one piece to another."""
    return Piece(sql[first.at : last.at + len(last.sql)], first.at)


def _described(column: Piece) -> Piece:
    """A column, with or without DESCRIPTOR(…) around it."""
    called = words(column.sql)
    return part(column, called[2:-1]) if called[0].text == "DESCRIPTOR" and len(called) > 2 else column
