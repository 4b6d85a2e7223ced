"""A query read by its words, from left to right. What Millstream does not take is refused at its place, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.nodes import How
from millstream.sql.ast import Exploded, Item, Joined, Query, Select
from millstream.sql.from_clause import HOWS, REFUSED_TABLES, TableReader
from millstream.sql.tokens import Piece, Text, read_words, split

_CLAUSES = (
    ("FROM",), ("WHERE",), ("GROUP", "BY"), ("HAVING",), ("QUALIFY",), ("ORDER", "BY"), ("LIMIT",), ("OFFSET",), ("UNION",),
    ("EXCEPT",), ("INTERSECT",), ("MINUS",), ("LATERAL", "VIEW"), ("SORT", "BY"), ("CLUSTER", "BY"), ("DISTRIBUTE", "BY"),
    ("FETCH",), ("EMIT",), ("PIVOT",), ("UNPIVOT",), ("TABLESAMPLE",), ("JOIN",), ("ON",), ("USING",),
    *((how, "JOIN") for how in HOWS), *((how, "OUTER") for how in ("LEFT", "RIGHT", "FULL")),
    ("LEFT", "SEMI"), ("LEFT", "ANTI"), ("NATURAL",),
)  # fmt: skip
_REFUSED = {
    "EXCEPT": ("EXCEPT", "keep the rows that have no partner: WHERE NOT EXISTS (SELECT …), then DISTINCT"),
    "MINUS": ("MINUS", "keep the rows that have no partner: WHERE NOT EXISTS (SELECT …), then DISTINCT"),
    "INTERSECT": ("INTERSECT", "keep the rows that have a partner: WHERE EXISTS (SELECT …), then DISTINCT"),
    "OFFSET": ("OFFSET", "number the rows: QUALIFY row_number() OVER (ORDER BY …) BETWEEN 11 AND 20"),
    "FETCH": ("FETCH", "write LIMIT n"),
    "EMIT": ("EMIT", "EMIT belongs to a view, at the end of CREATE VIEW"),
    "SORT": ("SORT BY", "a view has no order; ORDER BY … LIMIT n keeps the first rows"),
    "CLUSTER": ("CLUSTER BY", "a view has no order; ORDER BY … LIMIT n keeps the first rows"),
    "DISTRIBUTE": ("DISTRIBUTE BY", "rows go where their keys say; leave it out"),
    **REFUSED_TABLES,
}
_SOFT = frozenset({"OFFSET", "FETCH", "EMIT", "PIVOT", "UNPIVOT"})  # names too, where something is to follow
_OPEN = frozenset(
    {
        "SELECT",
        "DISTINCT",
        "WHERE",
        "HAVING",
        "BY",
        "AND",
        "OR",
        "NOT",
        ",",
        "(",
        "=",
        "<",
        ">",
        "<=",
        ">=",
        "+",
        "-",
        "/",
    }
)
_GROUPINGS = {"GROUPING": "GROUPING SETS", "ROLLUP": "ROLLUP", "CUBE": "CUBE", "ALL": "GROUP BY ALL"}
_GROUP_HINT = "name the columns; for totals of several kinds write several queries with UNION ALL"
_ORDER_HINT = "a view has no order: leave out ORDER BY, or keep the first rows with ORDER BY … LIMIT n"
_LIMIT_HINT = "which rows? ORDER BY … LIMIT n keeps the first ones in an order"


def parse_query(text: Text, piece: Piece | None = None) -> Query:
    """Read one query, or the one that a piece of the text is; whatever follows it is refused."""
    found = read_words(text)
    if piece is not None:
        found = [word for word in found if piece.at <= word.start < piece.at + len(piece.sql)]
    reader = QueryReader(text, found)
    query = reader.query()
    if not reader.done:
        raise reader.fail("the end of the query", "one query at a time, without ;")
    return query


class QueryReader(TableReader):
    """The clauses of a query."""

    def query(self) -> Query:
        """``[WITH …] SELECT … [UNION …] [ORDER BY … LIMIT n]``."""
        at, ctes = self.at, self._ctes()
        parts, alls = [self._part()], []
        while self.skip("UNION"):
            alls.append(self.skip("ALL"))
            self.skip("DISTINCT")
            parts.append(self._part())
        order: tuple[Piece, ...] = ()
        ordered = self.at
        if self.skip("ORDER", "BY"):
            order = self.pieces(self._ends)
        limit = self._limit(order, ordered)
        if self.word() in _REFUSED:
            raise self._refuse_word()
        return Query(tuple(parts), tuple(alls), at, ctes, order, limit)

    def _limit(self, order: tuple[Piece, ...], ordered: int) -> int | None:
        at = self.at
        if not self.skip("LIMIT"):
            if order and self.word() != "OFFSET":
                raise self.text.error(ordered, "ORDER BY without LIMIT", _ORDER_HINT)
            return None
        if not order:
            raise self.text.error(at, "LIMIT without ORDER BY", _LIMIT_HINT)
        count = None if self.done else self.words[self.index].value
        if count is None or not count.isdigit() or int(count) < 1:
            raise self.fail("how many rows: a whole number above zero", "ORDER BY … LIMIT 10")
        self.index += 1
        return int(count)

    def _ctes(self) -> tuple[tuple[str, tuple[str, ...], Query], ...]:
        if not self.skip("WITH"):
            return ()
        if self.word() == "RECURSIVE":
            raise self.fail("a name", "a query over itself is not computed; a table that a sink feeds can be")
        made = []
        while True:
            name = self.name("a name for the query")
            columns = self.names() if self.word() == "(" else ()
            self.expect("AS", "(")
            made.append((name, columns, self.query()))
            self.expect(")")
            if not self.skip(","):
                return tuple(made)

    def _part(self) -> Select | Query:
        if self.skip("("):
            query = self.query()
            self.expect(")")
            return query
        return self._select()

    def _select(self) -> Select:
        at = self.at
        if self.word() in ("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "VALUES"):
            hint = "a pipeline says what is in a view, and never how rows are written: CREATE VIEW name AS SELECT …"
            if self.word() == "VALUES":
                hint = "rows of your own are records of a topic: append them, and CREATE TABLE over it"
            raise self.fail("SELECT", hint)
        self.expect("SELECT")
        distinct = self.skip("DISTINCT")
        if distinct and self.word() == "ON":
            raise self.fail("columns", "keep one row a key: QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1")
        if not distinct:
            self.skip("ALL")
        items = tuple(self._item(piece) for piece in self.pieces(self._ends))
        self.expect("FROM", hint="a query needs something to read: SELECT … FROM name")
        table = self.table()
        joins = self._joins()
        where = self._clause("WHERE")
        group = self._group()
        having = self._clause("HAVING")
        windows: dict[str, Piece] = {}
        qualify = None
        while True:
            if self.word() == "QUALIFY":
                qualify = self._clause("QUALIFY")
            elif self._at_window_clause():
                windows |= self._windows()
            else:
                break
        return Select(items, table, joins, at, distinct, where, group, having, qualify, windows)

    def _item(self, piece: Piece) -> Item:
        found = piece.sql.strip()
        if found == "*":
            return Item(piece, star="")
        if found.endswith("*") and found[:-1].rstrip().endswith("."):
            return Item(piece, star=found[:-1].rstrip()[:-1].strip().strip("`"))
        try:
            sql, name = expression.parse_item(piece.sql)
        except PlanError as error:
            hint = error.hint or (
                "EXCEPT, EXCLUDE and REPLACE are not taken: name the columns" if found.startswith("*") else ""
            )
            raise self.text.error(piece.at, error.message, hint) from error.__cause__
        return Item(Piece(sql, piece.at), name)

    def _joins(self) -> tuple[Joined | Exploded, ...]:
        made: list[Joined | Exploded] = []
        while True:
            at = self.at
            if self.skip(","):
                made.append(Joined(self.table(), "inner", None, (), at, loose=True))
            elif self.skip("LATERAL", "VIEW"):
                made.append(self._exploded(at))
            elif (how := self._how()) is not None:
                made.append(self._joined(how, at))
            else:
                return tuple(made)

    def _how(self) -> tuple[How, bool, bool] | None:
        """How a join keeps rows, whether it is natural, and whether it is a CROSS JOIN."""
        start = self.index
        natural = self.skip("NATURAL")
        first = self.word()
        how = HOWS.get(first, "inner")
        if first in HOWS:
            self.index += 1
            self.skip("OUTER")
            if first == "LEFT" and self.word() in ("SEMI", "ANTI"):
                how = HOWS[self.word()]
                self.index += 1
        if not self.skip("JOIN"):
            self.index = start
            return None
        return how, natural, first == "CROSS"

    def _joined(self, kind: tuple[How, bool, bool], at: int) -> Joined:
        how, natural, cross = kind
        table = self.table()
        on: Piece | None = None
        using: tuple[str, ...] = ()
        if self.skip("ON"):
            on = self.piece(lambda: self._ends() or self.word() == ",")
        elif self.skip("USING"):
            using = self.names()
        elif not natural and not cross and how != "inner":
            raise self.fail("ON or USING", "which rows belong together: ON a.id = b.id")
        return Joined(table, how, on, using, at, natural, loose=on is None and not using and not natural)

    def _exploded(self, at: int) -> Exploded:
        if self.word() not in ("EXPLODE",):
            hint = "LATERAL VIEW explode(array) t AS element; OUTER and other functions that make rows are not taken"
            raise self.fail("explode(…)", hint)
        self.index += 1
        array = self.brackets()
        alias = "" if self.word() == "AS" else self.name("a name for the elements")
        name = self.name("the element's name") if self.skip("AS") else alias
        return Exploded(array, alias, name, at)

    def _clause(self, word: str) -> Piece | None:
        return self.piece(self._ends) if self.skip(word) else None

    def _group(self) -> tuple[Piece, ...] | None:
        if not self.skip("GROUP", "BY"):
            return None
        if self.word() in _GROUPINGS and self.word(1) not in (".", ","):
            raise self.text.error(self.at, f"{_GROUPINGS[self.word()]} is not taken", _GROUP_HINT)
        pieces = self.pieces(lambda: self._ends() or self.word() == "WITH")
        if self.word() == "WITH":
            raise self.text.error(self.at, f"GROUP BY … WITH {self.word(1)} is not taken", _GROUP_HINT)
        for piece in pieces:
            if piece.sql.split("(")[0].strip().upper() in ("GROUPING SETS", "ROLLUP", "CUBE"):
                raise self.text.error(piece.at, "GROUPING SETS, ROLLUP and CUBE are not taken", _GROUP_HINT)
        return pieces

    def _at_window_clause(self) -> bool:
        return self.word() == "WINDOW" and self.word(2) == "AS"

    def _windows(self) -> dict[str, Piece]:
        self.expect("WINDOW")
        made = {}
        while True:
            name = self.name("a window's name")
            self.expect("AS")
            made[name.lower()] = self.brackets()
            if not self.skip(","):
                return made

    def _ends(self) -> bool:
        """Whether the next word begins another clause; names behind a dot and functions do not."""
        before = self.words[self.index - 1].text if self.index else ""
        if before in (".", "AS") or (self.word() in _SOFT and before in _OPEN):
            return False
        if self.word() == "FROM" and before == "DISTINCT":
            return False  # IS DISTINCT FROM
        begins = any(all(self.word(n) == word for n, word in enumerate(words)) for words in _CLAUSES)
        return (begins and self.word(1) not in (".", ",")) or self._at_window_clause()

    def _refuse_word(self) -> PlanError:
        name, hint = _REFUSED[self.word()]
        if self.index and self.words[self.index - 1].text == "*":
            name, hint = f"* {name}", "name the columns"
        return self.text.error(self.at, f"{name} is not taken", hint)

    def piece(self, ends: Callable[[], bool]) -> Piece:
        """The text up to the next clause."""
        at = self.index
        piece = super().piece(ends)
        if self.word() in _REFUSED and self.word() != "OFFSET":
            raise self._refuse_word()
        if self.index == at:
            raise self.fail("an expression")
        return piece

    def pieces(self, ends: Callable[[], bool]) -> tuple[Piece, ...]:
        """The texts between commas, up to the next clause."""
        found = split(self.piece(ends), (",",))
        for each in found:
            if not each.sql:
                raise self.text.error(each.at, "expected an expression beside the comma; found nothing")
        return tuple(found)
