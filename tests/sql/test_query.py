"""A query and what one would write in Python are the same plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.frame import rows, span
from millstream.relation.nodes import Aggregate, Place, Where
from millstream.relation.relation import Relation
from millstream.sql.query import Origin, compile_query
from millstream.window import hopping, session, sliding, tumbling
from tests.sql.shop import BID, MIXED, OTHERS, SALE, USERS, query

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
MINUTE = tumbling("at", "1 minute")
RANKED = "SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS n FROM bid"

SAME: dict[str, Relation] = {
    # SELECT, WHERE, DISTINCT
    "SELECT * FROM bid": BID,
    "select * from BID b": BID,
    "SELECT auction, price * 2 AS twice FROM bid": BID.select("auction", "price * 2 AS twice"),
    "SELECT b.auction, b.price * b.bidder p FROM bid AS b": BID.select("auction", "price * bidder AS p"),
    "SELECT *, price + 1 AS more FROM bid WHERE price > 3": BID.where("price > 3").select("*", "price + 1 AS more"),
    "SELECT b.*, 1 AS one FROM bid b": BID.select("*", "1 AS one"),
    "SELECT bid.auction, bid.price AS p FROM mixed WHERE kind = 2": MIXED.where("kind = 2").select(
        "bid.auction AS auction", "bid.price AS p"
    ),
    "SELECT mixed.bid.price FROM mixed": MIXED.select("bid.price AS price"),
    "SELECT struct(b.price) AS s, transform(array(b.price), x -> x + b.bidder) AS t FROM bid b": BID.select(
        "struct(price) AS s", "transform(array(price), x -> x + bidder) AS t"
    ),
    "SELECT COUNT(*), max(price) FROM bid": BID.group_by().agg(count="COUNT(*)", max="max(price)"),
    "SELECT DISTINCT auction FROM bid": BID.select("auction").distinct(),
    "SELECT _key AS k FROM bid": BID.select("_key AS k"),
    "SELECT price + 1 AS x, x * 2 AS y FROM bid": BID.select("price + 1 AS x", "(price + 1) * 2 AS y"),
    "SELECT auction FROM bid WHERE (price > 1 AND bidder = 2) AND (url = 'a' OR url = 'b')": BID.where(
        "(price > 1 AND bidder = 2) AND (url = 'a' OR url = 'b')"
    ).select("auction"),
    "SELECT auction FROM bid WHERE url IS NOT DISTINCT FROM 'x' -- why\n AND price > 1": BID.where(
        "url IS NOT DISTINCT FROM 'x' -- why\n AND price > 1"
    ).select("auction"),
    # FROM
    "SELECT x FROM (SELECT price AS x FROM bid) WHERE x > 1": BID.select("price AS x").where("x > 1"),
    "WITH a AS (SELECT price AS x FROM bid), b AS (SELECT x + 1 AS y FROM a) SELECT y FROM b WHERE y > 1": BID.select(
        "price AS x"
    )
    .select("x + 1 AS y")
    .where("y > 1"),
    "WITH a(x, y) AS (SELECT price, bidder FROM bid) SELECT * FROM a": BID.select("price AS x", "bidder AS y"),
    "SELECT t.x FROM (SELECT price FROM bid) AS t(x)": BID.select("price").select("price AS x"),
    "SELECT price FROM bid UNION ALL SELECT category FROM sale": BID.select("price").union(
        SALE.select("category AS price")
    ),
    "SELECT price FROM bid UNION (SELECT id FROM sale)": BID.select("price")
    .union(SALE.select("id AS price"))
    .distinct(),
    "SELECT tag, at FROM mixed LATERAL VIEW explode(tags) t AS tag WHERE t.tag <> ''": MIXED.explode("tags", "tag")
    .where("tag <> ''")
    .select("tag", "at"),
    "SELECT explode(tags) AS tag, kind FROM mixed": MIXED.explode("tags", "tag").select("tag", "kind"),
    # GROUP BY
    "SELECT auction, count(*) AS n FROM bid GROUP BY auction": BID.group_by("auction").agg(n="count(*)"),
    "SELECT count(*) AS n FROM bid GROUP BY auction": BID.group_by("auction").agg(n="count(*)").select("n"),
    "SELECT count(*) AS n, max(b.price) AS m FROM bid b": BID.group_by().agg(n="count(*)", m="max(price)"),
    "SELECT lower(url) AS u, count(*) AS n FROM bid GROUP BY lower( URL )": BID.group_by("lower( URL ) AS u").agg(
        n="count(*)"
    ),
    "SELECT lower(url) AS u, count(*) AS n FROM bid GROUP BY 1": BID.group_by("lower(url) AS u").agg(n="count(*)"),
    "SELECT price % 2 AS half, count(*) AS n FROM bid GROUP BY half": BID.group_by("price % 2 AS half").agg(
        n="count(*)"
    ),
    "SELECT count(*) AS n FROM bid GROUP BY price % 2": BID.group_by("price % 2 AS key_1")
    .agg(n="count(*)")
    .select("n"),
    "SELECT auction + 1 AS a, (price % 2) * 3 AS p, count(*) AS n FROM bid GROUP BY auction, (price % 2)": BID.group_by(
        "auction", "(price % 2) AS key_2"
    )
    .agg(n="count(*)")
    .select("auction + 1 AS a", "key_2 * 3 AS p", "n"),
    "SELECT auction, sum(price) / count(*) AS mean, coalesce(max(price), 0) + 1 AS m, count(*) AS n FROM bid GROUP BY auction": (
        BID.group_by("auction")
        .agg(n="count(*)", agg_1="sum(price)", agg_2="max(price)")
        .select("auction", "agg_1 / n AS mean", "coalesce(agg_2, 0) + 1 AS m", "n")
    ),
    "SELECT auction, SUM( price ) AS s, sum(price) AS t FROM bid GROUP BY auction HAVING sum(price) > 10 AND t < 99": BID.group_by(
        "auction"
    )
    .agg(s="SUM( price )")
    .where("s > 10 AND s < 99")
    .select("auction", "s", "s AS t"),
    "SELECT auction, sum(price) AS price FROM bid GROUP BY auction HAVING price > 10 AND max(price) > 3": BID.group_by(
        "auction"
    )
    .agg(price="sum(price)", agg_1="max(price)")
    .where("price > 10 AND agg_1 > 3")
    .select("auction", "price"),
    "SELECT count(1) AS a, count('1') AS b, sum(price * 2) AS c, sum(price * 2L) AS d FROM bid": BID.group_by().agg(
        a="count(1)", b="count('1')", c="sum(price * 2)", d="sum(price * 2L)"
    ),
    "SELECT count(DISTINCT bidder) FILTER (WHERE b.price > 3) AS n FROM bid b": BID.group_by().agg(
        n="count(DISTINCT bidder) FILTER (WHERE price > 3)"
    ),
    "SELECT bid.auction, count(*) AS n FROM mixed GROUP BY bid.auction": MIXED.group_by("bid.auction AS auction").agg(
        n="count(*)"
    ),
    "SELECT max(price) AS auction FROM bid GROUP BY auction": BID.group_by("auction")
    .agg(agg_1="max(price)")
    .select("agg_1 AS auction"),
    # windows
    "SELECT window_start, window_end, count(*) AS n FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY window_start, window_end": (
        BID.group_by(MINUTE).agg(n="count(*)")
    ),
    "SELECT auction, w.window_end AS e, count(*) AS n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at), INTERVAL '1' MINUTE)) w"
    " GROUP BY auction, w.window_start, w.window_end": BID.group_by("auction", MINUTE)
    .agg(n="count(*)")
    .select("auction", "window_end AS e", "n"),
    "SELECT count(*) AS n FROM hop(bid, at, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS) GROUP BY window_start": BID.group_by(
        hopping("at", "10 seconds", "2 seconds")
    )
    .agg(n="count(*)")
    .select("n"),
    "SELECT * FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE)": BID.windowed(MINUTE),
    "SELECT w.price, window_end AS e FROM hop(TABLE bid, at, INTERVAL 2 SECONDS, INTERVAL 10 SECONDS) w WHERE w.window_start > at": (
        BID.windowed(hopping("at", "10 seconds", "2 seconds"))
        .where("window_start > at")
        .select("price", "window_end AS e")
    ),
    "SELECT price FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE)"
    " QUALIFY rank() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) = 1": BID.windowed(MINUTE)
    .top(1, "price DESC", ["window_start", "window_end"], ties="rank")
    .select("price"),
    "SELECT p, count(*) AS n FROM (SELECT price AS p, window_end FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE)) GROUP BY p, window_end": (
        BID.windowed(MINUTE)
        .select("price AS p", "window_end")
        .group_by("p", "window_end")
        .agg(n="count(*)")
        .select("p", "n")
    ),
    "SELECT a.price FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) a WHERE EXISTS (SELECT * FROM"
    " (SELECT id, window_end AS over FROM tumble(TABLE sale, at, INTERVAL 1 MINUTE)) s WHERE s.id = a.auction AND over = a.window_end)": (
        BID.windowed(MINUTE)
        .join(
            SALE.windowed(MINUTE).select("id", "window_end AS over"),
            on=["auction = id", "window_end = over"],
            how="semi",
        )
        .select("price")
    ),
    "SELECT bidder, window_start, window_end, count(*) AS n FROM session(TABLE bid PARTITION BY bidder, at, INTERVAL '10 seconds')"
    " GROUP BY bidder, window_start, window_end": BID.group_by("bidder", session("at", "10 seconds")).agg(n="count(*)"),
    "SELECT auction, count(*) AS n FROM slide(TABLE bid, at, INTERVAL 1 HOUR 30 MINUTES) GROUP BY auction, window_start, window_end": (
        BID.group_by("auction", sliding("at", "90 minutes")).agg(n="count(*)").select("auction", "n")
    ),
    "SELECT x.p, count(*) AS n FROM tumble((SELECT price AS p, at FROM bid), at, INTERVAL 1 MINUTE) x GROUP BY p, window_end": BID.select(
        "price AS p", "at"
    )
    .group_by("p", MINUTE)
    .agg(n="count(*)")
    .select("p", "n"),
    "SELECT window.start AS s, auction, count(*) AS n FROM bid GROUP BY window(at, '1 minute'), auction": BID.group_by(
        "auction", MINUTE
    )
    .agg(n="count(*)")
    .select("window_start AS s", "auction", "n"),
    "SELECT window.end AS e, count(*) AS n FROM bid GROUP BY window(at, '10 seconds', '2 seconds')": BID.group_by(
        hopping("at", "10 seconds", "2 seconds")
    )
    .agg(n="count(*)")
    .select("window_end AS e", "n"),
    "SELECT bidder, session_window.start AS s, count(*) AS n FROM bid GROUP BY bidder, session_window(at, '5 seconds')": BID.group_by(
        "bidder", session("at", "5 seconds")
    )
    .agg(n="count(*)")
    .select("bidder", "window_start AS s", "n"),
    "SELECT auction, window_start, window_end FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY auction, window_start, window_end": (
        BID.group_by("auction", MINUTE).distinct()
    ),
    # history
    "SELECT id, name, valid_from FROM users FOR SYSTEM_TIME ALL WHERE valid_to IS NULL": USERS.history()
    .where("valid_to IS NULL")
    .select("id", "name", "valid_from"),
    "SELECT u.id, o.rank FROM users u FOR SYSTEM_TIME ALL JOIN (SELECT id AS oid, rank FROM others) o ON u.id = o.oid": USERS.history()
    .join(OTHERS.select("id AS oid", "rank"), on="id = oid")
    .select("id", "rank"),
    # joins
    "SELECT price, name FROM bid b JOIN users u FOR SYSTEM_TIME AS OF b.at ON b.bidder = u.id": BID.join(
        USERS, on="bidder = id", as_of="at"
    ).select("price", "name"),
    "SELECT price, name FROM bid b LEFT JOIN users FOR SYSTEM_TIME AS OF b.at AS u ON u.id = b.bidder AND u.city = 'x'": BID.join(
        USERS.where("city = 'x'"), on="bidder = id", how="left", as_of="at"
    ).select("price", "name"),
    "SELECT price, name FROM bid JOIN users FOR SYSTEM_TIME AS OF PROCTIME() ON bidder = id": BID.join(
        USERS, on="bidder = id", latest=True
    ).select("price", "name"),
    "SELECT name, rank FROM users u JOIN (SELECT id, rank FROM others) o ON u.id = o.id": USERS.join(
        OTHERS.select("id", "rank"), on="id"
    ).select("name", "rank"),
    "SELECT u.name, o.name AS other FROM users u LEFT JOIN others o ON u.id = o.id WHERE o.id IS NULL": USERS.join(
        OTHERS.select("id AS o_id", "name AS o_name", "rank"), on="id = o_id", how="left"
    )
    .where("o_id IS NULL")
    .select("name", "o_name AS other"),
    "SELECT id, rank FROM users FULL OUTER JOIN (SELECT id, rank FROM others) o USING (id)": USERS.join(
        OTHERS.select("id", "rank"), on="id", how="full"
    ).select("id", "rank"),
    "SELECT id, rank FROM users JOIN (SELECT id, rank FROM others) o USING (id) WHERE id > 3": USERS.join(
        OTHERS.select("id", "rank"), on="id"
    )
    .where("id > 3")
    .select("id", "rank"),
    "SELECT o.name FROM users u RIGHT JOIN others o ON o.id = u.id AND u.city = 'x'": USERS.where("city = 'x'")
    .join(OTHERS.select("id AS o_id", "name AS o_name", "rank"), on="id = o_id", how="right")
    .select("o_name AS name"),
    "SELECT name FROM users u LEFT SEMI JOIN others o ON u.id = o.id AND o.rank > 1 AND u.city = 'x'": USERS.where(
        "city = 'x'"
    )
    .join(OTHERS.where("rank > 1"), on="id", how="semi")
    .select("name"),
    "SELECT * FROM users ANTI JOIN others o ON users.name = o.name": USERS.join(OTHERS, on="name", how="anti"),
    "SELECT * FROM users NATURAL JOIN others": USERS.join(OTHERS, on=["id", "name"]),
    "SELECT u.name, o.rank FROM users u, others o WHERE u.id = o.id AND rank > 1": USERS.join(
        OTHERS.select("id", "name AS o_name", "rank"), on="id"
    )
    .where("rank > 1")
    .select("name", "rank"),
    "SELECT u.name FROM users u JOIN others o ON u.id = o.rank + 1 AND u.name < o.name": USERS.join(
        OTHERS.select("id AS o_id", "name AS o_name", "rank"), on="id = rank + 1"
    )
    .where("name < o_name")
    .select("name"),
    "SELECT a.name, c.city FROM users a JOIN users b ON a.id = b.id JOIN users c ON c.id = b.id": USERS.join(
        USERS.select("id", "name AS b_name", "city AS b_city"), on="id"
    )
    .join(USERS.select("id", "name AS c_name", "city AS c_city"), on="id")
    .select("name", "c_city AS city"),
    "SELECT u.name FROM users u JOIN others o ON u.id = o.id AND u.name < o.name WHERE rank = 1 OR rank = 2": USERS.join(
        OTHERS.select("id", "name AS o_name", "rank"), on="id"
    )
    .where("name < o_name AND (rank = 1 OR rank = 2)")
    .select("name"),
    "SELECT a.name FROM users a, users b, others c WHERE c.rank = a.id AND b.id = c.id": USERS.join(
        OTHERS.select("id AS c_id", "name AS c_name", "rank"), on="id = rank"
    )
    .join(USERS.select("id AS b_id", "name AS b_name", "city AS b_city"), on="c_id = b_id")
    .select("name"),
    "SELECT * FROM users u, others o WHERE u.id + 1 = o.id + 2": USERS.alias("l").join(
        OTHERS.select("id AS o_id", "name AS o_name", "rank"), on="id + 1 = o_id + 2"
    ),
    # times that bound each other
    "SELECT price, seller FROM bid b JOIN sale s ON b.auction = s.id AND b.at BETWEEN s.at AND s.at + INTERVAL 1 HOUR": BID.join(
        SALE.select("id", "seller", "category", "at AS s_at", "expires"),
        on="auction = id",
        within=("-1 hour", "0 seconds"),
    ).select("price", "seller"),
    "SELECT price FROM bid b JOIN sale s ON auction = id AND s.at >= b.at - INTERVAL '5' MINUTES AND (b.at) > s.at": BID.join(
        SALE.select("id", "seller", "category", "at AS s_at", "expires"),
        on="auction = id",
        within=("-5 minutes", "-1 microsecond"),
    ).select("price"),
    "SELECT price FROM bid b LEFT JOIN sale s ON auction = id AND s.at = b.at": BID.join(
        SALE.select("id", "seller", "category", "at AS s_at", "expires"),
        on="auction = id",
        how="left",
        within="0 seconds",
    ).select("price"),
    "SELECT price FROM bid b, sale s WHERE auction = id AND s.at + INTERVAL 1 MINUTE >= b.at AND s.at <= b.at AND price > 1": BID.join(
        SALE.select("id", "seller", "category", "at AS s_at", "expires"),
        on="auction = id",
        within=("-1 minute", "0 seconds"),
    )
    .where("price > 1")
    .select("price"),
    # one bound is no span, and expires is no event time: all rows are kept, and the condition comes after
    "SELECT price FROM sale s JOIN bid b ON id = auction AND b.at >= s.at": SALE.join(
        BID.select("auction", "bidder", "price", "at AS b_at", "url"), on="id = auction"
    )
    .where("b_at >= at")
    .select("price"),
    "SELECT price FROM sale s, bid b WHERE id = auction AND b.at BETWEEN s.at AND s.expires": SALE.join(
        BID.select("auction", "bidder", "price", "at AS b_at", "url"), on="id = auction"
    )
    .where("b_at BETWEEN at AND expires")
    .select("price"),
    # queries in conditions
    "SELECT price FROM bid WHERE bidder IN (SELECT id FROM users WHERE city = 'x') AND price > 1": BID.where(
        "price > 1"
    )
    .join(USERS.where("city = 'x'").select("id"), on="bidder = id", how="semi")
    .select("price"),
    "SELECT name FROM users u WHERE EXISTS (SELECT 1 FROM others WHERE others.id = u.id AND rank > 1)": USERS.join(
        OTHERS.where("rank > 1"), on="id", how="semi"
    ).select("name"),
    "SELECT name FROM users WHERE NOT EXISTS (SELECT * FROM bid WHERE bidder = users.id)": USERS.join(
        BID, on="id = bidder", how="anti"
    ).select("name"),
    "SELECT name FROM users WHERE id IN (SELECT max(bidder) FROM bid GROUP BY auction)": USERS.join(
        BID.group_by("auction").agg(value="max(bidder)").select("value"), on="id = value", how="semi"
    ).select("name"),
    # window functions
    "SELECT *, lag(price) OVER (PARTITION BY auction ORDER BY at) AS before FROM bid": BID.over("auction", "at").add(
        before="lag(price)"
    ),
    "SELECT auction, price - lag(price, 2) OVER w AS step, sum(price) OVER w AS s FROM bid WINDOW w AS (PARTITION BY auction ORDER BY at)": (
        BID.over("auction", "at")
        .add(s="sum(price)", look_1="lag(price, 2)")
        .select("auction", "price - look_1 AS step", "s")
    ),
    "SELECT at, avg(price) OVER (PARTITION BY auction ORDER BY at ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS a,"
    " max(price) OVER (PARTITION BY auction ORDER BY at RANGE BETWEEN INTERVAL 1 SECOND PRECEDING AND CURRENT ROW) AS m,"
    " count(*) OVER (PARTITION BY auction) AS n FROM bid": BID.over("auction", "at", rows(2, 1))
    .add(a="avg(price)")
    .over("auction", "at", span("1 second"))
    .add(m="max(price)")
    .over("auction")
    .add(n="count(*)")
    .select("at", "a", "m", "n"),
    "SELECT price, rank() OVER (ORDER BY price DESC NULLS LAST, at ASC) AS r FROM bid": BID.over(order="price DESC, at")
    .add(r="rank()")
    .select("price", "r"),
    "SELECT sum(price) OVER (ORDER BY at ROWS UNBOUNDED PRECEDING) AS s FROM bid": BID.over(order="at", frame=rows())
    .add(s="sum(price)")
    .select("s"),
    "SELECT auction, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS r FROM bid GROUP BY auction": BID.group_by(
        "auction"
    )
    .agg(n="count(*)")
    .over(order="n DESC")
    .add(r="rank()"),
    # the first rows
    "SELECT auction, price FROM bid QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC) = 1": BID.top(
        1, "price DESC", "auction"
    ).select("auction", "price"),
    f"{RANKED} QUALIFY n < 4": BID.top(3, "price DESC", "auction").over("auction", "price DESC").add(n="row_number()"),
    f"SELECT auction, price FROM ({RANKED}) WHERE n <= 3 AND price > 5": BID.top(3, "price DESC", "auction")
    .where("price > 5")
    .select("auction", "price"),
    f"SELECT * FROM ({RANKED}) WHERE 3 >= n": BID.top(3, "price DESC", "auction")
    .over("auction", "price DESC")
    .add(n="row_number()"),
    f"SELECT price FROM ({RANKED}) WHERE n = 2": BID.top(2, "price DESC", "auction")
    .over("auction", "price DESC")
    .add(n="row_number()")
    .where("n = 2")
    .select("price"),
    f"SELECT price FROM ({RANKED}) WHERE n > 2": BID.over("auction", "price DESC")
    .add(n="row_number()")
    .where("n > 2")
    .select("price"),
    "SELECT p FROM (SELECT price AS p, row_number() OVER (ORDER BY at) AS n FROM bid) t WHERE t.n <= 2": BID.top(
        2, "at"
    ).select("price AS p"),
    "SELECT auction, n FROM (SELECT auction, count(*) AS n, row_number() OVER (ORDER BY count(*) DESC) AS r FROM bid GROUP BY auction)"
    " WHERE r <= 3": BID.group_by("auction").agg(n="count(*)").top(3, "n DESC"),
    "SELECT auction FROM bid QUALIFY rank() OVER (ORDER BY price) <= 2": BID.top(2, "price", ties="rank").select(
        "auction"
    ),
    "SELECT auction, dense_rank() OVER (PARTITION BY bidder ORDER BY price) AS r FROM bid QUALIFY r = 1": BID.top(
        1, "price", "bidder", ties="dense_rank"
    )
    .over("bidder", "price")
    .add(r="dense_rank()")
    .select("auction", "r"),
    "SELECT auction, n, window_start FROM (SELECT auction, count(*) AS n, window_start, rank() OVER (PARTITION BY window_start"
    " ORDER BY count(*) DESC) AS r FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY auction, window_start) WHERE r = 1": BID.group_by(
        "auction", MINUTE
    )
    .agg(n="count(*)")
    .top(1, "n DESC", "window_start", ties="rank")
    .select("auction", "n", "window_start"),
    # a number of another order, and what else is said of the same neighbours, are those of all rows
    "SELECT price, sum(price) OVER w AS s FROM bid QUALIFY row_number() OVER w <= 2 WINDOW w AS (ORDER BY at)": BID.over(
        order="at"
    )
    .add(s="sum(price)")
    .top(2, "at")
    .select("price", "s"),
    "SELECT price FROM bid QUALIFY lag(price) OVER (ORDER BY at) < price": BID.over(order="at")
    .add(look_1="lag(price)")
    .where("look_1 < price")
    .select("price"),
    "SELECT auction, price FROM bid ORDER BY price DESC, 1 LIMIT 3": BID.select("auction", "price").top(
        3, "price DESC, auction"
    ),
    "SELECT auction FROM bid ORDER BY bid.price DESC NULLS LAST LIMIT 3": BID.top(3, "price DESC").select("auction"),
    "SELECT auction, count(*) AS n FROM bid GROUP BY auction ORDER BY max(price) LIMIT 3": BID.group_by("auction")
    .agg(n="count(*)", agg_1="max(price)")
    .top(3, "agg_1")
    .select("auction", "n"),
    "SELECT price FROM bid UNION ALL SELECT id FROM sale ORDER BY price DESC LIMIT 3": BID.select("price")
    .union(SALE.select("id AS price"))
    .top(3, "price DESC"),
}


@pytest.mark.parametrize("sql", SAME)
def test_a_query_is_the_plan_that_python_makes(sql: str) -> None:
    assert str(query(sql)) == str(SAME[sql])  # for the eye
    assert query(sql).node == SAME[sql].node


def test_words_of_the_language_may_be_names() -> None:
    named = BID.select("price AS offset", "auction AS emit", "at", "bidder AS `select`")
    made = compile_query("SELECT emit, offset FROM n WHERE offset > 1 AND emit = 2 AND `select` = 3", {"n": named})
    assert made.node == named.where("offset > 1 AND emit = 2 AND `select` = 3").select("emit", "offset").node
    ended = query(
        "SELECT window.start AS start, window.end AS end, CASE WHEN count(*) > 1 THEN 1 END AS n FROM bid"
        " GROUP BY window(at, '1 minute')"
    )
    assert ended.columns == ("start", "end", "n")


def test_names_of_relations_have_no_case() -> None:
    assert query("SELECT * FROM MIXED").node == MIXED.node


def test_a_query_over_a_query_shares_its_plan() -> None:
    views = {"n": query("SELECT auction, count(*) AS n FROM bid GROUP BY auction")}
    made = compile_query("SELECT a.n AS one, b.n AS two FROM n a JOIN n b USING (auction)", views)
    assert made.columns == ("one", "two")


def test_nodes_remember_where_in_the_file_they_were_written() -> None:
    node = query("SELECT auction\nFROM bid\n  WHERE price > 3", Origin("shop.sql", 10, 5)).node
    assert node.place == Place("shop.sql", 10, 5)
    below = node.input  # type: ignore[union-attr]
    assert isinstance(below, Where)
    assert below.place == Place("shop.sql", 12, 9)


def test_groups_without_an_aggregate_keep_their_window() -> None:
    made = query(
        "SELECT auction, window_start FROM tumble(TABLE bid, at, INTERVAL 1 MINUTE) GROUP BY auction, window_start"
    )
    below = made.node.input  # type: ignore[union-attr]
    assert isinstance(below, Aggregate)
    assert below.window == MINUTE
    assert below.aggregates == ()


def test_the_queries_of_the_documentation_hold_together() -> None:
    section = PAGE.read_text().partition("## Queries")[2].partition("\n## ")[0]
    queries = [
        each for block in re.findall(r"```sql\n(.*?)```", section, re.S) for each in block.split(";") if each.strip()
    ]
    assert len(queries) > 5
    for each in queries:
        assert query(each).columns
