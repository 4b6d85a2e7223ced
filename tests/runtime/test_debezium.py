"""Tables of Debezium's changes as whole runs: on both engines, beside a trial, replayed, as of a time, and their history."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream import Debezium, Pipeline, Registry
from millstream.errors import PlanError
from millstream.event import Event
from millstream.log import open_log
from millstream.relation.clauses import Subject
from millstream.relation.nodes import source_of
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.sql.statement import load_script
from millstream.testing import KafkaBroker, Trial
from tests.contracts.log import name
from tests.debezium_avro import AvroConverter, key_schema, value_schema
from tests.runtime.shop_file import admission
from tests.schema_registry import SchemaRegistry
from tests.testing.test_against_spark import assert_a_run_gives_the_same

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
COLUMNS = "id long, email string, score double, seen timestamp"
AVRO = {"id": "long", "email": ["null", "string"], "score": ["null", "double"], "seen": ["null", "string"]}
Row = dict[str, Any]


class Connector:
    """What a connector writes for PostgreSQL: a number for each change, a tombstone behind each delete; JSON with or without schemas, or Avro."""

    def __init__(self, chance: random.Random, *, wrapped: bool = False, registry: SchemaRegistry | None = None) -> None:
        self._chance, self._wrapped = chance, wrapped
        self._avro = None
        if registry is not None:
            self._avro = (
                AvroConverter(registry, "users-key", key_schema({"id": "long"})),
                AvroConverter(registry, "users-value", value_schema(AVRO)),
            )
        self.rows: dict[int, Row] = {}
        self.sent: list[list[Event]] = []

    def upsert(self, row: Row, at: datetime = NOON, op: str | None = None) -> list[Event]:
        """A row that came or changed."""
        before, self.rows[row["id"]] = self.rows.get(row["id"]), row
        return self._change(row["id"], op or ("u" if before else "c"), before, row, at)

    def delete(self, key: int, at: datetime = NOON) -> list[Event]:
        """A row that went; only its key is known."""
        before = {"id": key, "email": "", "score": 0, "seen": None}
        del self.rows[key]
        made = self._change(key, "d", before, None, at)
        made.append(Event(None, made[0].key, time=at))
        return made

    def move(self, key: int, to: int, at: datetime = NOON) -> list[Event]:
        """A row whose key changed."""
        row = self.rows[key] | {"id": to}
        return self.delete(key, at) + self.upsert(row, at, "c")

    def any(self, at: datetime = NOON) -> list[Event]:
        """Some change."""
        keys, what = list(self.rows), self._chance.random()
        if keys and what < 0.25:
            return self.delete(self._chance.choice(keys), at)
        if keys and what < 0.35:
            return self.move(self._chance.choice(keys), 50 + self._chance.randrange(5), at)
        row = {
            "id": self._chance.randrange(9),
            "email": self._chance.choice(["a@x", "ü😀", None]),
            "score": self._chance.randrange(99) / 8,
        }
        return self.upsert({**row, "seen": at.isoformat()}, at)

    def _change(self, key: int, op: str, before: Row | None, after: Row | None, at: datetime) -> list[Event]:
        source = {"connector": "postgresql", "snapshot": "false", "lsn": 1000 + 8 * len(self.sent), "table": "users"}
        envelope: Any = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 17, "transaction": None}
        name: Any = {"id": key}
        if self._avro is not None:
            source |= {"version": "3", "name": "shop", "ts_ms": 5, "db": "shop", "schema": "public"}
            named, written = self._avro
            self.sent.append([Event(written(envelope), named(name), time=at)])
            return list(self.sent[-1])
        if self._wrapped:
            field = {"type": "struct", "fields": [{"field": "id"}, {"field": "seen"}], "field": "after"}
            envelope = {"schema": {"type": "struct", "fields": [field]}, "payload": envelope}
            name = {"schema": {"type": "struct"}, "payload": name}
        self.sent.append([Event(json.dumps(envelope).encode(), json.dumps(name).encode(), time=at)])
        return list(self.sent[-1])


def shop(label: str, folder: Path, log: str, topic: str = "users", **options: Any) -> Pipeline:
    made = Pipeline(label, log=log, to=f"sqlite:{folder / label}.db", checkpoint=str(folder / label), buckets=2)
    users = made.table("users", COLUMNS, key="id", topic=topic, **{"codec": "debezium", **options})
    made.view("people", users)
    made.view("domains", users.group_by("split_part(email, '@', 2) AS domain").agg(n="count(*)", s="sum(score)"))
    return made


def people(connector: Connector) -> list[tuple[Any, ...]]:
    """The rows that a database has, as the view does."""
    return sorted(
        (row["id"], row["email"], float(row["score"]), datetime.fromisoformat(row["seen"]))
        for row in connector.rows.values()
    )


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    made = SchemaRegistry()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("engine", "form"), [("sqlite", "wrapped"), ("kafka", "plain"), ("sqlite", "avro"), ("kafka", "avro")]
)
def test_a_table_of_changes_is_the_table_of_the_database_on_both_engines(
    engine: str,
    form: str,
    spark: SparkSession,
    registry: SchemaRegistry,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    broker: KafkaBroker | None = request.getfixturevalue("kafka") if engine == "kafka" else None
    url = broker.url if broker else f"sqlite:{tmp_path / 'log.db'}"
    in_avro = registry if form == "avro" else None
    connector = Connector(random.Random(3), wrapped=form == "wrapped", registry=in_avro)
    with open_log(url) as log:
        topic = log.create_topic(name(), 2).name
        codec = Debezium(registry.url) if in_avro else "debezium"
        made = shop(f"users-{engine}", tmp_path, url, topic, codec=codec)
        for _ in range(2):
            log.append(topic, [event for _ in range(120) for event in connector.any()])
            log.append(topic, [Event(b"nonsense", b"1"), Event(b'{"op":"t"}')])
            run(made, spark=spark, once=True, rate_limit=120)
            assert sorted(made.views["people"].to_polars().rows()) == people(connector)
    verified = verify(made, spark=spark)
    assert verified.equal, verified
    assert sum(row["malformed"] for row in admission(made)) == 4


@pytest.mark.parametrize("form", ["json", "avro"])
def test_changes_that_are_sent_again_change_nothing(
    form: str, spark: SparkSession, registry: SchemaRegistry, kafka: KafkaBroker, tmp_path: Path
) -> None:
    codec = Debezium(registry.url) if form == "avro" else "debezium"
    for label, url in (("kafka", kafka.url), ("sqlite", f"sqlite:{tmp_path / 'log.db'}")):
        chance = random.Random(4)
        connector = Connector(chance, registry=registry if form == "avro" else None)
        changes = [connector.any() for _ in range(150)]
        with open_log(url) as log:
            topic = log.create_topic(name(), 2).name
            exact, naive = (
                shop(f"{each}-{label}", tmp_path, url, topic, deduplicate=each == "exact", codec=codec)
                for each in ("exact", "naive")
            )
            log.append(topic, [event for change in changes for event in change])
            run(exact, spark=spark, once=True, rate_limit=150)
            run(naive, spark=spark, once=True)
            again = [event for change in changes[40:149] for event in change]  # and there the connector fails once more
            log.append(topic, again)
            for pipeline in (exact, naive):
                run(pipeline, spark=spark, once=True, rate_limit=150)
            assert sorted(exact.views["people"].to_polars().rows()) == people(connector)
            assert sorted(naive.views["people"].to_polars().rows()) != people(connector), "nothing went back: no proof"
            assert sum(row["duplicate"] for row in admission(exact)) == len(again)
            log.append(topic, changes[149])
            run(exact, spark=spark, once=True)
            assert sorted(exact.views["people"].to_polars().rows()) == people(connector)
            verified = verify(exact, spark=spark)
            assert verified.equal, verified


def trial_shop(codec: str | Debezium = "debezium") -> Pipeline:
    pipeline = Pipeline("people")
    users = pipeline.table("users", COLUMNS, key="id", codec=codec, deduplicate=True)
    looks = pipeline.stream("looks", "user long, at timestamp", time="at", delay="1 hour")
    pipeline.view("now", users)
    pipeline.view("were", users.history())
    pipeline.view("then", looks.join(users, on="user = id", as_of="at").select("user", "at", "email", "score"))
    return pipeline


@pytest.mark.parametrize("form", ["json", "avro"])
def test_history_and_joins_as_of_a_time_go_by_the_time_of_the_record(
    form: str, spark: SparkSession, registry: SchemaRegistry, tmp_path: Path, trial: Callable[..., Trial]
) -> None:
    made = partial(trial_shop, Debezium(registry.url)) if form == "avro" else trial_shop
    chance, ours = random.Random(11), trial(made(), partitions=2)
    connector = Connector(chance, registry=registry if form == "avro" else None)
    times = [NOON + timedelta(seconds=10 * i) for i in range(90)]
    for time in times:
        ours.feed("users", connector.any(time), at=time)
    ours.feed("users", [event for change in connector.sent[60:] for event in change], at=times[-1])
    looks: list[Row] = [
        {"user": chance.randrange(9), "at": NOON + timedelta(seconds=chance.randrange(900))} for _ in range(60)
    ]
    ours.feed("looks", looks)
    assert_a_run_gives_the_same(ours, made, spark, tmp_path)
    assert ours.counts("users")["duplicate"] >= 30
    rows, then = ours.rows("were"), ours.rows("then")
    at = [
        (look["user"], look["at"], row["email"], row["score"])
        for look in looks
        for row in rows
        if row["id"] == look["user"] and row["valid_from"] <= look["at"]
        if row["valid_to"] is None or look["at"] < row["valid_to"]
    ]
    assert sorted(map(repr, at)) == sorted(repr((row["user"], row["at"], row["email"], row["score"])) for row in then)
    assert len(at) > 15
    assert (
        {row["id"] for row in rows if row["valid_to"] is None}
        == set(connector.rows)
        == {row["id"] for row in ours.rows("now")}
    )


def test_a_trial_writes_envelopes(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    ours = trial(trial_shop())
    ours.feed(
        "users", [{"id": 1, "email": "a", "seen": NOON}, {"id": 2, "email": "b"}, {"id": 1, "email": "c"}], at=NOON
    )
    ours.delete("users", [{"id": 2}, {"id": 3}])
    ours.feed(
        "users",
        [b'{"op":"t","source":{}}', b'{"id":4}', b'{"op":"u","after":{"id":1,"email":"__debezium_unavailable_value"}}'],
    )
    ours.feed("looks", [{"user": 1, "at": NOON}])
    assert [(row["id"], row["email"]) for row in ours.rows("now")] == [(1, "c")]
    details = [row["detail"] for row in ours.rejected("users")]
    assert [
        part
        for detail, part in zip(
            details, ("TRUNCATE", "rows by themselves are codec json", "REPLICA IDENTITY FULL"), strict=True
        )
        if part not in detail
    ] == []
    with open_log(ours.log) as log:
        (first, *_, tombstone) = log.read("users", 0, 0, 7)
    assert json.loads(first.value or b"")["after"]["email"] == "a"
    assert tombstone.value is None
    assert_a_run_gives_the_same(ours, trial_shop, spark, tmp_path)


def test_a_table_gets_a_column_and_another_converter_while_it_is_read(registry: SchemaRegistry) -> None:
    pipeline = Pipeline("people")
    users = pipeline.table("users", "id long, email string, p decimal(12, 2)", key="id", codec=Debezium(registry.url))
    pipeline.view("now", users)
    first = AvroConverter(registry, "users-value", value_schema({"id": "long", "email": ["null", "string"]}))
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    columns = {"id": "long", "email": ["null", "string"], "p": ["null", decimal], "more": ["null", "double"]}
    second = AvroConverter(registry, "users-value", value_schema(columns))
    key = AvroConverter(registry, "users-key", key_schema({"id": "long"}))
    source = {"version": "3", "connector": "postgresql", "name": "shop", "ts_ms": 5, "db": "shop", "schema": "s", "table": "t"}  # fmt: skip

    def change(write: AvroConverter, **row: Any) -> Event:
        envelope = {"before": None, "after": row, "op": "c", "source": source, "ts_ms": 17, "transaction": None}
        return Event(write(envelope), key({"id": row["id"]}))

    with Trial(pipeline) as trial:
        trial.feed("users", [change(first, id=each, email="ü") for each in (1, 2, 3)])
        trial.feed("users", [change(second, id=2, email="b", p=Decimal("-7.50"), more=float("nan"))])
        trial.feed("users", [Event(None, key({"id": 3})), Event(b'{"op":"c","after":{"id":4,"p":1.5}}', b"4")])
        cut = change(second, id=5)
        trial.feed("users", [cut._replace(value=(cut.value or b"")[:-9]), Event(b"\0\0", b"5")])
        assert [tuple(row.values()) for row in trial.rows("now")] == [
            (1, "ü", None),
            (2, "b", Decimal("-7.50")),
            (4, None, Decimal("1.50")),
        ]
        details = [row["detail"].partition("): ")[2] for row in trial.rejected("users")]
        assert details == [f"not what schema id {second.number} says", "cut off: no id of a schema"]


SQL = """
CREATE TABLE users (id BIGINT PRIMARY KEY, email STRING) WITH (format = 'debezium', topic = 'shop.public.users', deduplicate = true);
CREATE VIEW mails AS SELECT email, count(*) AS n FROM users GROUP BY email;
"""


def test_sql_and_python_say_the_same() -> None:
    pipeline = Pipeline("shop")
    users = pipeline.table(
        "users", "id BIGINT, email STRING", key="id", topic="shop.public.users", codec="debezium", deduplicate=True
    )
    pipeline.view("mails", users.group_by("email").agg(n="count(*)"))
    assert load_script(SQL, "shop.sql", "shop").fingerprint() == pipeline.fingerprint()
    plain = load_script(SQL.replace("'debezium'", "'json'").replace(", deduplicate = true", ""), "shop.sql", "shop")
    once = load_script(SQL.replace(", deduplicate = true", ""), "shop.sql", "shop")
    assert len({each.fingerprint() for each in (pipeline, plain, once)}) == 3


IN_AVRO = SQL.replace(
    "'debezium',",
    "'debezium', registry = 'http://one:8081', registry.user = 'ann', registry.password = '${env:REGISTRY_PASSWORD}',",
)


def test_sql_says_the_registry_as_python_does() -> None:
    pipeline = Pipeline("shop")
    registry = Registry("http://one:8081", user="ann", password="${env:REGISTRY_PASSWORD}")
    users = pipeline.table(
        "users",
        "id BIGINT, email STRING",
        key="id",
        topic="shop.public.users",
        codec=Debezium(registry),
        deduplicate=True,
    )
    pipeline.view("mails", users.group_by("email").agg(n="count(*)"))
    loaded = load_script(IN_AVRO, "shop.sql", "shop")
    subjects = [source_of(each.tables["users"].node).subject for each in (loaded, pipeline)]
    assert subjects[0] == subjects[1] == Subject("http://one:8081", "", "ann", "${env:REGISTRY_PASSWORD}")
    elsewhere = load_script(IN_AVRO.replace("one:8081", "two:8081"), "shop.sql", "shop")
    assert loaded.fingerprint() == pipeline.fingerprint() == elsewhere.fingerprint()
    assert loaded.fingerprint() != load_script(SQL, "shop.sql", "shop").fingerprint()
    for wrong, why in (
        (IN_AVRO.replace("'debezium'", "'json'"), "format = 'debezium' and a registry belong together"),
        (IN_AVRO.replace("registry = 'http://one:8081', ", ""), "format = 'debezium' and a registry belong together"),
        (IN_AVRO.replace("http://one", "one"), "expected http://HOST:PORT"),
        (IN_AVRO.replace("${env:REGISTRY_PASSWORD}", "secret"), "a secret must not stand"),
    ):
        with pytest.raises(PlanError) as caught:
            load_script(wrong, "shop.sql", "shop")
        assert why in caught.value.message


def refused(define: Callable[[Pipeline], object]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        define(Pipeline("shop"))
    return caught.value


def test_what_makes_no_sense_is_refused_where_it_is_said() -> None:
    stream = refused(lambda p: p.stream("users", "id long", codec="debezium"))
    assert "changes of a database replace each other" in stream.message
    assert ".history()" in stream.hint
    plain = refused(lambda p: p.table("users", "id long", key="id", deduplicate=True))
    assert "found codec json" in plain.message
    assert 'codec="debezium"' in plain.hint
