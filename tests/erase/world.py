"""A shop with somebody in every place where one can be: topics, an archive, dead letters, versions of views, checkpoints, free pages."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from millstream import Event, Pipeline
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.runtime.rebuild import rebuild
from millstream.runtime.run import run
from millstream.window import tumbling

USER, MAIL, NAME = "ann-canary", "ann.canary@example.org", "Ann Of Canary"
DAY = 24 * 3600 * 1000


def define(folder: Path, to: str = "") -> Pipeline:
    shop = Pipeline(
        "shop",
        log=f"sqlite:{folder}/log.db",
        to=to or f"sqlite:{folder}/views.db",
        checkpoint=str(folder / "check"),
        buckets=2,
    )
    orders = shop.stream(
        "orders", "user_id string, email string, amount long, at timestamp", time="at", key="user_id",
        subject={"user": "user_id"}, personal=["email"],
    )  # fmt: skip
    users = shop.table("users", "id string, name string", key="id", subject={"user": "id"}, personal=["name"])
    shop.view("per_minute", orders.group_by(tumbling("at", "1 minute")).agg(n="count(*)", total="sum(amount)"))
    shop.view("per_user", orders.group_by("user_id").agg(n="count(*)", mail="max(email)"))
    named = orders.join(users, "user_id = id", how="left", as_of="at").select("user_id AS who", "name", "amount")
    shop.view("named", named)
    return shop


def order(user: str, second: int, amount: int = 1) -> Event:
    at = f"2026-01-31T12:{second // 60:02}:{second % 60:02}Z"
    return Event(
        json.dumps(
            {"user_id": user, "email": MAIL if user == USER else f"{user}@b.org", "amount": amount, "at": at}
        ).encode(),
        user.encode(),
    )


def fill(folder: Path) -> None:
    """Records of several, with hers the newest event, so that others are late by it; an old topic, dead letters, an archive."""
    clock = int(time.time() * 1000) - 9 * DAY
    with SqliteLog(folder / "log.db", clock=lambda: clock) as log:
        archived = TopicSettings(retention=timedelta(days=3), archive=str(folder / "archive"))
        log.create_topic("orders", 1, archived)
        log.create_topic("users", 1, TopicSettings(cleanup="compact", compaction_lag=timedelta(days=30)))
        log.create_topic("orders.dead")
        log.create_topic("gone")
        log.append("gone", [order(USER, 1) for _ in range(20)])
        log.append(
            "users",
            [
                Event(json.dumps({"id": each, "name": name}).encode(), each.encode(), datetime(2026, 1, 1, tzinfo=UTC))
                for each, name in ((USER, NAME), ("bob", "Bob B"))
            ],
        )
        log.append("orders", [order(USER, 1, 5), order("bob", 2, 7), order(USER, 3)])
        log.append("orders.dead", [order(USER, 3)])
        log.delete_topic("gone")
    with SqliteLog(folder / "log.db") as log:
        misfit = {"user_id": USER, "email": MAIL, "amount": "many", "at": "2026-01-31T12:50:00Z"}
        log.append("orders", [Event(json.dumps(misfit).encode(), USER.encode())])
        odd = Event(b'{"user_id": "' + USER.encode() + b'", oops')
        log.append(
            "orders", [order("eve", 62, 2), order(USER, 400, 9), order("bob", 100, 3), odd, order("eve", 395, 4)]
        )


def archive(folder: Path) -> None:
    """Let what is old go into the archive."""
    with SqliteLog(folder / "log.db") as log:
        log.maintain("orders")


def live(folder: Path, spark: SparkSession, to: str = "") -> Pipeline:
    """The shop after it has run, was rebuilt once, and once more not to the end."""
    fill(folder)
    shop = define(folder, to)
    run(shop, spark=spark, once=True)
    rebuild(shop, spark=spark)
    run(shop, spark=spark, once=True, beside=True)
    archive(folder)
    (folder / "check.spark.log").write_text(f"a failure on a row of {MAIL}\n")
    return shop
