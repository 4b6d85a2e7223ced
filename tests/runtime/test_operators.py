"""Windows, joins and the rest on Spark: streamed in several batches, with a restart, equals the batch over the same log."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from millstream import Pipeline
from millstream.event import Event
from millstream.frame import rows, span
from millstream.log import open_log
from millstream.runtime.run import Progress, run
from millstream.runtime.setup import chain_of
from millstream.runtime.verify import verify
from millstream.store import open_reader
from millstream.window import hopping, session, sliding, tumbling

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def pipeline(folder: Path) -> Pipeline:
    """Every operator once, some on top of others."""
    shop = Pipeline(
        "operators",
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'views.db'}",
        checkpoint=str(folder / "checkpoint"),
        buckets=4,
    )
    seen: dict[str, Any] = {"delay": "20 seconds", "lateness": "30 seconds", "late": "correct"}
    searches = shop.stream("searches", "id long, user long, tags array<string>, at timestamp", time="at", **seen)
    clicks = shop.stream("clicks", "search long, user long, price double, at timestamp", time="at", delay="10 seconds")
    users = shop.table("users", "id long, country string", key="id")
    countries = shop.table("countries", "country string, name string", key="country")

    shop.view(
        "hops", clicks.group_by("user", hopping("at", "2 minutes", "30 seconds")).agg(n="count(*)", p="median(price)")
    )
    shop.view(
        "visits", clicks.group_by("user", session("at", "40 seconds")).agg(n="count(*)", s="sum(price)"), emit="final"
    )
    shop.view("moving", clicks.group_by("user", sliding("at", "1 minute")).agg(n="count(*)", mean="avg(price)"))
    pairs = searches.select("id", "user AS searcher", "at").join(
        clicks.select("search", "price", "at AS clicked"),
        on="id = search",
        how="left",
        within=("0 seconds", "1 minute"),
    )
    shop.view(
        "found", pairs.group_by(tumbling("at", "1 minute")).agg(n="count(*)", clicks="count(search)"), emit="final"
    )
    told = clicks.join(users, on="user = id", how="left", as_of="at")
    shop.view("by_country", told.group_by("country", tumbling("at", "1 minute")).agg(n="count(*)", s="sum(price)"))
    people = users.join(countries, on="country", how="full")
    shop.view("people", people.select("id", "country", "name"))
    shop.view("named", people.where("id > 2").group_by("name").agg(n="count(*)"))
    per_user = clicks.group_by("user").agg(n="count(*)", total="sum(price)")
    # Rows without a partner on either side, which the keys of both sides alone would not tell apart.
    seen_in = per_user.select("user AS id", "CASE WHEN n > 8 THEN 'de' ELSE 'fr' END AS country")
    shop.view("agreed", users.join(seen_in, on=["id", "country"], how="full"))
    cheap = clicks.group_by("CASE WHEN price > 2 THEN 'de' END AS country").agg(m="count(*)")
    shop.view("groups", users.group_by("country").agg(n="count(*)").join(cheap, on="country", how="full"))
    shop.view("best", per_user.top(3, by="n DESC, user"))
    shop.view("ranked", per_user.over(order="n DESC").add(place="rank()", before="lag(n)"))
    shop.view("near", clicks.over(partition="user", order="at", frame=span("1 minute", 0)).add(m="max(price)"))
    shop.view("last_three", clicks.over(partition="user", order="at", frame=rows(2, 0)).add(s="sum(price)"))
    shop.view("once", clicks.deduplicate("search", within="1 minute").select("search", "at"))
    shop.view("who", clicks.select("user").distinct())
    both = clicks.select("user", "at").union(searches.select("user", "at"))
    shop.view("active", both.group_by("user", tumbling("at", "1 minute")).agg(n="count(*)"))
    shop.view("tags", searches.explode("tags", as_="tag").group_by("tag").agg(n="count(*)"))

    prices = clicks.unpivot(["user", "at"], ["price", "price * 2 AS twice"], "name", "value")
    shop.view("prices", prices.group_by("name", tumbling("at", "1 minute")).agg(s="sum(value)"), emit="final")

    def spread(frame: pl.DataFrame) -> pl.DataFrame:  # like one in a user's file: no worker can import it
        return frame.select(least=pl.col("price").min(), most=pl.col("price").max())

    shop.view("spread", clicks.map_groups(spread, key="user", schema="least double, most double"), unbounded=True)
    return shop


def of(key: object, said: datetime, **values: object) -> Event:
    return Event(json.dumps(values).encode(), key=str(key).encode(), time=said)


def some_events(chance: random.Random, minute: int) -> dict[str, list[Event]]:
    def at(second: float) -> str:
        return (BEGIN + timedelta(minutes=minute, seconds=second)).isoformat()

    def event(key: object, **values: object) -> Event:
        return of(key, said, **values)

    said = BEGIN + timedelta(minutes=minute)
    # Tables first: an as-of join asks them for what was there at the time of an event, and they must be in time for it.
    made: dict[str, list[Event]] = {"users": [], "countries": [], "searches": [], "clicks": []}
    for _ in range(12):
        user, late = chance.randrange(6), chance.choice([0, 0, 0, -25, -90])
        tags = chance.choice([[], ["a"], ["a", "b"], None])
        made["searches"].append(
            event(user, id=chance.randrange(40), user=user, tags=tags, at=at(chance.uniform(0, 60) + late))
        )
        made["clicks"].append(
            event(
                user,
                search=chance.randrange(40),
                user=user,
                price=chance.choice([1.5, 0.1, None, 7.25]),
                at=at(chance.uniform(0, 60)),
            )
        )
    for _ in range(3):
        user = chance.randrange(6)
        if chance.random() < 0.25:
            made["users"].append(Event(None, key=str(user).encode(), time=said))
        else:
            made["users"].append(event(user, id=user, country=chance.choice(["de", "fr", None])))
        country = chance.choice(["de", "fr", "it"])
        made["countries"].append(event(country, country=country, name=chance.choice(["X", "Y"])))
    return made


def test_every_operator_streamed_equals_batch(spark: SparkSession, tmp_path: Path) -> None:
    shop, chance = pipeline(tmp_path), random.Random(1)
    progress: list[Progress] = []
    with open_log(shop.log, create=True) as log:
        for topic in ("searches", "clicks", "users", "countries"):
            log.create_topic(topic, 2)
        for part in range(2):
            for minute in range(part * 4, part * 4 + 4):
                for topic, events in some_events(chance, minute).items():
                    log.append(topic, events)
            run(shop, spark=spark, once=True, rate_limit=30 if part else None, progress=progress.append)
    assert len(progress) >= 4
    run(shop, spark=spark, once=True, close=True)
    checked = verify(shop, spark=spark)
    assert checked.equal, checked
    views = {name: view.to_polars() for name, view in shop.views.items()}
    assert all(frame.height for frame in views.values()), {name: frame.height for name, frame in views.items()}
    # What can be said by hand: nothing is lost on the way through a join or a window.
    assert views["found"]["n"].sum() >= views["found"]["clicks"].sum() > 0
    admitted = progress[-1].admitted
    assert 0 < views["moving"].height <= admitted
    assert views["best"].height == 3
    assert sorted(views["ranked"]["place"])[0] == 1


def test_semi_anti_and_latest_joins_and_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    shop = Pipeline(
        "partners",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "checkpoint"),
        buckets=2,
    )
    users = shop.table("users", "id long, country string", key="id")
    countries = shop.table("countries", "country string, name string", key="country")
    pings = shop.stream("pings", "user long", time="_append_time")
    shop.view("everyone", users)
    shop.view("at_home", users.join(countries, on="country", how="semi"))
    shop.view("abroad", users.join(countries, on="country", how="anti"))
    shop.view("told", pings.join(users, on="user = id", how="left", latest=True).select("user", "country"))
    shop.view("per_day", pings.group_by(tumbling("_append_time", "1 day")).agg(n="count(*)"), emit="final")

    def event(key: object, **values: object) -> Event:
        return Event(json.dumps(values).encode() if values else None, key=str(key).encode())

    def say(**events: list[Event]) -> None:
        for topic, each in events.items():
            log.append(topic, each)
        run(shop, spark=spark, once=True)

    def stored(name: str) -> list[tuple[object, ...]]:
        shown = [column for column in shop.views[name].columns if not column.startswith("_")]
        return sorted(shop.views[name].to_polars().select(shown).rows(), key=str)

    with open_log(shop.log, create=True) as log:
        for topic in ("users", "countries", "pings"):
            log.create_topic(topic, 2)
        say(
            users=[event(1, id=1, country="de"), event(2, id=2, country="fr"), event(3, id=3, country=None)],
            countries=[event("de", country="de", name="X"), event("it", country="it", name="Y")],
            pings=[event(1, user=1), event(4, user=4)],
        )
        assert stored("at_home") == [(1, "de")]
        assert stored("abroad") == [(2, "fr"), (3, None)]
        assert stored("told") == [(1, "de"), (4, None)]
        # A country goes, another comes, and so do users: what was told stays as it was.
        say(
            countries=[event("de"), event("fr", country="fr", name="Z")],
            users=[event(1, id=1, country="it"), event(3), event(4, id=4, country="de")],
            pings=[event(1, user=1), event(4, user=4)],
        )
    assert stored("at_home") == [(1, "it"), (2, "fr")]
    assert stored("abroad") == [(4, "de")]
    assert stored("told") == [(1, "de"), (1, "it"), (4, "de"), (4, None)]
    run(shop, spark=spark, once=True, close=True)
    assert shop.views["per_day"].to_polars()["n"].sum() == 4
    # A replay as one batch meets the table as it is at the end, and only that differs: latest=True says so.
    checked = {view.view: view.equal for view in verify(shop, spark=spark).views}
    assert checked.pop("told") is False
    assert set(checked.values()) == {True}
    assert stored("everyone") == [(1, "it"), (2, "fr"), (4, "de")]


def test_kernels_in_one_step_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    shop = Pipeline(
        "steps",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "checkpoint"),
        buckets=3,
    )
    clicks = shop.stream("clicks", "user long, at timestamp", time="at")
    minutes = clicks.group_by("user", tumbling("at", "1 minute")).agg(n="count(*)")
    trend = minutes.over("user", order="window_start").add(before="lag(n)")
    shop.view("trend", trend)
    shop.view("jumps", trend.where("before < n").group_by("before", "n").agg(times="count(*)"))
    chain = chain_of(shop)
    assert [type(each.spec).__name__ for each in chain.operators if each.step is not None] == ["Over"]
    with open_log(shop.log, create=True) as log:
        log.create_topic("clicks", 2)
        for part in range(2):  # user u clicks u + 1 times in each minute, and twice as often in the second part
            for minute in range(part * 2, part * 2 + 2):
                at = BEGIN + timedelta(minutes=minute)
                log.append(
                    "clicks",
                    [of(u, at, user=u, at=at.isoformat()) for u in range(5) for _ in range((u + 1) * (part + 1))],
                )
            run(shop, spark=spark, once=True)
    run(shop, spark=spark, once=True, close=True)
    assert verify(shop, spark=spark).equal
    views = {name: set(view.to_polars().rows()) for name, view in shop.views.items()}
    assert views["jumps"] == {(u + 1, 2 * (u + 1), 1) for u in range(5)}
    found = sorted(shop.views["trend"].to_polars().select("user", "window_start", "n", "before").rows())
    assert [row[2:] for row in found if row[0] == 4] == [(5, None), (5, 5), (10, 5), (10, 10)]


def test_event_time_by_an_expression_is_the_same_where_records_are_read_and_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = Pipeline(
        "epoch",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "check"),
        buckets=1,
    )
    ticks = made.stream("ticks", "k long, ms long", time="timestamp_millis(ms) AS at", delay="10 seconds")
    per_minute = ticks.group_by(tumbling("at", "1 minute")).agg(n="count(*)", last="max(at)")
    made.view("closed", per_minute, emit="final")
    own = made.stream("own", "k long", time="_timestamp")
    made.view("owned", own.group_by(tumbling("_timestamp", "1 minute")).agg(n="count(*)"))
    begin = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def tick(second: int, unit: int = 1000) -> bytes:
        return b'{"k": 1, "ms": %d}' % ((int(begin.timestamp()) + second) * unit)

    wrong = [b'{"k": 1}', b'{"ms": 9223372036854775807}', b'{"ms": "x"}', tick(0, 1_000_000), tick(0)]
    with open_log(made.log, create=True) as log:
        log.create_topic("ticks")
        log.append("ticks", [Event(value) for value in (tick(0), tick(59), tick(130), *wrong)])
        log.create_topic("own")
        log.append("own", [Event(b'{"k": 1}', time=begin + timedelta(seconds=second)) for second in (1, 61, 62)])
    run(made, spark=spark, once=True)
    with open_reader(made.to) as store:
        (counted,) = (row for row in store.admission().to_pylist() if row["topic"] == "ticks")
        letters = store.dead_letters(made.name).to_pylist()
    assert {name: counted[name] for name in ("admitted", "malformed", "future", "late")} == {
        "admitted": 3, "malformed": 3, "future": 1, "late": 1,
    }  # fmt: skip
    assert "milliseconds" in next(letter["detail"] for letter in letters if letter["reason"] == "future")
    found = made.views["closed"].to_arrow().to_pylist()
    assert [(row["window_start"], row["n"], row["last"]) for row in found] == [
        (begin, 2, begin + timedelta(seconds=59))
    ]
    owned = sorted((row["window_start"], row["n"]) for row in made.views["owned"].to_arrow().to_pylist())
    assert owned == [(begin, 1), (begin + timedelta(minutes=1), 2)]
    assert verify(made, spark=spark).equal  # which decodes everything in Spark


def test_stored_queries_come_and_go_and_a_replay_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    shop = Pipeline(
        "alerts",
        log=f"sqlite:{tmp_path / 'log.db'}",
        to=f"sqlite:{tmp_path / 'views.db'}",
        checkpoint=str(tmp_path / "checkpoint"),
        buckets=4,
    )
    offers = shop.stream("offers", "id long, price decimal(9, 2), city string, title string, at timestamp", time="at")
    stored = shop.table("stored", "name string, owner string, condition string", key="name")
    met = offers.percolate(stored, "condition", "price decimal(9, 2), city string, title string")
    shop.view("met", met.select("id", "name", "owner"))
    shop.view("per_owner", met.group_by("owner", tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")

    def query(minute: int, name: str, condition: str | None = None) -> Event:
        value = {"name": name, "owner": name[0], "condition": condition}
        data = json.dumps(value).encode() if condition is not None else None
        return Event(data, key=name.encode(), time=BEGIN + timedelta(minutes=minute))

    def offer(number: int, minute: int, price: float, city: str, title: str) -> Event:
        said = BEGIN + timedelta(minutes=minute)
        return of(number, said, id=number, price=price, city=city, title=title, at=said.isoformat())

    cheap = "price < 9.50 AND city IN ('Oslo', 'Rome')"
    with open_log(shop.log, create=True) as log:
        log.create_topic("offers", 2)
        log.create_topic("stored", 2)
        log.append("stored", [query(0, "a1", cheap), query(0, "b1", "contains_words(title, 'red shoes')")])
        log.append("stored", [query(0, "c1", "color = 'red'"), query(0, "c2", "NOT " * 400 + "city = 'x'")])
        log.append("offers", [offer(1, 1, 9.49, "Oslo", "Shoes, RED"), offer(2, 1, 9.5, "Rome", "a hat")])
        run(shop, spark=spark, once=True)
        log.append("stored", [query(2, "a1"), query(2, "b1", "price >= 9.50"), query(2, "c1", "city LIKE 'R%'")])
        log.append("offers", [offer(3, 3, 9.5, "Rome", "red shoes"), offer(4, 3, 1, "Oslo", "a hat")])
        run(shop, spark=spark, once=True)
        log.append("stored", [query(3, "a1", cheap)])
        log.append("offers", [offer(5, 4, 2, "Rome", "x"), offer(6, 4, 20, "Oslo", "x")])
        run(shop, spark=spark, once=True, close=True)
    wanted = [(1, "a1"), (1, "b1"), (3, "b1"), (3, "c1"), (4, "a1"), (5, "a1"), (5, "c1"), (6, "b1")]
    assert sorted((row["id"], row["name"]) for row in shop.views["met"].to_polars().to_dicts()) == wanted
    checked = verify(shop, spark=spark)
    assert checked.equal, checked
    with open_reader(shop.to) as store:
        letters = store.dead_letters(shop.name).sort_by("detail").to_pylist()
    assert [row["reason"] for row in letters] == ["malformed", "malformed"]
    details = [row["detail"] for row in letters]
    assert [each[:50] for each in details] == [
        "condition: brackets and NOTs 33 deep; at most 32 a",
        "condition: no column color that a condition may us",
    ]
