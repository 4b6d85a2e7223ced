"""Headers in expressions: on both engines, in Python and SQL, as Spark's own source reads them, and in trials; not read where none is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream import Pipeline
from millstream.errors import NeedsSpark, PlanError
from millstream.event import Event
from millstream.log import open_log
from millstream.plan.prune_columns import reads_headers
from millstream.runtime.run import run
from millstream.runtime.setup import chain_of
from millstream.runtime.verify import verify
from millstream.sql.statement import load_script
from millstream.testing import Trial
from tests.contracts.log import name
from tests.testing.test_against_spark import assert_a_run_gives_the_same

EVENTS = [
    Event(b'{"n": 1}', b"a", headers=(("kind", b"order"), ("trace", b"x"))),
    Event(b'{"n": 2}', b"b", headers=(("kind", b"order"), ("kind", b"refund"))),
    Event(b'{"n": 3}', b"c"),
    Event(b'{"n": 4}', b"d", headers=(("kind", "ü😀".encode()), ("Kind", b"other"))),
    Event(b'{"n": 5}', b"e", headers=(("kind", b"\xff"),)),
    Event(b"nonsense", b"f", headers=(("kind", b"order"),)),
]
WANTED = [(1, "order", None), (2, "refund", None), (3, None, None), (4, "ü😀", "other"), (5, "�", None)]


def made(label: str, folder: Path, log: str, topic: str) -> Pipeline:
    pipeline = Pipeline(label, log=log, to=f"sqlite:{folder / label}.db", checkpoint=str(folder / label), buckets=2)
    events = pipeline.stream("events", "n long", topic=topic)
    pipeline.view("kinds", events.select("n", "_headers['kind'] AS kind", "_headers['Kind'] AS other"))
    pipeline.view(
        "counts",
        events.where("_headers['kind'] IS NOT NULL").group_by("element_at(_headers, 'kind') AS k").agg(n="count(*)"),
    )
    return pipeline


@pytest.mark.parametrize("engine", ["sqlite", "kafka"])
def test_the_last_header_of_a_name_is_text_in_a_map(
    engine: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue("kafka").url if engine == "kafka" else f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as log:
        topic = log.create_topic(name(), 1).name
        log.append(topic, EVENTS)
    pipeline = made(f"headers-{engine}", tmp_path, url, topic)
    run(pipeline, spark=spark, once=True)
    rows = pipeline.views["kinds"].to_polars().select("n", "kind", "other").rows()
    assert sorted(rows) == WANTED
    verified = verify(pipeline, spark=spark)
    assert verified.equal, verified
    assert verified.records == len(EVENTS)


def test_a_trial_has_them_too(spark: SparkSession, tmp_path: Path, trial: Callable[..., Trial]) -> None:
    def define() -> Pipeline:
        pipeline = Pipeline("headers")
        events = pipeline.stream("events", "n long")
        pipeline.view("kinds", events.select("n", "_headers['kind'] AS kind", "upper(_headers['Kind']) AS other"))
        pipeline.view(
            "counts", events.where("_headers['kind'] <> 'x'").group_by("_headers['kind'] AS k").agg(n="count(*)")
        )
        return pipeline

    odd = Pipeline("odd")
    odd.view("all", odd.stream("events", "n long").select("n", "map_keys(_headers) AS names"))
    with pytest.raises(NeedsSpark, match="_headers"):
        trial(odd)
    ours = trial(define())
    with pytest.raises(NeedsSpark):  # what no text is becomes one in Spark
        ours.feed("events", EVENTS[4:5])
    ours = trial(define())
    ours.feed("events", [*EVENTS[:4], EVENTS[5]])
    found = sorted((row["n"], row["kind"], row["other"] and row["other"].lower()) for row in ours.rows("kinds"))
    assert found == WANTED[:4]
    assert_a_run_gives_the_same(ours, define, spark, tmp_path)


def test_sql_names_them_as_python_does_and_only_who_names_them_reads_them() -> None:
    query = "SELECT n, _headers['kind'] AS kind FROM events"
    script = "CREATE STREAM events (n long); CREATE VIEW kinds AS "
    ours = Pipeline("p")
    ours.view("kinds", ours.stream("events", "n long").select("n", "_headers['kind'] AS kind"))
    assert load_script(f"{script}{query}", "p.sql", "p").fingerprint() == ours.fingerprint()
    plain = load_script(f"{script}SELECT n, _key AS kind FROM events", "p.sql", "p")
    assert [reads_headers(chain_of(each).feeds) for each in (ours, plain)] == [True, False]


def test_a_map_is_no_key_and_the_name_is_taken() -> None:
    pipeline: Any = Pipeline("p")
    events = pipeline.stream("events", "n long")
    with pytest.raises(PlanError, match="maps are neither ordered nor compared"):
        pipeline.view("all", events.group_by("_headers AS h").agg(n="count(*)"))
    with pytest.raises(PlanError, match="_headers"):
        pipeline.stream("others", "_headers string")
