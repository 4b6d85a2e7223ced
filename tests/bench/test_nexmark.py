"""All queries of Nexmark give the oracle's answers: in batches of any size, with repeats of the producer, with crashes."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from millstream.bench.nexmark import stages
from millstream.bench.nexmark.data import TOPIC, fill, keyed
from millstream.bench.nexmark.generator import events
from millstream.bench.nexmark.oracle import QUESTIONS, Oracle, Question
from millstream.bench.nexmark.queries import PATTERNS, QUERIES, SIDE, chosen, fill_side, pipeline_of, side_rows
from millstream.bench.nexmark.run import answer_of
from millstream.cli import cli
from millstream.errors import ConfigError
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.testing import KafkaBroker, Trial
from tests.contracts.log import name
from tests.runtime.shop_file import Child, load
from tests.runtime.shop_file import batches as batches_of

COUNT = 4_000
TOGETHER = [query for query in QUERIES if query != "q12"]
"""Those that read the one stream, and so can be one pipeline."""
WIDTH = {"q12": 2}
"""How many columns of a view are its answer, where it has more."""
SPARKS = ("spark_python", "spark_jvm", "outside_batches")
CRASHES = ("run.before_delivery", "store.before_commit", "store.after_commit", "run.after_delivery")


class Data:
    """Some events, and what the answers over them are."""

    def __init__(self, folder: Path, rate: float) -> None:
        self.values = list(chain.from_iterable(events(COUNT, 11, rate=rate)))
        (folder / "events.jsonl").write_bytes(b"\n".join(self.values))
        self.oracle = Oracle(folder)

    def wrong(self, answers: Mapping[str, pa.Table | list[list[Any]]]) -> dict[str, str]:
        """What is wrong with some answers, each of which has rows."""
        assert [query for query, answer in answers.items() if not len(answer)] == []
        found = {query: self.oracle.compare(query, answer) for query, answer in answers.items()}
        return {query: wrong for query, wrong in found.items() if wrong}


@pytest.fixture(scope="module")
def minute(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """A minute of event time."""
    return Data(tmp_path_factory.mktemp("data"), COUNT / 60)


def cut(values: list[bytes], chance: random.Random) -> Iterator[list[bytes]]:
    """Batches of any size, some of them small."""
    first = 0
    while first < len(values):
        size = chance.choice((1, 60, 700, 1_500))
        yield values[first : first + size]
        first += size


def on_trial(queries: list[str], folder: Path, data: Data, spark: SparkSession, seed: int) -> dict[str, str]:
    """What is wrong after the events came in batches, many of them twice, with crashes in between."""
    chance = random.Random(seed)
    pipeline = pipeline_of(queries, "sqlite:unused", folder)
    with Trial(pipeline, partitions=2, spark=spark) as trial, open_log(trial.log) as log:
        if SIDE in pipeline.tables:
            log.append(SIDE, side_rows())
        for number, values in enumerate(cut(data.values, chance)):
            made = keyed(values) if queries[0] in PATTERNS else list(map(Event, values))
            for time in range(chance.choice((1, 2, 3))):
                assert log.append(TOPIC, made, producer="p", sequence=number).duplicate == (time > 0)
            if chance.random() < 0.4:
                trial.crash(chance.choice((None, *CRASHES)))
            trial.feed("events", [])
        trial.close()
        assert trial.counts("events")["admitted"] == COUNT
        rows = {query: [list(row.values()) for row in trial.rows(query)] for query in queries}
    return data.wrong({query: [row[: WIDTH.get(query)] for row in found] for query, found in rows.items()})


def test_answers_do_not_depend_on_batches_repeats_and_crashes(
    minute: Data, spark: SparkSession, tmp_path: Path
) -> None:
    assert on_trial(TOGETHER, tmp_path, minute, spark, 5) == {}


def test_nor_do_those_by_processing_time(minute: Data, spark: SparkSession, tmp_path: Path) -> None:
    assert on_trial(["q12"], tmp_path, minute, spark, 6) == {}


def test_nor_do_those_to_patterns(minute: Data, spark: SparkSession, tmp_path: Path) -> None:
    assert on_trial(list(PATTERNS), tmp_path, minute, spark, 8) == {}


def test_nor_do_those_by_day(spark: SparkSession, tmp_path: Path) -> None:
    days = Data(tmp_path, COUNT / 3 / 86_400)
    assert len(days.oracle.answer("q15")) == 3
    assert {row[3] for row in days.oracle.answer("q14")} == {"dayTime", "nightTime", "otherTime"}
    assert on_trial(["q10", "q14", "q15", "q16", "q17"], tmp_path / "run", days, spark, 7) == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("queries", [TOGETHER, list(PATTERNS)], ids=["the 23", "patterns"])
def test_a_run_on_spark_that_is_killed_in_the_middle_goes_on(
    queries: list[str], minute: Data, spark: SparkSession, tmp_path: Path
) -> None:
    log, file = f"sqlite:{tmp_path / 'log.db'}", tmp_path / "nexmark.py"
    batches = [minute.values[first : first + 500] for first in range(0, COUNT, 500)]
    fill_side(log)
    assert fill(log, batches, partitions=2, by_auction=queries[0] in PATTERNS) == COUNT
    file.write_text(
        "from pathlib import Path\n\nfrom millstream.bench.nexmark.queries import pipeline_of\n\n"
        f"nexmark = pipeline_of({queries}, {log!r}, Path({str(tmp_path / 'run')!r}))\n"
    )
    child = Child("run", file, "--close", "--rate-limit", 1_500, failpoint="store.before_commit:kill@2")
    try:
        code, _, err = child.wait()
        assert code == -signal.SIGKILL, err
        child.leaves_nothing()
    finally:
        child.end()
    pipeline = load(file)
    assert [batch for batch, _ in batches_of(pipeline)] == [0]
    run(pipeline, spark=spark, close=True, rate_limit=1_500)
    assert minute.wrong({query: answer_of(pipeline, query) for query in queries}) == {}


@pytest.mark.parametrize(
    "queries", [TOGETHER, ["q12"], list(PATTERNS)], ids=["one stream", "processing time", "patterns"]
)
def test_answers_on_kafka_are_the_same(
    queries: list[str], minute: Data, spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    if "q13" in queries:
        fill_side(kafka.url)
    topic = name()
    batches = [minute.values[first : first + 500] for first in range(0, COUNT, 500)]
    assert fill(kafka.url, batches, topic=topic, partitions=2, by_auction=queries[0] in PATTERNS) == COUNT
    pipeline = pipeline_of(queries, kafka.url, tmp_path, topic=topic)
    progress = run(pipeline, spark=spark, close=True, rate_limit=900)
    assert progress.batch is not None
    assert progress.batch >= 4
    assert minute.wrong({query: answer_of(pipeline, query) for query in queries}) == {}


def test_the_command_says_how_fast_and_whether_right(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "nexmark", "--queries", "q2", "--events", "3000", "--seed", "3"]
    done = CliRunner().invoke(cli, [*arguments, "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["results"]
    assert (found["name"], found["system"], found["correct"], found["kept"]) == ("q2", "millstream", True, False)
    assert found["value"] == pytest.approx(3_000 / found["seconds"], rel=0.01)
    assert "q2 millstream: " in capfd.readouterr().err
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "events.jsonl").write_bytes(b"\n".join(chain.from_iterable(events(3_000, 3))))
    with Oracle(tmp_path / "data") as oracle:
        assert sorted(json.loads((tmp_path / "out" / "q2.json").read_text())) == sorted(oracle.answer("q2"))


def test_a_wrong_answer_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(QUESTIONS, "q2", Question("SELECT auction, price + 1 FROM bid WHERE auction % 123 = 0"))
    text = b"\n".join(chain.from_iterable(events(3_000, 3)))
    (tmp_path / "events.jsonl").write_bytes(text.replace(b'"2026-01-01 ', b'"2096-01-01T'))
    done = CliRunner().invoke(cli, ["bench", "nexmark", "--queries", "q2", "--data", str(tmp_path), "--store"])
    assert done.exit_code == 1, done.output
    assert "WRONG" in capfd.readouterr().err
    assert "rows are missing" in done.stdout


def test_each_stage_has_its_cost(spark: SparkSession, tmp_path: Path) -> None:
    found = {each.name: each.value for each in stages.measure(["q2", "q5", "cep3"], 5_000, 0, tmp_path, lambda _: None)}
    assert found.keys() == {f"{query}.{name}" for query in ("q2", "q5", "cep3") for name in (*stages.STAGES, *SPARKS)}
    assert all(found[f"q5.{name}"] > 0 for name in (*stages.STAGES, "spark_jvm", "outside_batches"))
    assert found["cep3.kernels"] > 0
    assert found["q2.kernels"] < found["q5.kernels"] / 10


@pytest.mark.parametrize("text", ["q23", "5-", "q9-q3", "cep4", "cep0-3", "cep2-cep1", "q1-cep0", "every"])
def test_queries_that_there_are_not_are_told(text: str) -> None:
    with pytest.raises(ConfigError, match="expected such as q5"):
        chosen(text)


def test_queries_are_named_alone_or_from_to() -> None:
    assert chosen(None) == QUERIES == tuple(f"q{number}" for number in range(23))
    assert chosen("q22,cep0-cep2,cep1,cep3") == ("q22", "cep0", "cep1", "cep2", "cep3")
    assert chosen("all") == (*QUERIES, *PATTERNS)
    assert chosen("q3-q5,q0,4") == ("q3", "q4", "q5", "q0")
