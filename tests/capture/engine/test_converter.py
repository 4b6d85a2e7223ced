"""What Confluent's own converter writes of Debezium's own envelopes says to us what Kafka Connect's converter writes in JSON."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from millstream import Debezium
from millstream.spark.java import find_java
from tests.schema_registry import SchemaRegistry

pytestmark = pytest.mark.campaign  # the engine is large to install
SCRIPT = Path(__file__).parent / "converter.py"


def test_avro_of_confluents_converter_is_what_it_is_in_json(engine: Path) -> None:
    registry = SchemaRegistry()
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    environment.pop("PYTHONPATH", None)
    command = [str(engine), str(SCRIPT), registry.url]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    codec, rows = Debezium(registry.url), [json.loads(line) for line in ran.stdout.splitlines()]
    registry_asked = [each for each in registry.asked if each.startswith("POST")]
    assert registry_asked, "the converter has registered its schemas"
    assert len(rows) == 4
    for key, plain_key, value, plain in rows:
        assert json.loads(codec.to_json(base64.b64decode(key))) == plain_key == {"id": 1}
        found = json.loads(codec.to_json(base64.b64decode(value)))
        assert {**found, "before": None, "after": None} == {**plain, "before": None, "after": None}
        for part in ("before", "after"):
            assert found[part] == with_decimals(plain[part])
    registry.close()


def with_decimals(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row whose decimals are text, where JSON has bytes."""
    return row and {**row, "p": row["p"] and "-12345678901234567890123.4500", "v": row["v"] and "7.125"}
