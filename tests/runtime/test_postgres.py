"""A pipeline keeps its views in PostgreSQL: restarts, a server that restarts, the same rows as in SQLite, and reading them."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from millstream.errors import ViewError, ViewStoreUnavailable
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.testing import PostgresServer
from millstream.window import tumbling
from tests.runtime.shop_file import BEGIN, append_clicks

LONG = "a_view_whose_name_is_as_long_as_postgresql_lets_it_be_and_not"
"""61 characters: two views have it but for the last ones."""


def shop(label: str, folder: Path, to: str) -> Pipeline:
    made = Pipeline("shop", log=f"sqlite:{folder / 'log.db'}", to=to, checkpoint=str(folder / label), buckets=2)
    clicks = made.stream(
        "clicks", "user long, page string, amount double, at timestamp", time="at", delay="10 seconds", late="route"
    )
    by_page = clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)", total="sum(amount)")
    made.view("per_minute", by_page)
    made.view(f"{LONG}_1", clicks.group_by("user").agg(n="count(*)", pages="collect_set(page)", best="max(amount)"))
    made.view(f"{LONG}_2", by_page.select("page", "n"))  # without a key
    made.view("large", clicks.where("amount > 10").select("user", "at", "named_struct('p', page, 'a', amount) AS what"))
    return made


def outcome(made: Pipeline) -> dict[str, Any]:
    return {name: sorted(view.to_arrow().to_pylist(), key=repr) for name, view in made.views.items()}


def test_a_pipeline_in_postgresql_has_the_views_it_has_in_sqlite(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path
) -> None:
    address = f"{postgres.address}?schema=shop_{uuid.uuid4().hex}"
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("clicks", 2)
    pipelines = [shop("postgres", tmp_path, address), shop("sqlite", tmp_path, f"sqlite:{tmp_path / 'views.db'}")]
    for first, count in ((0, 200), (200, 150)):
        append_clicks(tmp_path, first, count)
        for made in pipelines:
            run(made, spark=spark, once=True, rate_limit=100)
        postgres.restart()
    verified = verify(pipelines[0], spark=spark)
    assert verified.equal, verified
    assert verified.records == 350
    assert outcome(pipelines[0]) == outcome(pipelines[1])

    # planted: a row that the log does not give
    with psycopg.connect(postgres.address) as db:
        db.execute(f"UPDATE {address.partition('=')[2]}.per_minute SET n = n + 1 WHERE page = 'a'")
    assert not verify(pipelines[0], spark=spark).equal

    view = pipelines[0].views["per_minute"]
    row = view.get("b", BEGIN)
    assert row is not None
    assert row == pipelines[1].views["per_minute"].get("b", BEGIN)
    assert view.to_polars().filter(page="b", window_start=BEGIN)["total"].to_list() == [row["total"]]
    assert len(view.to_pandas()) == view.to_arrow().num_rows


def test_a_server_that_is_away_when_a_run_starts_is_waited_for(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Pipeline("late", log=f"sqlite:{tmp_path / 'log.db'}", checkpoint=str(tmp_path / "check"), buckets=1)
    made.to = f"{postgres.address}?schema=late_{uuid.uuid4().hex}"
    made.view("v", made.stream("clicks", "user long").group_by().agg(n="count(*)"))
    with open_log(made.log) as log:
        log.create_topic("clicks", 1)
    append_clicks(tmp_path, 0, 5)
    said: list[str] = []
    stop = threading.Event()

    def watch(progress: Progress) -> None:
        said.append(progress.waiting)
        if len(said) == 2:
            postgres.start()
        if progress.batch is not None:
            stop.set()

    postgres.stop()
    try:
        with monkeypatch.context() as patched:
            patched.setattr("millstream.runtime.phases.course.PATIENCE", 1.0)  # which is a minute
            with pytest.raises(ViewStoreUnavailable):
                run(made, spark=spark, once=True)
        run(made, spark=spark, progress=watch, stop=stop)
    finally:
        if len(said) < 2:
            postgres.start()
    assert [text.partition(":")[0] for text in said[:2]] == ["views"] * 2
    assert said[-1] == ""
    assert made.views["v"].to_arrow().to_pylist() == [{"n": 5}]


def test_a_server_that_refuses_us_when_a_run_starts_is_an_error_at_once(
    spark: SparkSession, own_postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(own_postgres.address, autocommit=True) as db:
        db.execute("CREATE ROLE bob LOGIN PASSWORD 'right'")
        db.execute("GRANT CREATE ON DATABASE postgres TO bob")
        ((rules,),) = db.execute("SHOW hba_file").fetchall()
    rule = "host all {} 127.0.0.1/32 {}\n"
    Path(rules).write_text(rule.format("bob", "scram-sha-256") + rule.format("millstream", "trust"))
    own_postgres.restart()
    log = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("clicks", 1)
    append_clicks(tmp_path, 0, 5)

    def counted(who: str, database: str) -> Pipeline:
        to = f"postgresql://{who}@127.0.0.1:{own_postgres.port}/{database}?schema=let"
        made = Pipeline("let", log=log, to=to, checkpoint=str(tmp_path / "check"), buckets=1)
        made.view("v", made.stream("clicks", "user long").group_by().agg(n="count(*)"))
        return made

    stop = threading.Event()
    said: list[str] = []

    def watch(progress: Progress) -> None:
        said.append(progress.waiting)
        stop.set()

    for who, database, password, why, hint in [
        ("bob", "postgres", "wrong", 'password authentication failed for user "bob"', "PGPASSWORD"),
        ("bob", "postgres", "", "no password supplied", "PGPASSWORD"),
        ("millstream", "gone", "", 'database "gone" does not exist', "CREATE DATABASE"),
        ("ann", "postgres", "", "no pg_hba.conf entry", "pg_hba.conf"),
    ]:
        monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(ViewError, match=why) as caught:
            run(counted(who, database), spark=spark, progress=watch, stop=stop)
        assert hint in (caught.value.hint or "")
        assert said == [], "it was not waited for"
    monkeypatch.setenv("PGPASSWORD", "right")
    made = counted("bob", "postgres")
    run(made, spark=spark, once=True)
    assert made.views["v"].to_arrow().to_pylist() == [{"n": 5}]
