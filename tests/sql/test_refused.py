"""What a query cannot say is refused where it says it, with what to write instead."""

from __future__ import annotations

import pytest

from millstream.errors import PlanError
from millstream.sql.query import Origin
from tests.sql.shop import query

REFUSED = [
    # what is no query
    ("", 1, "expected a SELECT; found nothing", ""),
    ("SELECT", 7, "expected an expression; found the end", ""),
    ("SELECT 1 AS one", 16, "expected FROM; found the end", "SELECT … FROM name"),
    ("SELECT price, FROM bid", 8, "beside the comma", ""),
    ("SELECT price + FROM bid", 8, "`price +`: this is not Spark SQL", ""),
    ("SELECT price FROM bid WHERE price >", 29, "`price >`: this is not Spark SQL", ""),
    ("SELECT 'a FROM bid", 1, "is a quote or comment left open?", ""),
    ("SELECT price FROM bid SELECT", 23, "expected the end of the query; found `SELECT`", ""),
    ("SELECT price FROM bid; SELECT 1", 22, "expected the end of the query; found `;`", "without ;"),
    ("INSERT INTO x SELECT * FROM bid", 1, "expected SELECT; found `INSERT`", "CREATE VIEW name AS"),
    # names
    (
        "SELECT price FROM bids",
        19,
        "nothing is called bids; there is bid, mixed, others, sale, users",
        "did you mean bid?",
    ),
    ("SELECT price FROM shop.bid", 23, "expected one name; found `.`", ""),
    ("SELECT pirce FROM bid", 8, "no column pirce; there are auction, bidder, price", "did you mean price?"),
    ("SELECT 1 + b.pirce AS x FROM bid b", 12, "no column b.pirce", "did you mean price?"),
    ("SELECT bid.price FROM bid b", 8, "no column bid.price", ""),
    ("SELECT at FROM bid b, sale s WHERE id = auction", 8, "at is a column of several", "b.at or s.at"),
    ("SELECT x.* FROM bid b", 8, "nothing is called x; there is b", ""),
    ("SELECT price, price FROM bid", 1, "price is there twice", "rename one with AS"),
    ("SELECT price * 2 FROM bid", 8, "`price * 2` has no name", "price * 2 AS name"),
    ("SELECT price AS _p FROM bid", 1, "names beginning with _", ""),
    ("SELECT * EXCEPT (price) FROM bid", 10, "* EXCEPT is not taken", "name the columns"),
    ("SELECT a.price FROM bid a JOIN bid a ON a.auction = a.auction", 27, "two things are called a", ""),
    ("SELECT name FROM (SELECT id FROM users) AS t(a, b)", 18, "t: 2 names for 1 columns", ""),
    ("WITH a(x, y) AS (SELECT id FROM users) SELECT x FROM a", 18, "1 columns where 2 are expected: x, y", ""),
    # rows in order
    ("SELECT price FROM bid ORDER BY price", 23, "ORDER BY without LIMIT", "ORDER BY … LIMIT n"),
    ("SELECT price FROM bid LIMIT 3", 23, "LIMIT without ORDER BY", "ORDER BY … LIMIT n"),
    ("SELECT price FROM bid ORDER BY price LIMIT 3 OFFSET 2", 46, "OFFSET is not taken", "row_number()"),
    ("SELECT price FROM bid ORDER BY price LIMIT 0", 44, "expected how many rows", "LIMIT 10"),
    ("SELECT price FROM bid ORDER BY price NULLS LAST LIMIT 2", 32, "NULLS LAST is not taken", "nulls come first"),
    ("SELECT price FROM bid ORDER BY 4 LIMIT 3", 32, "ORDER BY 4: there are 1 columns", ""),
    ("SELECT DISTINCT price FROM bid ORDER BY bidder LIMIT 3", 41, "only the columns of SELECT", ""),
    ("SELECT price FROM bid FETCH FIRST 3 ROWS ONLY", 23, "FETCH is not taken", "LIMIT n"),
    ("SELECT price FROM bid SORT BY price", 23, "SORT BY is not taken", ""),
    ("SELECT DISTINCT ON (price) price FROM bid", 17, "expected columns; found `ON`", "QUALIFY"),
    # words of other systems
    (
        "SELECT * EXCLUDE (price) FROM bid",
        8,
        "expected one column",
        "EXCLUDE and REPLACE are not taken: name the columns",
    ),
    ("SELECT price FROM (VALUES (1)) AS v(price)", 20, "expected SELECT; found `VALUES`", "records of a topic"),
    ("SELECT bidder, any_value(price) AS p FROM bid GROUP BY bidder", 16, "`any_value(price)`", "max(…) and min(…)"),
    (
        "SELECT bidder, bool_or(price > 1) AS p FROM bid GROUP BY bidder",
        16,
        "`bool_or(price > 1)`",
        "max(…) of conditions",
    ),
    ("SELECT bidder, every(price > 1) AS p FROM bid GROUP BY bidder", 16, "`every(price > 1)`", "min(…) of conditions"),
    (
        "SELECT bidder, count_if(price > 1) AS p FROM bid GROUP BY bidder",
        16,
        "`count_if(price > 1)`",
        "FILTER (WHERE …)",
    ),
    ("SELECT bidder, stddev(price) AS p FROM bid GROUP BY bidder", 16, "`stddev(price)`", "sum(x * x)"),
    (
        "SELECT bidder, string_agg(price, ',') AS p FROM bid GROUP BY bidder",
        16,
        "`string_agg(price, ',')`",
        "array_join",
    ),
    ("SELECT first_value(price) OVER (ORDER BY at) AS p FROM bid", 8, "`first_value(price)`", "min_by(value, order)"),
    ("SELECT name FROM users WHERE id > (SELECT max(id) FROM users)", 36, "a query inside an expression", "`1 AS one`"),
    (
        "SELECT name FROM users WHERE id > 1 OR id IN (SELECT price FROM bid)",
        47,
        "a query inside an expression",
        "joined by AND",
    ),
    (
        "SELECT name FROM users WHERE (id, name) IN (SELECT id, name FROM users)",
        45,
        "expected one column; found 2",
        "EXISTS (",
    ),
    ("SELECT u.name FROM users u CROSS JOIN users v", 28, "without an equality", "`1 AS one`"),
    ("SELECT u.name FROM users u JOIN users v ON u.id <=> v.id", 28, "without an equality", "not <=>"),
    # sets
    ("SELECT price FROM bid EXCEPT SELECT id FROM users", 23, "EXCEPT is not taken", "NOT EXISTS"),
    ("SELECT price FROM bid INTERSECT SELECT id FROM users", 23, "INTERSECT is not taken", "EXISTS"),
    ("SELECT price FROM bid UNION ALL SELECT id, name FROM users", 33, "2 columns where 1 are expected", ""),
    # queries in conditions
    ("SELECT price FROM bid WHERE bidder NOT IN (SELECT id FROM users)", 29, "NOT IN (SELECT …)", "write NOT EXISTS"),
    ("SELECT price FROM bid WHERE NOT bidder IN (SELECT id FROM users)", 29, "NOT IN (SELECT …)", "write NOT EXISTS"),
    ("SELECT price FROM bid WHERE bidder = (SELECT max(id) FROM users)", 39, "a query inside an expression", "join"),
    ("SELECT (SELECT max(id) FROM users) AS m FROM bid", 9, "a query inside an expression", "join"),
    (
        "SELECT price FROM bid WHERE bidder IN (SELECT id FROM users) OR price > 3",
        40,
        "a query inside",
        "joined by AND",
    ),
    ("SELECT price FROM bid WHERE bidder IN (SELECT id, name FROM users)", 40, "expected one column; found 2", ""),
    ("SELECT price FROM bid WHERE EXISTS (SELECT 1 FROM users)", 29, "EXISTS without an equality", "t.id = s.id"),
    (
        "SELECT price FROM bid WHERE EXISTS (SELECT 1 FROM users WHERE id < bidder)",
        63,
        "`id < bidder` compares",
        "only equalities",
    ),
    ("SELECT price FROM bid WHERE EXISTS (SELECT 1 FROM users WHERE id = bider)", 68, "no column bider", ""),
    (
        "SELECT price FROM bid WHERE EXISTS (SELECT count(*) FROM users WHERE id = bidder GROUP BY id)",
        29,
        "EXISTS with more than FROM and WHERE",
        "CTE",
    ),
    # joins
    (
        "SELECT price FROM bid b JOIN users u ON b.bidder > u.id",
        25,
        "a join with u without an equality",
        "ON a.id = b.id",
    ),
    ("SELECT price FROM bid CROSS JOIN users", 23, "a join with users without an equality", "ON a.id = b.id"),
    ("SELECT price FROM bid, users", 22, "a join with users without an equality", "ON a.id = b.id"),
    ("SELECT price FROM bid LEFT JOIN users", 38, "expected ON or USING; found the end", "ON a.id = b.id"),
    ("SELECT price FROM bid JOIN users USING (idd)", 23, "USING (idd): expected a column that both sides have", ""),
    (
        "SELECT b.at FROM bid b JOIN sale s ON b.auction = s.id AND at > 1",
        60,
        "both sides of the join have a column at",
        "s.at",
    ),
    (
        "SELECT name FROM users u LEFT JOIN bid b ON b.bidder = u.id AND u.name = 'x'",
        65,
        "a condition of a left outer join that is no equality: `u.name = 'x'`",
        "inner join",
    ),
    ("SELECT u.id FROM users u FULL JOIN others o USING (id)", 8, "no column u.id", ""),
    ("SELECT o.id FROM users u LEFT JOIN others o USING (id)", 8, "no column o.id", ""),
    (
        "SELECT 1 AS x FROM bid b JOIN users u FOR SYSTEM_TIME AS OF b.price ON b.bidder = u.id",
        26,
        "expected at, which is",
        "",
    ),
    (
        "SELECT 1 AS x FROM bid b JOIN users u FOR VERSION AS OF 3 ON b.bidder = u.id",
        43,
        "expected SYSTEM_TIME",
        "s.at",
    ),
    (
        "SELECT price FROM bid FOR SYSTEM_TIME ALL",
        19,
        "history: expected a table itself; found stream",
        "say history() first",
    ),
    (
        "SELECT 1 AS x FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) FOR SYSTEM_TIME ALL",
        20,
        "FOR SYSTEM_TIME ALL of windows",
        "a table",
    ),
    (
        "SELECT name FROM users FOR SYSTEM_TIME AS OF at",
        46,
        "without a stream to join with",
        "JOIN table FOR SYSTEM_TIME",
    ),
    (
        "SELECT 1 AS x FROM bid b JOIN sale s ON auction = id AND at BETWEEN s.at AND s.at",
        58,
        "both sides of the join",
        "s.at",
    ),
    # groups
    ("SELECT auction, price FROM bid GROUP BY auction", 17, "price is neither in GROUP BY", "max(price)"),
    ("SELECT auction % 2 + price AS x FROM bid GROUP BY auction % 2", 8, "auction is neither in GROUP BY", ""),
    # what begins like a key is not always a part of its own
    ("SELECT NOT (url = 'a') = true AS x FROM bid GROUP BY NOT (url = 'a')", 8, "url is neither in GROUP BY", ""),
    ("SELECT 1 -(price) AS x FROM bid GROUP BY -(price)", 8, "price is neither in GROUP BY", ""),
    ("SELECT price, count(*) AS n FROM bid", 8, "price is neither in GROUP BY", "max(price)"),
    ("SELECT auction FROM bid GROUP BY ROLLUP (auction)", 34, "ROLLUP is not taken", "UNION ALL"),
    ("SELECT auction FROM bid GROUP BY auction, CUBE (price)", 43, "CUBE are not taken", "UNION ALL"),
    ("SELECT auction FROM bid GROUP BY GROUPING SETS ((auction), ())", 34, "GROUPING SETS is not taken", "UNION ALL"),
    ("SELECT auction FROM bid GROUP BY auction WITH CUBE", 42, "WITH CUBE is not taken", "UNION ALL"),
    ("SELECT auction FROM bid GROUP BY ALL", 34, "GROUP BY ALL is not taken", "name the columns"),
    ("SELECT auction FROM bid GROUP BY 3", 34, "GROUP BY 3: there are 1 columns", ""),
    ("SELECT auction, stddev(price) AS s FROM bid GROUP BY 1", 17, "found 'stddev'", ""),
    ("SELECT max(sum(price)) AS m FROM bid", 8, "an aggregate inside an aggregate: sum(price)", "brackets"),
    ("SELECT price FROM bid WHERE 1 < max(price)", 33, "WHERE with an aggregate: max(price)", "HAVING"),
    ("SELECT rand() AS r FROM bid", 8, "found rand, which is not the same each time", ""),
    # windows
    (
        "SELECT price FROM session(TABLE bid PARTITION BY bidder, at, INTERVAL 1 MINUTE)",
        19,
        "expected window_start and window_end",
        "GROUP BY …",
    ),
    (
        "SELECT count(*) AS n FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY price",
        27,
        "window_start",
        "GROUP BY …",
    ),
    ("SELECT 1 AS x FROM tumble(TABLE bid, price, INTERVAL 1 MINUTE) GROUP BY window_start", 73, "expected at", ""),
    (
        "SELECT 1 AS x FROM tumble(TABLE bid, at, 10) GROUP BY window_start",
        42,
        "expected a span of time",
        "INTERVAL 10 SECONDS",
    ),
    (
        "SELECT 1 AS x FROM tumble(TABLE bid, at, INTERVAL 1 MONTH) GROUP BY window_start",
        42,
        "expected a span of time",
        "",
    ),
    (
        "SELECT 1 AS x FROM hop(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY window_start",
        20,
        "2 intervals",
        "how often first",
    ),
    (
        "SELECT 1 AS x FROM cumulate(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY window_start",
        20,
        "cumulate(…)",
        "tumble(",
    ),
    (
        "SELECT bidder FROM session(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY bidder, window_start",
        20,
        "PARTITION BY nothing; expected what GROUP BY has besides the window: bidder",
        "PARTITION BY bidder",
    ),
    ("SELECT price FROM slide(TABLE bid, at, INTERVAL 1 MINUTE)", 19, "slide(…) gives windows", "GROUP BY …"),
    ("SELECT price FROM tumble(TABLE bid PARTITION BY bidder, at, INTERVAL 1 MINUTE)", 19, "in GROUP BY", "GROUP BY …"),
    ("SELECT price FROM tumble(TABLE bid, price, INTERVAL 1 MINUTE)", 19, "expected at", "tumbling"),
    (
        "SELECT count(*) AS n FROM tumble((SELECT * FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE)), at, INTERVAL 1 HOUR)"
        " GROUP BY window_start",
        122,
        "rows that are of windows already",
        "window_start",
    ),
    ("SELECT count(*) AS n FROM bid GROUP BY window(at)", 40, "expected a time, a length", "window(at, '10 seconds'"),
    ("SELECT window FROM bid GROUP BY window(at, '1 minute')", 8, "no column window", ""),
    (
        "SELECT count(*) AS n FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) a JOIN tumble(TABLE sale, at, INTERVAL 1 MINUTE) b ON auction = id",
        70,
        "two tables with windows",
        "query in brackets",
    ),
    # window functions
    (
        "SELECT sum(price) OVER (ORDER BY at ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) AS s FROM bid",
        8,
        "with this row in it",
        "",
    ),
    ("SELECT sum(price) OVER (ORDER BY at GROUPS 2 PRECEDING) AS s FROM bid", 8, "GROUPS is not taken", ""),
    ("SELECT ntile(3) OVER (ORDER BY at) AS s FROM bid", 8, "ntile(…) OVER is not taken", "row_number, rank"),
    ("SELECT lag(price, 1, 0) OVER (ORDER BY at) AS s FROM bid", 8, "expected lag(expression)", "coalesce"),
    ("SELECT price FROM bid WHERE row_number() OVER (ORDER BY at) = 1", 29, "WHERE with a window function", "QUALIFY"),
    ("SELECT rank() OVER (ORDER BY at NULLS LAST) AS r FROM bid", 8, "NULLS LAST is not taken", ""),
    (
        "SELECT sum(rank() OVER (ORDER BY at)) OVER (ORDER BY at) AS s FROM bid",
        8,
        "a window function inside another",
        "brackets",
    ),
    # what makes or drops rows otherwise
    (
        "SELECT * FROM bid MATCH_RECOGNIZE (PARTITION BY x)",
        50,
        "expected PATTERN; found `)`",
        "MATCH_RECOGNIZE (PARTITION BY",
    ),
    ("SELECT * FROM bid PIVOT (sum(price) FOR x IN (1))", 19, "PIVOT is not taken", "FILTER"),
    ("SELECT * FROM bid TABLESAMPLE (10 PERCENT)", 19, "TABLESAMPLE is not taken", ""),
    ("SELECT * FROM bid EMIT FINAL", 19, "EMIT is not taken", "CREATE VIEW"),
    ("SELECT * FROM VALUES (1)", 15, "expected a name, a query in brackets or a window", ""),
    ("SELECT posexplode(tags) AS t FROM mixed", 8, "posexplode makes rows", "explode(array) AS element"),
    ("SELECT explode(tags) FROM mixed", 8, "`explode(tags)` has no name", "AS element"),
    ("SELECT kind FROM mixed LATERAL VIEW OUTER explode(tags) t AS x", 37, "expected explode(…)", "OUTER"),
    ("WITH RECURSIVE x AS (SELECT id FROM users) SELECT * FROM x", 6, "expected a name; found `RECURSIVE`", ""),
]


@pytest.mark.parametrize(("sql", "column", "message", "hint"), REFUSED, ids=[sql for sql, *_ in REFUSED])
def test_a_query_is_refused_where_it_says_what_cannot_be(sql: str, column: int, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        query(sql, Origin("shop.sql", 7, 1))
    assert caught.value.message.startswith(f"shop.sql:7:{column}: ")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_lines_count_from_where_the_query_begins() -> None:
    with pytest.raises(PlanError) as caught:
        query("SELECT auction,\n  pirce\nFROM bid", Origin("shop.sql", 12, 8))
    assert caught.value.message.startswith("shop.sql:13:3: no column pirce")
    with pytest.raises(PlanError) as caught:
        query("SELECT pirce FROM bid", Origin("shop.sql", 12, 8))
    assert caught.value.message.startswith("shop.sql:12:15: no column pirce")


def test_without_a_file_line_and_column_are_named() -> None:
    with pytest.raises(PlanError, match=r"^line 2, column 1: no column pirce"):
        query("SELECT auction,\npirce FROM bid")
