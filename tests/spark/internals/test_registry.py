"""What is used of Spark's inside is looked at first, can be switched off, and the views are the same without it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext, accumulators, java_gateway
from pyspark.core import context
from pyspark.sql import SparkSession
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.streaming.map_state_client import MapStateClient

from millstream.config import Settings
from millstream.doctor import checks
from millstream.errors import ConfigError, SparkError
from millstream.log.kafka import bulk
from millstream.spark import settings, udf
from millstream.spark.internals import classes, preload, quiet_daemon, registry, spark_home
from millstream.spark.internals.driver_process import start_jvm
from millstream.spark.internals.every import EVERY
from millstream.spark.internals.preload import Preload
from millstream.spark.internals.python_functions import registered
from millstream.spark.internals.registry import NAMES, NO_OTHER_WAY, SWITCH, TESTED, Finding, switched_off
from millstream.spark.internals.spark_home import spark_folder
from millstream.spark.internals.try_eval import TRY_EVAL, tried
from tests.spark.internals.small_shop import views

ROOT = Path(__file__).parents[3]
BY_NAME = {each.name: each for each in EVERY}


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every self-test runs in each test, on a Spark that the test may have changed, and after it again."""
    monkeypatch.delenv(SWITCH, raising=False)
    registry.forget_tests()
    yield
    registry.forget_tests()


def test_all_are_known_and_stand_in_the_table_of_the_architecture_page() -> None:
    assert tuple(BY_NAME) == NAMES
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## What leans on Spark's inside")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert tuple(rows) == NAMES
    assert [each.name for each in EVERY if not each.without] == list(NO_OTHER_WAY)


def test_nothing_else_reaches_for_private_parts_of_pyspark() -> None:
    private = re.compile(
        r"SparkContext\._|SparkSession\._|\._(jvm|jsc|jsparkSession|jc|jdf|gateway|accumulatorServer)\b"
    )
    source = ROOT / "src" / "millstream"
    found = {str(path.relative_to(source)) for path in source.rglob("*.py") if private.search(path.read_text())}
    others = {each for each in found if not each.startswith(("spark/internals/", "bench/"))}
    assert not others


def test_the_tested_range_is_that_of_the_package() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"pyspark{TESTED}" in wanted


def test_on_this_spark_all_are_as_expected(spark: SparkSession) -> None:
    assert {each.name: each.finding(spark) for each in EVERY} == dict.fromkeys(NAMES, Finding("on"))


def test_the_switch_names_what_is_off() -> None:
    assert switched_off("") == frozenset()
    assert switched_off(" fork ,links") == {"fork", "links"}
    assert switched_off("all") == {*NAMES} - {*NO_OTHER_WAY}
    with pytest.raises(ConfigError, match="'forks' is unknown") as caught:
        switched_off("fork,forks")
    assert "pipelined_state" in caught.value.hint


def another_worker(sock: object, authenticated: bool, reuse: bool) -> int:
    raise AssertionError


def another_start(self: object) -> None:
    raise AssertionError


def greedy(self: MapStateClient, state_name: str, user_key: tuple[Any, ...]) -> Any:
    """A client that asks twice, as another version might."""
    self._stateful_processor_api_client._send_proto_message(b"")
    return true_get(self, state_name, user_key)


true_get = MapStateClient.get_value

BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "fork": lambda patch: patch.setattr(preload, "MODULES", ("pyspark.no_such_runner",)),
    "daemon": lambda patch: patch.setattr(quiet_daemon, "_LOADED", ("pyspark.no_such_worker",)),
    "quiet_daemon": lambda patch: patch.setattr(quiet_daemon, "_worker", another_worker),
    "quiet_driver": lambda patch: patch.setattr(accumulators, "AccumulatorTCPServer", object),
    "links": lambda patch: patch.setattr(spark_home, "spark_folder", lambda: ROOT),
    "class_archive": lambda patch: patch.setattr(spark_home, "SUBMIT", "no.such.Submit"),
    "checkpoint_files": lambda patch: patch.setattr(classes, "CHECKPOINT_CLASS", "no.such.Manager"),
    "command_line": lambda patch: patch.setattr(SparkContext, "_ensure_initialized", another_start),
    "signals": lambda patch: patch.setattr(context, "signal", ModuleType("signal")),
    "jvm_process": lambda patch: patch.setattr(java_gateway, "launch_gateway", another_start),
    "active_context": lambda patch: patch.delattr(SparkContext, "_active_spark_context"),
    "pipelined_state": lambda patch: patch.setattr(MapStateClient, "get_value", greedy),
    "arrow_schema": lambda patch: patch.setattr(arrow_types, "to_arrow_schema", another_worker),
    "kafka_messages": lambda patch: patch.setattr(bulk, "MAJOR", 3),
}
"""What another version of Spark might do to each of those whose self-test needs no session."""


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_not_as_expected_is_found_told_once_and_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert BY_NAME[name].works()
    registry.forget_tests()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "millstream"):
        BREAKS[name](patch)
        assert [BY_NAME[name].works() for _ in range(3)] == [False] * 3
    assert BY_NAME[name].finding().state == "failed"
    (line,) = caplog.messages
    assert f"{name} is not used: " in line
    assert line.endswith(f"; instead {BY_NAME[name].without}")


def test_doctor_names_what_failed_and_what_is_done_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("signals", "daemon"):
        BREAKS[name](monkeypatch)
    (check,) = (each for each in checks(Settings(), spark=False) if each.name == "spark's inside")
    assert not check.ok
    assert check.found == (
        "daemon is not used: there is no module pyspark.no_such_worker; signals is not used: pyspark.core.context has no module signal"
    )
    assert "MILLSTREAM_WITHOUT=daemon,signals" in check.hint


def of_another_spark(spark: SparkSession) -> Any:
    """A session in whose JVM no class of Spark is where we look: it gives packages for what is not there."""
    return SimpleNamespace(_jvm=spark._jvm.java, udf=spark.udf, _jsparkSession=spark._jsparkSession)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", sorted({*NAMES} - {*BREAKS}))
def test_a_jvm_without_our_classes_is_found(name: str, spark: SparkSession) -> None:
    found = BY_NAME[name].finding(of_another_spark(spark))
    assert found.state == "failed"
    assert found.why


def test_a_python_function_of_an_unknown_kind_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udf, "_BY_PICKLE", 7)
    assert BY_NAME["python_functions"].finding(spark) == Finding("failed", "a function in Python is of an unknown kind")
    assert registered(spark, "millstream_self_test") is None  # it is gone again


def test_a_burst_that_reads_other_answers_than_single_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MapStateClient, "get_value", lambda *_: (b"another",))
    assert BY_NAME["pipelined_state"].finding().state == "failed"


def test_without_another_way_it_is_an_error_that_names_spark_and_what_is_tested(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "try_eval")
    with pytest.raises(SparkError, match=r"an expression that can fail .* needs try_eval, which MILLSTREAM_WITHOUT"):
        tried(spark, "1")
    monkeypatch.delenv(SWITCH)
    assert TRY_EVAL.finding(of_another_spark(spark)).state == "failed"
    with pytest.raises(SparkError, match=rf"Spark {re.escape(spark.version)} is not as expected") as caught:
        tried(spark, "1")
    assert f"'pyspark{TESTED}'" in caught.value.hint


def test_no_secret_is_put_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "command_line")
    with pytest.raises(SparkError, match=r"spark\.hadoop\.token refers to a secret"):
        start_jvm(None, {"spark.hadoop.token"})  # type: ignore[arg-type]


def test_settings_that_this_spark_cannot_take_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert settings.usable() == settings.SETTINGS
    monkeypatch.setenv(SWITCH, "daemon,checkpoint_files,fork")
    assert settings.SETTINGS.keys() - settings.usable().keys() == {
        classes.CHECKPOINT_SETTING,
        quiet_daemon.DAEMON_SETTING,
    }
    assert Preload.start(tmp_path) is None


def test_without_all_of_it_the_views_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """A process of its own has everything off: the daemon, the fork, the links, calls for state in bursts and the rest."""
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.internals.small_shop", str(tmp_path / "without")],
        cwd=tmp_path,
        env=os.environ | {SWITCH: "all", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["views"] == views(tmp_path / "with", spark)
    assert len(found["views"]["cities"]) == 50
    assert len(found["views"]["dead letters"]) == 6
    how = found["how"]
    assert "pyspark.daemon" in how["parents"]
    assert "millstream.spark.internals" not in how["parents"]
    assert how == {"parents": how["parents"], "home": str(spark_folder()), "archive": "off", "files": ""}
    assert "the function tenth, which was registered in the session, needs python_functions" in found["refusal"]
