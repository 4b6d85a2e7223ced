"""Row patterns on Spark: streamed in several batches, with a restart and late events, equal to the batch over the same log."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millstream import Pipeline, pattern
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def pipeline(folder: Path) -> Pipeline:
    shop = Pipeline(
        "patterns",
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'views.db'}",
        checkpoint=str(folder / "checkpoint"),
        buckets=3,
    )
    seen: dict[str, Any] = {"delay": "20 seconds", "lateness": "40 seconds", "late": "correct"}
    logins = shop.stream("logins", "user long, country string, at timestamp", time="at", **seen)
    orders = shop.stream("orders", "user long, country string, amount double, paid timestamp", time="paid", **seen)
    stages = shop.table("stages", "id long, item long, stage string", key="id")
    falls = """
      SELECT * FROM orders MATCH_RECOGNIZE (
        PARTITION BY user ORDER BY paid, amount
        MEASURES MATCH_ID() AS id, FIRST(DOWN.paid) AS since, LAST(DOWN.amount) AS low, count(DOWN.*) AS n, soundex_of AS word
        PATTERN (START_ROW DOWN+ UP) WITHIN INTERVAL 2 MINUTES
        DEFINE DOWN AS amount < PREV(amount), UP AS UP.amount > avg(DOWN.amount) AND soundex(country) <> 'X000'
      )"""
    shop.view("falls", sql=falls.replace("soundex_of", "LAST(soundex(UP.country))"))
    both = pattern(login=logins, purchase=orders, on="user")
    moved = (
        both.then("login")
        .followed_by("purchase")
        .within("1 minute")
        .where(purchase="purchase.country <> login.country")
    )
    shop.view(
        "moved",
        moved.near().select(home="login.country", away="purchase.country", amount="purchase.amount"),
        emit="final",
    )
    calm = both.then("login").not_followed_by("purchase", within="30 seconds")
    shop.view("calm", calm.select(id="MATCH_ID()", at="login.at"))
    rows = logins.match(
        "A B* C", {"B": "B.country = A.country", "C": "C.country <> A.country"}, {"c": "CLASSIFIER()", "n": "count(*)"},
        partition="user", order="at", rows="all_with_unmatched", within="2 minutes",
    )  # fmt: skip
    shop.view("rows", rows)
    pairs = stages.match(
        "A B", {"B": "B.stage <> A.stage"}, {"first": "A.id", "then": "B.id"}, partition="item", order="id"
    )
    shop.view("stages_told", pairs)
    return shop


def some_events(chance: random.Random, minute: int) -> dict[str, list[Event]]:
    def at() -> str:
        late = chance.choice([0, 0, 0, -25, -50])
        return (BEGIN + timedelta(minutes=minute, seconds=round(chance.uniform(0, 60)) + late)).isoformat()

    def event(key: object, **values: object) -> Event:
        return Event(json.dumps(values).encode(), key=str(key).encode(), time=BEGIN + timedelta(minutes=minute))

    made: dict[str, list[Event]] = {"logins": [], "orders": [], "stages": []}
    for _ in range(12):
        user, country = chance.randrange(4), chance.choice(["de", "fr", None])
        made["logins"].append(event(user, user=user, country=country, at=at()))
        made["orders"].append(
            event(
                user,
                user=user,
                country=chance.choice(["de", "us"]),
                amount=chance.choice([1.5, 2, 3, 4, None]),
                paid=at(),
            )
        )
        row = chance.randrange(20)
        made["stages"].append(event(row, id=row, item=row % 3, stage=chance.choice(["a", "b"])))
    return made


def test_patterns_streamed_equal_patterns_in_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    shop, chance = pipeline(tmp_path), random.Random(4)
    progress: list[Progress] = []
    with open_log(shop.log, create=True) as log:
        for topic in ("logins", "orders", "stages"):
            log.create_topic(topic, 2)
        for part in range(2):
            for minute in range(part * 3, part * 3 + 3):
                for topic, events in some_events(chance, minute).items():
                    log.append(topic, events)
            run(shop, spark=spark, once=True, rate_limit=40 if part else None, progress=progress.append)
    assert len(progress) >= 3
    run(shop, spark=spark, once=True, close=True)
    checked = verify(shop, spark=spark)
    assert checked.equal, checked
    views = {name: view.to_polars() for name, view in shop.views.items()}
    assert all(frame.height for frame in views.values()), {name: frame.height for name, frame in views.items()}
    assert views["falls"]["id"].n_unique() == views["falls"].height
    assert set(views["falls"]["word"]) <= {"D000", "U200"}
    assert set(views["moved"]["stage"]) == {None, "login"}
    assert set(views["rows"]["c"]) == {None, "A", "B", "C"}
