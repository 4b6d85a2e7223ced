"""A click stream and two views of it. `make demo` runs it; by hand: `millstream run examples/clicks.py --log sqlite:LOG`.

An event may come 10 seconds behind the newest one of its partition; one that is up to an hour later still is taken in and
amends the minute it belongs to. What is later than that is rejected, and kept as a dead letter.
"""

from millstream import Pipeline, window

shop = Pipeline("shop", log="sqlite:demo.db", to="sqlite:shop.views.db")

clicks = shop.stream(
    "clicks",
    "user long, page string, at timestamp",
    key="user",
    time="at",
    delay="10 seconds",
    late="correct",
    lateness="1 hour",
)

shop.view(
    "per_minute",
    clicks.group_by("page", window.tumbling("at", "1 minute")).agg(n="count(*)", people="count(distinct user)"),
)

shop.view("users", clicks.group_by("user").agg(n="count(*)", last_page="last(page, at)", last_seen="max(at)"))
