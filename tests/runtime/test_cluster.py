"""Pipelines on clusters, from Kafka into PostgreSQL: executors of their own, a worker that dies, workers that cannot run us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
import venv
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.errors import MachineError
from millstream.event import Event
from millstream.load import load_pipeline
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.verify import verify
from millstream.spark import distribute_code, java
from millstream.spark.internals.spark_home import spark_folder
from millstream.spark.settings import is_local, is_one_process, settings_for
from millstream.testing import KafkaBroker, PostgresServer
from millstream.testing.process import free_ports
from tests.contracts.log import name
from tests.runtime.shop_file import Child, admission, batches, living

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = """
from millstream import Pipeline
from millstream.window import tumbling

shop = Pipeline("shop", log="{log}", to="{to}", checkpoint="{folder}/check", buckets=2)
clicks = shop.stream("clicks", "user long, page string, at timestamp", topic="{topic}", time="at", delay="10 seconds", idle=None)
per_minute = clicks.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)")
shop.view("per_minute", per_minute)
shop.view("closed", per_minute, emit="final")
shop.view("by_user", clicks.group_by("user").agg(n="count(*)", last="max(at)"))
"""
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Shop:
    """A pipeline's file, and its topics on a broker."""

    def __init__(self, folder: Path, kafka: KafkaBroker, postgres: PostgresServer) -> None:
        self.folder, self.log, self.topic = folder, kafka.url, name()
        with open_log(self.log) as log:
            log.create_topic(self.topic, 2)
        self.file = folder / "shop.py"
        text = TEXT.replace("{log}", self.log).replace("{folder}", str(folder)).replace("{topic}", self.topic)
        self.file.write_text(text.replace("{to}", f"{postgres.address}?schema=cluster_{uuid.uuid4().hex}"))

    def clicks(self, first: int, count: int) -> None:
        """Append clicks of these numbers; every eleventh is late, every fortieth nonsense."""
        events = []
        for number in range(first, first + count):
            at = BEGIN + timedelta(seconds=number - (90 if number % 11 == 10 else 0))
            value = json.dumps({"user": number % 7, "page": "aüc"[number % 3], "at": at.isoformat()})
            events.append(Event(b"nonsense" if number % 40 == 39 else value.encode(), key=str(number % 7).encode()))
        with open_log(self.log) as log:
            log.append(self.topic, events)

    def check(self, spark: SparkSession, records: int) -> Pipeline:
        """Everything is there, once: what one process computes from the log in a batch, and what can be counted."""
        made = load_pipeline(self.file)
        verified = verify(made, spark=spark)
        assert verified.equal, verified
        assert verified.records == records
        counts = [row for row in admission(made) if row["topic"] == self.topic]
        admitted = sum(row["admitted"] for row in counts)
        assert sum(row["records"] for row in counts) == records
        assert 0 < sum(row["late"] + row["malformed"] for row in counts) == records - admitted
        for view in ("per_minute", "by_user"):
            assert made.views[view].to_polars()["n"].sum() == admitted, view
        numbers = [number for number, _ in batches(made)]
        assert numbers == list(range(len(numbers)))
        return made


def run_on(shop: Shop, master: str, *options: object, variables: dict[str, str] | None = None) -> Child:
    small = ["--conf", f"spark.executor.extraJavaOptions={SMALL}", "--conf", "spark.executor.memory=512m"]
    local = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    return Child("run", shop.file, "--master", master, *small, *local, *options, variables=variables)


@pytest.mark.timeout(900)
def test_a_local_cluster_has_executors_of_its_own_and_the_views_of_one_process(
    kafka: KafkaBroker, postgres: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop = Shop(tmp_path, kafka, postgres)
    shop.clicks(0, 200)
    child = run_on(shop, "local-cluster[2,1,1024]", "--once", "--close", "--json")
    try:
        code, out, err = child.wait(500)
        child.leaves_nothing()
    finally:
        child.end()
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["records"] == 200
    made = shop.check(request.getfixturevalue("spark"), 200)
    assert made.views["closed"].to_polars().rows() == made.views["per_minute"].to_polars().rows()


class Standalone:
    """Spark's own cluster: a master and two workers on loopback, each a process of its own session, with a clean environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        spark, home = spark_folder(), java.launcher(java.find_java())
        self.environ = {"PATH": os.environ["PATH"], "JAVA_HOME": str(home), "SPARK_HOME": str(spark)}
        self.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13"}  # Spark's scripts set the latter
        self.java = [
            str(home / "bin" / "java"),
            "-Xmx192m",
            *SMALL.split(),
            "-Dspark.master.rest.enabled=false",
            "-cp",
            f"{spark / 'jars'}/*",
        ]
        (port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{port}"
        master = self._start("master.Master", "--port", port)
        self.workers = [
            self._start(
                "worker.Worker", "--cores", 1, "--memory", "1g", "--work-dir", folder / f"work-{number}", self.url
            )
            for number in range(2)
        ]
        self.processes = [master, *self.workers]

    def _start(self, kind: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [*self.java, f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0"]
        with (self.folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *map(str, arguments)],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process and all that it started, at once, as the loss of its machine would."""
        for pid in living(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def executors(self, worker: subprocess.Popen[bytes]) -> set[int]:
        """The processes that a worker started."""
        return living(worker.pid) - {worker.pid}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    made = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        for process in made.processes:
            made.kill(process)


@pytest.mark.timeout(600)
def test_workers_that_cannot_run_us_are_refused_at_the_start(
    cluster: Standalone, kafka: KafkaBroker, postgres: PostgresServer, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, kafka, postgres)
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    stale = tmp_path / "stale" / "polars-0.0.7.dist-info"
    stale.mkdir(parents=True)
    (stale / "METADATA").write_text("Metadata-Version: 2.1\nName: polars\nVersion: 0.0.7\n")
    cases: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
        ((), {"PYSPARK_PYTHON": str(bare / "bin" / "python")}, "cannot run Millstream: their Python has no "),
        (("--conf", f"spark.executorEnv.PYTHONPATH={stale.parent}"), {}, ": found polars 0.0.7, expected "),
    )
    for options, variables, expected in cases:
        child = run_on(shop, cluster.url, "--once", *options, variables=variables)
        try:
            code, _, err = child.wait()
            child.leaves_nothing()
        finally:
            child.end()
        said = " ".join(err.split())
        assert code == 1, said
        assert f"error: the workers of {cluster.url}{' ' if 'cannot' in expected else ''}{expected}" in said
        assert "hint: give every worker the environment of the driver" in said
        assert "Traceback" not in err
        assert "\tat " not in err
        assert not (tmp_path / "check").exists()


@pytest.mark.timeout(900)
def test_a_worker_that_dies_in_the_middle_of_a_run_leaves_no_trace(
    cluster: Standalone, kafka: KafkaBroker, postgres: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop = Shop(tmp_path, kafka, postgres)
    for first in range(0, 600, 50):
        shop.clicks(first, 50)
    child = run_on(shop, cluster.url, "--once", "--close", "--rate-limit", 60, "--json")
    lines: list[str] = []
    assert child.process.stdout is not None
    reading = threading.Thread(target=lambda out: lines.extend(out), args=[child.process.stdout], daemon=True)
    try:
        lines.append(child.process.stdout.readline())
        assert lines[0].startswith("{"), child.wait()
        victim = cluster.workers[1]
        assert all(cluster.executors(worker) for worker in cluster.workers), "both workers have a part in it"
        reading.start()
        cluster.kill(victim)
        before = len(lines)
        child.process.wait(500)
        reading.join(30)
        assert child.process.stderr is not None
        assert child.process.returncode == 0, child.process.stderr.read()
        child.leaves_nothing()
    finally:
        child.end()
    assert not cluster.executors(victim)
    assert len(lines) > before + 3, "most of the run came after the loss"
    assert json.loads(lines[-1])["records"] == 600
    made = shop.check(request.getfixturevalue("spark"), 600)
    assert made.views["closed"].to_polars().rows() == made.views["per_minute"].to_polars().rows()


def test_a_checkpoint_that_workers_do_not_see_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.write_text("")
    distribute_code.check_shared(spark, seen)
    with pytest.raises(MachineError, match="not seen from host"):
        distribute_code.check_shared(spark, tmp_path / "unseen" / "millstream.json")


def test_the_archive_is_our_code_and_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path))
    made = distribute_code.archive()
    before = made.stat().st_mtime_ns
    assert distribute_code.archive() == made
    assert made.stat().st_mtime_ns == before
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    code = "import millstream.kernel.host, millstream.spark.distribute_code as s; print(s.here()['our code in'])"
    environ = {**os.environ, "PYTHONPATH": distribute_code.python_path("elsewhere")}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=made.parent, env=environ, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == made.name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Error from python worker:\n  /usr/bin/python3: No module named millstream\nPYTHONPATH was:", "their Python has no millstream"),
        ("ModuleNotFoundError: No module named 'pyarrow.compute'", "their Python has no pyarrow"),
        ("x\n[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than driver 3.11.\n", "Python in worker has different version: 3.12 than driver 3.11."),
        ('java.io.IOException: Cannot run program "/opt/py": error=2', "there is no /opt/py"),
        ("An error occurred\n: org.apache.spark.SparkException: lost\n\tat x", "An error occurred"),
    ],
)  # fmt: skip
def test_why_a_worker_cannot_run_us_is_one_line(text: str, expected: str) -> None:
    assert distribute_code.cause_of(text) == expected


@pytest.mark.parametrize(
    ("master", "local", "one"),
    [("local", True, True), ("local[*]", True, True), ("local-cluster[2,1,1024]", True, False), ("spark://h:7077", False, False),
     ("yarn", False, False), ("k8s://https://h", False, False)],
)  # fmt: skip
def test_what_is_for_one_process_is_not_for_a_cluster(master: str, local: bool, one: bool) -> None:
    assert (is_local(master), is_one_process(master)) == (local, one)
    made = settings_for(master, {"spark.executorEnv.PYTHONPATH": "mine"}, [])
    assert ("-XX:TieredStopAtLevel=1" in made["spark.driver.extraJavaOptions"]) == one
    assert (made.get("spark.driver.host") == "127.0.0.1") == local
    assert made["spark.executorEnv.PYTHONPATH"] == (
        "mine" if one else f"{distribute_code.archive().name}{os.pathsep}mine"
    )
