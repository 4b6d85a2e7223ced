"""Avro records in a pipeline: what is read, what is malformed, and a session that cannot read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import SparkError
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.run import run
from tests.runtime.shop_file import ROOT

SCHEMA = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "page", "type": ["null", "string"]},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}

AVRO = """
import json, sys
from datetime import datetime, UTC
from millstream.codec import Avro
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.spark.session import stop_session
from tests.runtime.shop_file import admission
from tests.runtime.test_avro import SCHEMA, pipeline

made = pipeline(sys.argv[1])
codec = Avro(SCHEMA)
at = datetime(2026, 1, 1, tzinfo=UTC)
rows = [{"page": "é", "amount": 0.5, "at": at}, {"page": "é", "amount": 1.5, "at": at}, {"page": None, "amount": None, "at": None}]
with open_log(made.log, create=True) as log:
    log.create_topic("clicks", 1)
    log.append("clicks", [*(Event(codec.encode(row)) for row in rows), Event(bytes([255, 255])), Event(None)])
run(made, once=True)
count = admission(made)[0]
print(json.dumps({
    "rows": [list(row) for row in made.views["pages"].to_polars().sort("page").rows()],
    "counts": [count["records"], count["admitted"], count["malformed"]],
    "equal": verify(made).equal,
}))
stop_session()
"""


def pipeline(folder: str) -> Pipeline:
    made = Pipeline(
        "avro", log=f"sqlite:{folder}/log.db", to=f"sqlite:{folder}/views.db", checkpoint=f"{folder}/check", buckets=1
    )
    clicks = made.stream("clicks", "page string, amount double, at timestamp", codec=SCHEMA)
    made.view(
        "pages",
        clicks.group_by("page").agg(n="count(*)", total="sum(amount)", last="max(at)").select("page", "n", "total"),
    )
    return made


def test_avro_is_read_and_what_is_none_is_malformed_but_nulls_are_not(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AVRO, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "rows": [[None, 1, None], ["é", 2, 2.0]],
        "counts": [5, 3, 2],
        "equal": True,
    }


def test_a_session_without_avro_is_refused_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    made = pipeline(str(tmp_path))
    with open_log(made.log, create=True) as log:
        log.create_topic("clicks", 1)
    with pytest.raises(SparkError, match="no Avro") as caught:
        run(made, spark=spark, once=True)
    assert "spark_session(avro=True)" in caught.value.hint
