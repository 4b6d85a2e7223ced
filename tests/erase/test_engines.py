"""Erased records on Spark, from both logs and by both ways of decoding; and an erasure whose views are in PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from millstream import Event, Pipeline
from millstream.codec import Avro
from millstream.erase.blank import Eraser, Wish, blank_topic
from millstream.erase.form import forms_of
from millstream.erase.pseudonym import Pseudonyms, new_key
from millstream.erase.request import request, sources_in
from millstream.erase.run import erase
from millstream.log import open_log
from millstream.log.embedded.engine import SqliteLog
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.store import open_reader
from millstream.testing import KafkaBroker, PostgresServer
from tests.contracts.log import name
from tests.erase.test_blank import ANN, CLICKS, SCHEMA
from tests.erase.test_run import ANN as CANARY
from tests.erase.test_run import bytes_below, rows, without_ann
from tests.erase.world import MAIL, NAME, USER, define, fill, live

ROOT = Path(__file__).parent.parent.parent


def pipeline_of(log: str, folder: Path, topic: str, codec: Any, **more: Any) -> Pipeline:
    made = Pipeline("clicks", log=log, to=f"sqlite:{folder}/views.db", checkpoint=str(folder / "check"), buckets=1)
    clicks = made.stream(
        "clicks", "user string, email string, n long, at timestamp", topic=topic, time="at", codec=codec,
        subject={"user": "user"}, personal="email", **more,
    )  # fmt: skip
    made.view("shares", clicks.select("user", "email", "10 / coalesce(n, 0) AS share"))
    return made


def admission(pipeline: Pipeline) -> dict[str, int]:
    with open_reader(pipeline.to) as store:
        (row,) = store.admission("clicks").to_pylist()
    return {each: row[each] for each in ("records", "admitted", "late", "malformed", "erased", "duplicate")}


def values(codec: Any) -> list[bytes]:
    if codec == "json":
        return [json.dumps(row).encode() for row in CLICKS]
    from datetime import datetime

    avro = Avro(json.loads(SCHEMA))
    return [avro.encode(row | {"at": datetime.fromisoformat(row["at"].replace("Z", "+00:00"))}) for row in CLICKS]


def judged(folder: Path, codec: str, spark: SparkSession | None) -> dict[str, Any]:
    """What Spark makes of a log with erased records, and whether it is the same however they are decoded."""
    pipeline = pipeline_of(f"sqlite:{folder}/log.db", folder, "clicks", codec)
    with SqliteLog(folder / "log.db") as log:
        log.create_topic("clicks")
        log.append("clicks", [Event(value, key=b"k%d" % number) for number, value in enumerate(values(codec))])
        eraser = Eraser(forms_of(sources_in([pipeline]))["clicks"], (Wish(ANN),), Pseudonyms(new_key()))
        blank_topic(log, "clicks", eraser)
    run(pipeline, spark=spark, once=True)
    users = {row["user"] for row in pipeline.views["shares"].to_arrow().to_pylist()}
    return {**admission(pipeline), "users": sorted(users), "equal": verify(pipeline, spark=spark).equal}


AS_IN_A_TRIAL = {
    "records": 6, "admitted": 2, "late": 2, "malformed": 0, "erased": 2, "duplicate": 0, "users": ["bob"], "equal": True,
}  # fmt: skip


def test_spark_judges_erased_records_as_a_trial_does(tmp_path: Path, spark: SparkSession) -> None:
    assert judged(tmp_path, "json", spark) == AS_IN_A_TRIAL


def test_spark_judges_erased_records_of_avro_alike(tmp_path: Path) -> None:
    code = (
        "import json, pathlib, sys; from millstream.spark.session import stop_session;"
        " from tests.erase.test_engines import SCHEMA, judged;"
        " print(json.dumps(judged(pathlib.Path(sys.argv[1]), SCHEMA, None))); stop_session()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == AS_IN_A_TRIAL


def test_erased_records_that_a_copy_has_brought_to_kafka_are_judged_alike(
    tmp_path: Path, spark: SparkSession, kafka: KafkaBroker
) -> None:
    topic = name("erased")
    pipeline = pipeline_of(kafka.url, tmp_path, topic, "json")
    form = forms_of(sources_in([pipeline]))[topic]
    eraser = Eraser(form, (Wish(ANN),), Pseudonyms(new_key()))
    with open_log(kafka.url) as log:
        log.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, value in enumerate(values("json")):
        left = eraser.of(None, value, str(number))
        producer.produce(topic, value if left is None else left.value, None if left is None else left.key)
    producer.produce(topic, b'{"user": "eve", "n": 1, "at": "2026-01-01T12:09:00Z"}', b"millstream.erased." + b"0" * 32)
    producer.flush()
    run(pipeline, spark=spark, once=True)
    found = admission(pipeline)
    assert (found["records"], found["admitted"], found["erased"], found["late"]) == (7, 3, 2, 2), (
        "a key alone does not tell"
    )
    assert verify(pipeline, spark=spark).equal


def test_views_in_postgresql_are_written_anew(tmp_path: Path, spark: SparkSession, postgres: PostgresServer) -> None:
    shop = live(tmp_path, spark, f"{postgres.address}?schema={name('erase').replace('-', '_').lower()}")
    before = rows(shop)
    request([shop], CANARY)
    assert shop.views["per_user"].get(USER) is None
    with open_reader(shop.to, hides=True) as store:
        assert len(store.query("SELECT user_id FROM per_user").rows) == len(before["per_user"]) - 1
    done = erase([shop], spark=spark)
    assert rows(shop) == without_ann(before)
    found = {each.place for each in done.certificate.looked if each.before}
    versions = {
        f"view {view}{version}, by its columns" for view in ("per_user", "named") for version in ("", "~old", "~next")
    }
    assert found >= versions
    tables = {each.rpartition(", table ")[2] for each in found if each.startswith("views postgresql")}
    assert tables >= {"millstream_dead_letters", "millstream_hidden"}
    assert len(tables) >= 8, "six tables of views besides"
    assert done.certificate.places_after == 0
    assert any("write-ahead log, replicas" in each for each in done.certificate.not_covered)
    assert verify(shop, spark=spark).equal


@pytest.mark.parametrize("step", ["erase.blank.after_step", "rebuild.after_swap"])
def test_one_that_was_killed_goes_on_to_the_same_end(step: str, tmp_path: Path, spark: SparkSession) -> None:
    fill(tmp_path)
    shop = define(tmp_path)
    run(shop, spark=spark, once=True)
    before = rows(shop)
    file = tmp_path / "shop.py"
    file.write_text(
        f"from pathlib import Path\nfrom tests.erase.world import define\nshop = define(Path({str(tmp_path)!r}))\n"
    )
    request([shop], CANARY)
    command = [sys.executable, "-c", "from millstream.cli import main; main()", "erase", "run", str(file), "--json"]
    settings = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "MILLSTREAM_FAILPOINT": f"{step}:kill"}
    killed = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    del settings["MILLSTREAM_FAILPOINT"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["before"] > 5
    assert told["after"] == 0
    assert rows(shop) == without_ann(before)
    assert all(text.encode() not in bytes_below(tmp_path) for text in (USER, MAIL, NAME))
