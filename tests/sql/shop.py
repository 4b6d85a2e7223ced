"""Relations for queries to be about."""

from __future__ import annotations

from millstream import Pipeline
from millstream.relation.relation import Relation
from millstream.sql.query import Origin, compile_query

SHOP = Pipeline("shop")
BID = SHOP.stream(
    "bid",
    "auction long, bidder long, price long, at timestamp, url string",
    time="at",
    delay="4 seconds",
)
SALE = SHOP.stream("sale", "id long, seller long, category int, at timestamp, expires timestamp", time="at")
MIXED = SHOP.stream(
    "mixed", "kind int, bid struct<auction: bigint, price: bigint>, at timestamp, tags array<string>", time="at"
)
USERS = SHOP.table("users", "id long, name string, city string", key="id")
OTHERS = SHOP.table("others", "id long, name string, rank int", key="id")
RELATIONS = {"bid": BID, "sale": SALE, "Mixed": MIXED, "users": USERS, "others": OTHERS}


def query(sql: str, origin: Origin = Origin()) -> Relation:  # noqa: B008
    """The relation of a query over the shop."""
    return compile_query(sql, RELATIONS, origin)
