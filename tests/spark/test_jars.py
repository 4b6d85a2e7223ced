"""Jars by name are jars by content."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from millstream.cli import execute
from millstream.errors import MachineError
from millstream.spark.jars import (
    _OLDER_AVRO,
    _OLDER_CONNECTOR,
    SUMS,
    avro_reader,
    check_sums,
    kafka_connector,
    spark_avro_jars,
)


def test_a_jar_that_is_not_the_one_of_its_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "somebody-elses-1.0.jar").write_bytes(b"anything")
    check_sums(tmp_path, "")
    (tmp_path / "kafka-clients-3.9.1.jar").write_bytes(b"another")
    with pytest.raises(MachineError, match=r"kafka-clients-3\.9\.1\.jar: found the SHA-256 [0-9a-f]{64}, expected"):
        check_sums(tmp_path, "")


def test_a_jar_that_was_changed_in_the_cache_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = [jar for jar in spark_avro_jars() if jar.name.startswith("spark-avro")]
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    folder = tmp_path / "jars" / kept.parent.name
    shutil.copytree(kept.parent, folder)
    (same,) = spark_avro_jars()
    assert same.parent == folder
    same.write_bytes(kept.read_bytes() + b"\0")
    with pytest.raises(MachineError, match=r"spark-avro.*: found the SHA-256") as caught:
        spark_avro_jars()
    assert caught.value.hint.startswith(f"delete {folder}")


def test_every_jar_that_stands_in_for_one_of_this_release_is_known_by_its_sum() -> None:
    named = {"-".join(part.split(":")[1:]) + ".jar" for part in (*_OLDER_CONNECTOR, *_OLDER_AVRO)}
    assert named == SUMS.keys()


def test_doctor_says_which_kafka_connector_and_which_avro_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert kafka_connector().startswith("none yet")
    for part in (
        "org.apache.spark-spark-sql-kafka-0-10_2.13-4.2.0",
        "org.apache.spark-spark-token-provider-kafka-0-10_2.13-4.0.0",
        "org.apache.kafka-kafka-clients-3.9.1",
        "org.apache.commons-commons-pool2-2.12.0",
    ):
        (tmp_path / "jars" / f"{part}-alone").mkdir(parents=True)
    assert execute(["doctor", "--quick", "--json"]) == 0
    found = {each["name"]: each["found"] for each in json.loads(capsys.readouterr().out)}
    said = found["kafka connector"]
    assert said.startswith(f"an older one than Spark {version('pyspark')}")
    assert "kafka-clients:3.9.1" in said
    (tmp_path / f"jars/org.apache.spark-spark-sql-kafka-0-10_2.13-{version('pyspark')}").mkdir()
    assert kafka_connector() == f"that of Spark {version('pyspark')}"
    assert found["avro"] == "none yet; the first pipeline that reads Avro fetches it"
    (tmp_path / "jars/org.apache.spark-spark-avro_2.13-4.0.1-alone").mkdir()
    assert avro_reader().endswith("spark-avro_2.13:4.0.1")
