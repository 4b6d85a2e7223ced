"""A pipeline and plain Spark behind SASL over TLS: what writes, reads, administers and verifies takes the same settings."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from millstream.errors import ConfigError, NotAllowed
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import Progress, run
from millstream.runtime.verify import verify
from millstream.spark.read import read_batch, read_stream
from millstream.testing import KafkaBroker
from tests.contracts.log import name
from tests.token_endpoint import TokenEndpoint
from tests.waiting import until


def doors(broker: KafkaBroker) -> dict[str, tuple[str, dict[str, str]]]:
    """The address of each door, and the settings of who may come in."""
    secured = broker.secured
    scram = secured.client("SCRAM-SHA-256")
    return {
        "PLAIN": (broker.url, secured.client("PLAIN")),
        "SCRAM by Java's names": (
            broker.url,
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": scram["ssl.ca.location"],
                "sasl.username": scram["sasl.username"],
                "sasl.password": scram["sasl.password"],
            },
        ),
        "certificates": (f"kafka://127.0.0.1:{secured.certified}", secured.certified_client()),
    }


def fill(address: str, settings: dict[str, str]) -> str:
    topic = name()
    with open_log(address, kafka=settings) as log:
        log.create_topic(topic, 2)
        log.append(topic, [Event(json.dumps({"id": number}).encode(), b"%d" % number) for number in range(40)])
    return topic


@pytest.mark.parametrize("door", ["SCRAM by Java's names", "certificates"])
def test_a_pipeline_runs_is_verified_and_sends_its_changes_behind_every_door(
    door: str, secured_kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address, settings = doors(secured_kafka)[door]
    topic, changes = fill(address, settings), name()
    places = {"to": f"sqlite:{tmp_path / 'v.db'}", "checkpoint": str(tmp_path / "c")}
    made = Pipeline("shop", log=address, kafka=settings, buckets=2, **places)  # type: ignore[arg-type]
    clicks = made.stream("clicks", "id int", topic=topic)
    parity = made.view("parity", clicks.select("id % 2 AS odd").group_by("odd").agg(n="count(*)"))
    made.sink("log", parity, f"topic:{changes}")
    run(made, spark=spark, once=True)
    assert sorted(made.views["parity"].to_polars().rows()) == [(0, 20), (1, 20)]
    verified = verify(made, spark=spark)
    assert verified.equal, verified
    assert verified.records == 40
    with open_log(address, kafka=settings) as log, log.reader(changes) as reader:
        assert len(reader.poll(timeout=10)) == 2
    secret = secured_kafka.secured
    words = [(secret.folder / "password").read_text(), (secret.folder / "client.key").read_text().splitlines()[1]]
    said = "".join(capfd.readouterr()) + "".join(
        each.read_text(errors="replace") for each in tmp_path.rglob("*") if each.is_file()
    )
    assert [word for word in words if word in said] == []


@pytest.mark.parametrize("door", ["PLAIN", "SCRAM by Java's names", "certificates"])
def test_plain_spark_reads_behind_every_door_by_both_clients(
    door: str, secured_kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    address, settings = doors(secured_kafka)[door]
    topic = fill(address, settings)
    assert read_batch(spark, address, topic, kafka=settings).count() == 40, "by Spark's own client"
    options = {f"kafka.{each}": value for each, value in settings.items()}
    options |= {"kafka.bootstrap.servers": address.removeprefix("kafka://"), "subscribe": topic}
    assert spark.read.format("millstream-kafka").options(**options).load().count() == 40
    found: list[int] = []
    query = (
        spark.readStream.format("millstream-kafka")
        .options(**options, startingOffsets="earliest")
        .load()
        .writeStream.foreachBatch(lambda frame, _: found.append(frame.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sum(found) == 40


@pytest.mark.timeout(400)
def test_a_pipeline_with_tokens_goes_on_when_they_expire_and_is_verified_by_sparks_client(
    secured_kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2-canary")
    with TokenEndpoint(secured_kafka.secured, "hunter2-canary", seconds=6) as tokens:
        settings = tokens.client("${env:SECRET}")
        topic, changes = fill(secured_kafka.url, settings), name()
        places = {"to": f"sqlite:{tmp_path / 'v.db'}", "checkpoint": str(tmp_path / "c")}
        made = Pipeline("shop", log=secured_kafka.url, kafka=settings, buckets=2, **places)  # type: ignore[arg-type]
        clicks = made.stream("clicks", "id int", topic=topic)
        made.sink(
            "log",
            made.view("parity", clicks.select("id % 2 AS odd").group_by("odd").agg(n="count(*)")),
            f"topic:{changes}",
        )
        stop, seen, ended = threading.Event(), list[Progress](), list[Progress | BaseException]()

        def live() -> None:
            try:
                ended.append(run(made, spark=spark, progress=seen.append, stop=stop))
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=live)
        thread.start()
        try:
            until(lambda: ended or (seen and seen[-1].records == 40), timeout=120)
            time.sleep(10)  # longer than a token holds, and so a session with the broker
            with open_log(secured_kafka.url, kafka=settings) as log:
                log.append(topic, [Event(b'{"id": 1}')])
            until(lambda: ended or seen[-1].records == 41, timeout=120)
        finally:
            stop.set()
            thread.join(120)
        assert isinstance(ended[0], Progress), ended
        assert sorted(made.views["parity"].to_polars().rows()) == [(0, 20), (1, 21)]
        before = tokens.given
        verified = verify(made, spark=spark)
        assert verified.equal, verified
        assert verified.records == 41
        assert tokens.given > before
    assert [file for file in tmp_path.rglob("*") if file.is_file() and b"canary" in file.read_bytes()] == []


def test_sparks_client_logs_in_by_kerberos_where_ours_is_refused(
    secured_kafka: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    trusted = {"ssl.ca.location": secured_kafka.secured.client()["ssl.ca.location"]}
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"}
    settings |= {"sasl.kerberos.principal": "shop@NOWHERE", "sasl.kerberos.keytab": str(tmp_path / "none")} | trusted
    with pytest.raises(ConfigError, match="no Kerberos"):
        open_log(secured_kafka.url, kafka=settings)
    with pytest.raises(Py4JJavaError, match=r"Krb5LoginModule\.attemptAuthentication"):
        read_batch(spark, secured_kafka.url, "clicks", kafka=settings).count()  # there is no server of tickets here
    stream = read_stream(spark, secured_kafka.url, "clicks", kafka=settings)
    assert stream.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]


def test_a_pipeline_that_is_not_let_in_says_why_before_anything_is_written(
    secured_kafka: KafkaBroker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "hunter2-canary")
    settings = {**secured_kafka.secured.client(), "sasl.password": "${env:WORD}"}
    places = {"to": f"sqlite:{tmp_path / 'v.db'}", "checkpoint": str(tmp_path / "c")}
    made = Pipeline("shop", log=secured_kafka.url, kafka=settings, **places)  # type: ignore[arg-type]
    made.view("each", made.stream("clicks", "id int").group_by("id").agg(n="count(*)"))
    with pytest.raises(NotAllowed, match="does not know this user, or not by this password") as caught:
        run(made, spark=spark, once=True)
    assert "kafka.sasl.password" in caught.value.hint
    assert "canary" not in str(caught.value)
    assert not (tmp_path / "c").exists()
