"""Random queries that Millstream and DuckDB read alike, over a stream ``e`` and a table ``t``, with nulls and repeats.

Where an answer depends on an order, the order tells all rows apart that differ in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

COUNT = "count(*) AS c0"


@dataclass(frozen=True)
class Origin:
    """What stands in FROM, the columns of it that are whole numbers, and an order that tells its rows apart, if there is one."""

    text: str
    columns: tuple[str, ...]
    unique: str = ""
    needs: tuple[str, ...] = ()
    """What WHERE must say for it."""


class Author:
    """Writes queries; the same seed writes the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def value(self, columns: tuple[str, ...]) -> str:
        """A whole number."""
        column, other = self._one(*columns), self._one(*columns)
        return self._one(
            column,
            column,
            f"{column} + {other}",
            f"coalesce({column}, 7) * 2",
            f"CASE WHEN {column} > {other} THEN 1 ELSE {column} END",
            f"-{column}",
        )

    def condition(self, columns: tuple[str, ...], depth: int = 0) -> str:
        """A condition on a row."""
        column, number = self._one(*columns), self._random.randint(-1, 4)
        plain = (
            f"{column} > {number}",
            f"{column} <= {number}",
            f"{column} = {self._one(*columns)}",
            f"{column} IS NULL",
            f"NOT {column} = {number}",
            f"{column} BETWEEN {number} AND 3",
            f"{column} IN (1, {number})",
        )
        if depth > 1 or self._random.random() < 0.6:
            return self._one(*plain)
        one, other = self.condition(columns, depth + 1), self.condition(columns, depth + 1)
        return self._one(f"({one} OR {other})", f"{one} AND {other}")

    def origin(self) -> Origin:
        """Something to read from."""
        left = self._one("INNER", "LEFT")
        side = self._one("", f" AND {self.condition(('y.a', 'y.id'))}")
        loose = self._one("", f" AND {self.condition(('x.v', 'y.a'))}")
        return self._random.choice(
            [
                Origin("e", ("n", "k", "v"), "n"),
                Origin("t AS e", ("e.id", "a"), "e.id"),
                Origin(f"(SELECT n, v + 1 AS w FROM e WHERE {self.condition(('k', 'v'))}) q", ("q.n", "w"), "n"),
                Origin(f"e x {left} JOIN t y ON x.k = y.id{side}", ("n", "k", "x.v", "y.id", "y.a"), "x.n"),
                Origin(f"e x JOIN t y ON (x.k = y.id{loose})", ("n", "x.v", "y.a")),
                Origin(
                    f"t x {self._one('LEFT', 'RIGHT', 'FULL')} JOIN t y ON x.a = y.id", ("x.id", "x.a", "y.id", "y.a")
                ),
                Origin(
                    f"t {self._one('', 'LEFT', 'FULL')} JOIN (SELECT k AS id, v FROM e) q USING (id)", ("id", "a", "v")
                ),
                Origin("t x JOIN e y ON x.a = y.k JOIN t z ON z.id = y.v", ("x.id", "y.v", "z.a")),
                Origin(f"t x {self._one('SEMI', 'ANTI')} JOIN e y ON x.id = y.k AND y.v > 1", ("id", "x.a"), "id"),
                Origin(
                    "(SELECT k, count(*) AS c, sum(v) AS s FROM e GROUP BY k) g JOIN t ON g.k = id",
                    ("c", "s", "g.k", "a"),
                    "id",
                ),
                Origin("e x, e y", ("x.n", "y.n", "x.v", "y.v"), needs=("x.k = y.k",)),
                Origin("t x, t z, e y", ("x.a", "z.a", "y.v", "n"), needs=("x.a = y.k", "z.id = y.v")),
            ]
        )

    def where(self, origin: Origin) -> str:
        """WHERE, or nothing; a comma needs its equality there."""
        column = self._one(*origin.columns)
        some = list(origin.needs)
        if self._random.random() < 0.5:
            some.append(self.condition(origin.columns))
        if self._random.random() < 0.3:
            some.append(
                self._one(
                    f"{column} IN (SELECT {self._one('id', 'a')} FROM t WHERE {self.condition(('id', 'a'))})",
                    f"EXISTS (SELECT 1 FROM (SELECT a AS inner_a FROM t) u WHERE u.inner_a = {column})",
                    f"NOT EXISTS (SELECT * FROM (SELECT k AS inner_k FROM e WHERE v > 0) u WHERE {column} = inner_k)",
                )
            )
        self._random.shuffle(some)
        return f" WHERE {' AND '.join(some)}" if some else ""

    def aggregate(self, columns: tuple[str, ...]) -> str:
        """An aggregate, or an expression over some."""
        value = self.value(columns)
        return self._one(
            f"sum({value})",
            f"max({value}) - coalesce(min({value}), 0)",
            f"count({value})",
            f"count(DISTINCT {value})",
            f"sum({value}) FILTER (WHERE {self.condition(columns)})",
            f"count(*) + count({value})",
        )

    def select(self) -> str:
        """One SELECT of two whole numbers, p0 and p1."""
        origin = self.origin()
        source, columns = f"FROM {origin.text}{self.where(origin)}", origin.columns
        value, key = self.value(columns), self.value(columns)
        shape = self._random.randrange(6)
        if shape == 0:
            return f"SELECT {self._one('', 'DISTINCT ')}{value} AS p0, {key} AS p1 {source}"
        if shape == 1:
            by = self._one(key, "1", "p0")
            having = self._one("", f" HAVING {self.aggregate(columns)} > 0", " HAVING p1 > 0 AND count(*) > 1")
            return f"SELECT {key} AS p0, {self.aggregate(columns)} AS p1 {source} GROUP BY {by}{having}"
        rank = f"{self._one('rank', 'dense_rank')}() OVER (PARTITION BY {key} ORDER BY {value}{self._one('', ' DESC')})"
        if shape == 2:
            return f"SELECT {value} AS p0, {key} AS p1 {source} QUALIFY {rank} {self._one('<= 2', '= 1', '< 3', '= 2', '> 1')}"
        if shape == 3:
            other = self._one("CAST(1 AS BIGINT)", "CAST(r AS BIGINT)")
            return f"SELECT p AS p0, {other} AS p1 FROM (SELECT {value} AS p, {rank} AS r {source}) WHERE r <= 2"
        if shape == 4 and origin.unique:
            over = f"PARTITION BY {self._one(*columns)} ORDER BY {origin.unique}"
            call = self._one(
                f"lag({value}) OVER ({over})",
                f"sum({value}) OVER ({over} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
                f"count({value}) OVER ({over}) + row_number() OVER ({over})",
            )
            return f"SELECT {value} AS p0, {call} AS p1 {source}"
        return f"SELECT {value} AS p0, max({key}) OVER (PARTITION BY {value}) AS p1 {source}"

    def full(self) -> str:
        """All columns of a full join, of more or less than the keys of its sides, where either may have a null group."""
        of_t, of_e = "SELECT a, count(*) AS c FROM t GROUP BY a", "SELECT k AS a, sum(v) AS d FROM e GROUP BY k"
        return self._one(
            f"SELECT id, a FROM t FULL JOIN (SELECT id, coalesce(a, {self._one('0', '1')}) AS a FROM t) q USING (id, a)",
            f"SELECT a, c, d FROM ({of_t}) x FULL JOIN ({of_e}) y USING (a)",
            f"SELECT x.a AS p0, y.a AS p1, c, d FROM ({of_t}) x FULL JOIN ({of_e}) y ON x.a = y.a",
            f"SELECT id, y.a AS p1, d FROM t x FULL JOIN ({of_e}) y ON x.{self._one('id', 'a')} = y.a",
            f"SELECT id, c, w FROM (SELECT a AS id, c FROM ({of_t})) x FULL JOIN (SELECT id, a + 1 AS w FROM t) y USING (id)",
        )

    def query(self) -> str:
        """A whole query."""
        if self._random.random() < 0.1:
            return self.full()
        roll = self._random.random()
        if roll < 0.6:
            return self.select()
        if roll < 0.7:
            return f"SELECT {COUNT}, sum(v) AS c1, {self.aggregate(('k', 'v'))} AS c2 FROM e"
        if roll < 0.8:
            return f"WITH w AS ({self.select()}) SELECT x.p0, sum(y.p1) AS s FROM w x JOIN w y ON x.p0 = y.p0 GROUP BY x.p0"
        if roll < 0.9:
            return f"{self.select()} UNION {self._one('', 'ALL ')}{self.select()}"
        return f"SELECT p0, p1 FROM ({self.select()}) ORDER BY p1{self._one('', ' DESC')}, p0 LIMIT 3"
