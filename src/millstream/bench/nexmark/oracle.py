"""What the answers are, by DuckDB as one batch over the same files: an opinion that shares no code with the pipelines.

DuckDB has no row patterns, so those are searched by loops in Python. Answers are bags of rows. Where ties may be broken in any way, the columns that do not depend on it must be equal, and every
row must be one of those that could stand there; no row of the input is used more often than it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import pyarrow as pa

from millstream.bench.nexmark.pattern_oracle import matches

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class Question:
    """How a query is answered, in the order of the answer's columns: by DuckDB's SQL, or by a function of the folder.

    With ``ties``, only the columns ``told`` are compared with ``answer``, and all but ``counted`` must be among ``ties``.
    ``answered`` is what is compared of a given answer, where that is not all of it.
    """

    answer: str | Callable[[Path], pl.DataFrame]
    ties: str = ""
    told: tuple[int, ...] = ()
    counted: tuple[int, ...] = ()
    answered: str = "SELECT * FROM given"


_EVENTS = {
    "event_type": "INTEGER",
    "person": "STRUCT(id BIGINT, name VARCHAR, emailAddress VARCHAR, creditCard VARCHAR, city VARCHAR, state VARCHAR,"
    " extra VARCHAR)",
    "auction": "STRUCT(id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT, reserve BIGINT,"
    " expires TIMESTAMP, seller BIGINT, category BIGINT, extra VARCHAR)",
    "bid": "STRUCT(auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, extra VARCHAR)",
    "dateTime": "TIMESTAMP",
}
_BID = "auction, bidder, price, dateTime, extra"
_LONG_BID = "auction, bidder, price, channel, url, dateTime, extra"
_VALID = """SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bidTime, b.extra AS bidExtra
    FROM auction a JOIN bid b ON b.auction = a.id AND b.dateTime BETWEEN a.dateTime AND a.expires"""
_CLOSED = f"SELECT id, category, seller, expires, max(price) AS final FROM ({_VALID}) GROUP BY ALL"
_WINNING = f"""SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
    auction, bidder, price, bidTime, bidExtra FROM ({_VALID}) QUALIFY {{}}() OVER (PARTITION BY id ORDER BY price DESC, bidTime) = 1"""
_DAY = "strftime(dateTime, '%Y-%m-%d')"
_PRICES = ("true", "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _counts(*calls: str) -> str:
    return ", ".join(f"{call} FILTER (WHERE {prices})" for call in calls for prices in _PRICES)


_THREE = _counts("count(*)", "count(DISTINCT bidder)", "count(DISTINCT auction)")

QUESTIONS = {
    "q0": Question(f"SELECT {_BID} FROM bid"),
    "q1": Question("SELECT auction, bidder, 0.908 * price, dateTime, extra FROM bid"),
    "q2": Question("SELECT auction, price FROM bid WHERE auction % 123 = 0"),
    "q3": Question(
        "SELECT p.name, p.city, p.state, a.id FROM auction a, person p"
        " WHERE a.seller = p.id AND a.category = 10 AND p.state IN ('OR', 'ID', 'CA')"
    ),
    "q4": Question(f"SELECT category, (sum(final) // count(*))::BIGINT FROM ({_CLOSED}) GROUP BY category"),
    "q5": Question(
        """WITH spread AS (SELECT auction, epoch_ms(dateTime) // 2000 * 2000 - hop * 2000 AS start FROM bid, range(5) t(hop)),
        counted AS (SELECT auction, count(*) AS num, start FROM spread GROUP BY auction, start),
        most AS (SELECT start, max(num) AS num FROM counted GROUP BY start)
        SELECT auction, num, make_timestamp(start * 1000), make_timestamp((start + 10000) * 1000)
        FROM counted JOIN most USING (start, num)"""
    ),
    "q6": Question(
        f"""SELECT seller, (sum(final) // count(*))::BIGINT
        FROM (FROM ({_CLOSED}) QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10) GROUP BY seller"""
    ),
    "q7": Question(
        """WITH placed AS (SELECT *, epoch_ms(dateTime) // 10000 AS place FROM bid)
        SELECT auction, price, bidder, dateTime, extra FROM placed
        JOIN (SELECT place, max(price) AS price FROM placed GROUP BY place) USING (place, price)"""
    ),
    "q8": Question(
        """SELECT DISTINCT p.id, p.name, make_timestamp(epoch_ms(p.dateTime) // 10000 * 10000000) FROM person p
        JOIN auction a ON a.seller = p.id AND epoch_ms(a.dateTime) // 10000 = epoch_ms(p.dateTime) // 10000"""
    ),
    "q9": Question(_WINNING.format("row_number"), _WINNING.format("rank"), (*range(11), 12, 13)),
    "q10": Question(f"SELECT {_BID}, {_DAY}, strftime(dateTime, '%H:%M') FROM bid"),
    "q11": Question(
        """WITH begun AS (SELECT bidder, dateTime, coalesce(dateTime - lag(dateTime) OVER w > INTERVAL 10 SECONDS, true) AS new
            FROM bid WINDOW w AS (PARTITION BY bidder ORDER BY dateTime)),
        numbered AS (SELECT *, count(*) FILTER (WHERE new) OVER (PARTITION BY bidder ORDER BY dateTime) AS session FROM begun)
        SELECT bidder, count(*), min(dateTime), max(dateTime) + INTERVAL 10 SECONDS FROM numbered GROUP BY bidder, session"""
    ),
    "q12": Question(
        "SELECT bidder, count(*) FROM bid GROUP BY bidder",
        answered="SELECT c0, sum(c1)::BIGINT AS c1 FROM given GROUP BY c0",
    ),
    "q13": Question("SELECT auction, bidder, price, dateTime, (auction % 10000)::VARCHAR FROM bid"),
    "q14": Question(
        """SELECT auction, bidder, 0.908 * price AS less,
        CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour(dateTime) IN (7, 19) THEN 'otherTime' ELSE 'nightTime' END,
        dateTime, extra, length(extra) - length(replace(extra, 'c', '')) FROM bid WHERE less > 1000000 AND less < 50000000"""
    ),
    "q15": Question(f"SELECT {_DAY} AS day, {_THREE} FROM bid GROUP BY day"),
    "q16": Question(
        f"SELECT channel, {_DAY} AS day, max(strftime(dateTime, '%H:%M')), {_THREE} FROM bid GROUP BY channel, day"
    ),
    "q17": Question(
        f"""SELECT auction, {_DAY} AS day, {_counts("count(*)")}, min(price), max(price), (sum(price) // count(*))::BIGINT,
        sum(price)::BIGINT FROM bid GROUP BY auction, day"""
    ),
    "q18": Question(
        f"SELECT {_LONG_BID} FROM bid QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1",
        f"SELECT {_LONG_BID} FROM bid QUALIFY rank() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1",
        (0, 1, 5),
    ),
    "q19": Question(
        f"""SELECT {_LONG_BID}, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS place FROM bid
        QUALIFY place <= 10""",
        f"SELECT {_LONG_BID} FROM bid QUALIFY rank() OVER (PARTITION BY auction ORDER BY price DESC) <= 10",
        (0, 2, 7),
        (7,),
    ),
    "q20": Question(
        """SELECT b.auction, bidder, price, channel, url, b.dateTime, b.extra, itemName, description, initialBid, reserve,
        a.dateTime, expires, seller, category, a.extra FROM bid b JOIN auction a ON b.auction = a.id WHERE category = 10"""
    ),
    "q21": Question(
        """SELECT auction, bidder, price, channel, CASE WHEN channel ILIKE 'apple' THEN '0' WHEN channel ILIKE 'google' THEN '1'
        WHEN channel ILIKE 'facebook' THEN '2' WHEN channel ILIKE 'baidu' THEN '3'
        ELSE split_part(string_split(url, '&channel_id=')[2], '&', 1) END AS channel_id FROM bid WHERE channel_id <> ''"""
    ),
    "q22": Question(
        """WITH cut AS (SELECT *, string_split(url, '/') AS parts FROM bid)
        SELECT auction, bidder, price, channel, parts[4], parts[5], parts[6] FROM cut"""
    ),
    **{query: Question(partial(matches, query)) for query in ("cep0", "cep1", "cep2", "cep3")},
}  # fmt: skip


class Oracle:
    """The answers over the files of one folder."""

    def __init__(self, folder: Path) -> None:
        import duckdb

        self._folder = folder
        self._db: duckdb.DuckDBPyConnection = duckdb.connect()
        self._db.execute("SET preserve_insertion_order = false")
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in _EVENTS.items())
        self._db.execute(
            f"CREATE TEMP TABLE events AS FROM read_json(?, format = 'newline_delimited', columns = {{{columns}}})",
            [str(folder / "*.jsonl")],
        )
        for number, name in enumerate(("person", "auction", "bid")):
            self._db.execute(
                f"CREATE TABLE {name} AS SELECT unnest({name}), dateTime FROM events WHERE event_type = {number}"
            )
        self.events: int = self._db.execute("SELECT count(*) FROM events").fetchall()[0][0]
        self._db.execute("DROP TABLE events")
        self._known: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def answer(self, query: str) -> list[list[Any]]:
        """One right answer."""
        return plain_rows(self._db.sql(f"FROM {self._answered(query)}").to_arrow_table())

    def compare(self, query: str, given: pa.Table | list[list[Any]]) -> str:
        """Say what is wrong with an answer; nothing is."""
        question, expected = QUESTIONS[query], self._answered(query)
        types = [row[1] for row in self._db.execute(f"DESCRIBE {expected}").fetchall()]
        table = given if isinstance(given, pa.Table) else _table(given, len(types))
        if table.num_columns != len(types):
            return f"{query}: found {table.num_columns} columns, expected {len(types)}"
        naive = pl.DataFrame(table.rename_columns([f"c{at}" for at in range(len(types))]))
        naive = naive.with_columns(
            pl.col(pl.Datetime("us", "UTC"), pl.Datetime("ms", "UTC")).dt.replace_time_zone(None)
        )
        self._db.register("raw", naive.to_arrow())
        try:
            casts = ", ".join(f"CAST(c{at} AS {kind}) AS c{at}" for at, kind in enumerate(types))
            self._db.execute(f"CREATE OR REPLACE TEMP TABLE given AS SELECT {casts} FROM raw")
        except self._errors() as error:
            return f"{query}: a value of another type: {str(error).splitlines()[0]}"
        finally:
            self._db.unregister("raw")
        told = ", ".join(f"c{at}" for at in question.told or range(len(types)))
        wrong = self._difference(f"SELECT {told} FROM {expected}", f"SELECT {told} FROM ({question.answered})")
        if not wrong and question.ties:
            some = ", ".join(f"c{at}" for at in range(len(types)) if at not in question.counted)
            strange = self._without(f"SELECT {some} FROM given", question.ties)
            wrong = f"{strange[0]} rows that cannot be there, such as {strange[1]}" if strange else ""
        return f"{query}: {wrong}" if wrong else ""

    def _answered(self, query: str) -> str:
        """The table of a query's answer, its columns numbered."""
        if query not in self._known:
            answer = QUESTIONS[query].answer
            if isinstance(answer, str):
                made = self._db.execute(f"DESCRIBE {answer}").fetchall()
                columns = ", ".join(f"c{at}" for at in range(len(made)))
                self._db.execute(f"CREATE TEMP TABLE answer_{query} AS SELECT * FROM ({answer}) t({columns})")
            else:
                self._db.register("found", answer(self._folder).to_arrow())
                self._db.execute(f"CREATE TEMP TABLE answer_{query} AS FROM found")
                self._db.unregister("found")
            self._known.add(query)
        return f"answer_{query}"

    def _difference(self, expected: str, found: str) -> str:
        if self._sum(expected) == self._sum(found):
            return ""
        missing, more = self._without(expected, found), self._without(found, expected)
        parts = [f"{missing[0]} rows are missing, such as {missing[1]}"] if missing else []
        parts += [f"{more[0]} are too many, such as {more[1]}"] if more else []
        return "; ".join(parts)

    def _sum(self, some: str) -> list[Any]:
        """Two numbers that equal bags have in common, and no others that one will meet."""
        return self._db.execute(f"SELECT count(*), sum(hash(t)) FROM ({some}) t").fetchall()

    def _without(self, some: str, others: str) -> tuple[int, list[Any]] | None:
        """How many rows of one bag are not in another, and one of them."""
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE beyond AS ({some}) EXCEPT ALL ({others})")
        row = self._db.sql("FROM beyond LIMIT 1").to_arrow_table()
        if not row.num_rows:
            return None
        return self._db.execute("SELECT count(*) FROM beyond").fetchall()[0][0], plain_rows(row)[0]

    def _errors(self) -> type[Exception]:
        import duckdb

        found: type[Exception] = duckdb.Error
        return found


def plain_rows(table: pa.Table) -> list[list[Any]]:
    """Rows as JSON has them: times as text in UTC with milliseconds, decimals as numbers."""
    frame = pl.DataFrame(table.rename_columns([f"c{at}" for at in range(table.num_columns)]))
    frame = frame.with_columns(
        pl.selectors.temporal().dt.to_string("%Y-%m-%d %H:%M:%S%.3f"), pl.selectors.decimal().cast(pl.Float64)
    )
    return [list(row) for row in frame.iter_rows()]


def _table(rows: list[list[Any]], columns: int) -> pa.Table:
    names = [f"c{at}" for at in range(columns)]
    if wrong := [row for row in rows if len(row) != columns]:
        return pa.table({str(at): [] for at in range(len(wrong[0]))})
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None).to_arrow()
