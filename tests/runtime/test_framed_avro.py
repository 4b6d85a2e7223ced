"""Avro behind the id of its schema in a pipeline: by the schema it was written by, of a registry over real HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millstream import Confluent, Pipeline
from millstream.errors import PlanError
from tests.runtime.shop_file import ROOT

FIRST = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "page", "type": ["null", "string"]}, {"name": "n", "type": "int"}],
}
SECOND = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "amount", "type": "double"},
    ],
}
THIRD = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "n", "type": "int"}, {"name": "page", "type": "string"}],
}
READER = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "page", "type": ["null", "string"]},
        {"name": "n", "type": "long"},
        {"name": "amount", "type": "double", "default": 0.5},
    ],
}

RUN = """
import json, sys
from millstream.codec import Avro
from millstream.errors import MillstreamError
from millstream.event import Event
from millstream.framed import Confluent, frame
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.spark.session import stop_session
from tests.runtime.shop_file import admission
from tests.runtime.test_framed_avro import FIRST, SECOND, THIRD, pipeline
from tests.schema_registry import SchemaRegistry

registry = SchemaRegistry()
for schema in (FIRST, SECOND):
    registry.add("clicks-value", schema)
first, second = (Confluent(registry.url, "clicks-value", schema) for schema in (FIRST, SECOND))
third = registry.add("elsewhere", THIRD)
made = pipeline(sys.argv[1], registry.url)
said, told = [], {}
with open_log(made.log, create=True) as log:
    log.create_topic("clicks", 1)
    good = [first.encode({"page": "a", "n": n}) for n in range(5)]
    good += [second.encode({"user": "u", "n": 1 << 40, "page": "b", "amount": 2.0}), first.encode({"page": None, "n": 7})]
    bad = [good[0][5:], bytes(5), frame(1, bytes([255])), b"", b"{}"]
    log.append("clicks", [Event(value) for value in good + bad if value != bytes(5)])
    run(made, once=True)
    told["counts"] = [admission(made)[0][name] for name in ("records", "admitted", "malformed")]
    log.append("clicks", [Event(frame(third, Avro(THIRD).encode({"n": 100, "page": "a"})))])
    try:
        run(made, once=True)
    except MillstreamError as error:
        told["unknown"] = str(error)
    assert registry.add("clicks-value", THIRD) == third
    run(made, once=True)
told["rows"] = [list(row) for row in made.views["pages"].to_polars().sort("page", nulls_last=True).rows()]
told["equal"] = verify(made).equal
print(json.dumps(told))
stop_session()
registry.close()
"""


def pipeline(folder: str, registry: str) -> Pipeline:
    made = Pipeline(
        "framed", log=f"sqlite:{folder}/log.db", to=f"sqlite:{folder}/views.db", checkpoint=f"{folder}/check", buckets=1
    )
    clicks = made.stream(
        "clicks", "page string, n bigint, amount double", codec=Confluent(registry, "clicks-value", READER)
    )
    made.view("pages", clicks.group_by("page").agg(n="sum(n)", amount="sum(amount)"))
    return made


def test_each_value_is_read_by_its_own_schema_and_one_that_is_not_known_yet_stops_the_run(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert "schema is none of those that subject clicks-value had" in told["unknown"]
    assert "start the run again" in told["unknown"]
    assert told["rows"] == [["a", 110, 3.0], ["b", 1 << 40, 2.0], [None, 7, 0.5]]
    assert told["counts"] == [11, 7, 4]
    assert told["equal"]


def test_the_registry_is_no_part_of_the_definition_and_the_schema_is_needed() -> None:
    one, other = (pipeline("x", url).streams["clicks"] for url in ("http://one:8081", "http://two:8081"))
    assert one == other
    with pytest.raises(PlanError, match="without the schema that values are read into"):
        Pipeline("p").stream("s", "n int", codec=Confluent("http://one:8081", "s-value"))
    with pytest.raises(PlanError, match="no field more in the Avro record"):
        Pipeline("p").stream("s", "more int", codec=Confluent("http://one:8081", "s-value", READER))
