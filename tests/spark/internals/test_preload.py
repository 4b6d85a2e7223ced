"""Spark's Python processes are forked from one that has everything loaded, and start as ever where it is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.sql import SparkSession

from millstream.spark.internals.preload import MODULES, Preload
from tests.mounted import mounted
from tests.waiting import until

FORKED = "millstream/spark/internals/preload.py"
RUNNER = MODULES[1]
PYTEST = "PYTEST_CURRENT_TEST"


def environment(**variables: str) -> dict[str, str]:
    """That of this process, as Spark would give it to another, without pytest's own that changes within a test."""
    return {name: value for name, value in os.environ.items() if name != PYTEST} | {"PYTHONHASHSEED": "0"} | variables


@pytest.fixture
def preload(monkeypatch: pytest.MonkeyPatch) -> Iterator[Preload]:
    monkeypatch.delenv(PYTEST)
    with TemporaryDirectory() as folder:  # a short path, as a socket needs
        made = Preload(Path(folder))
        yield made
        made.close()


def call(preload: Preload, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [preload.python, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**variables),
        check=False,
    )


def process_of(preload: Preload) -> subprocess.Popen[bytes]:
    return preload._process


def test_a_module_of_spark_runs_in_a_fork_and_its_failure_is_told(preload: Preload) -> None:
    done = call(preload, "-m", RUNNER)  # nobody told it where Spark listens
    assert done.returncode == 1
    assert FORKED in done.stderr
    assert "gaierror" in done.stderr.splitlines()[-1]


def test_anything_else_is_an_ordinary_start_of_python(preload: Preload) -> None:
    done = call(
        preload, "-c", "import sys; print(*sys.argv, 'millstream' in sys.modules); sys.exit(7)", "", "two words"
    )
    assert (done.returncode, done.stdout) == (7, "-c  two words False\n")


def test_an_environment_that_modules_may_look_at_when_they_are_loaded_is_an_ordinary_start(preload: Preload) -> None:
    assert FORKED in call(preload, "-m", RUNNER, SPARK_BUFFER_SIZE="9", OMP_NUM_THREADS="1").stderr
    assert FORKED not in call(preload, "-m", RUNNER, TZ="Asia/Tokyo").stderr
    assert FORKED not in call(preload, "-m", RUNNER, OMP_NUM_THREADS="3").stderr


def test_without_the_process_python_starts_as_ever(preload: Preload) -> None:
    process_of(preload).kill()
    process_of(preload).wait(30)
    done = call(preload, "-m", RUNNER)
    assert done.returncode == 1
    assert FORKED not in done.stderr


@pytest.mark.parametrize("end", ["input", "signal"])
def test_a_fork_has_the_environment_and_the_files_of_its_caller_and_ends_when_it_is_told_to(
    preload: Preload, end: str
) -> None:
    folder = preload.python.parent
    variables = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder)}
    with subprocess.Popen(
        [preload.python, "-m", MODULES[0], "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(**variables),
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        length = int.from_bytes(daemon.stdout.read(4))
        listening = Path(daemon.stdout.read(length).decode())
        assert listening.parent == folder
        assert listening.exists()
        if end == "input":
            daemon.stdin.close()
        else:
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 1  # so the daemon of Spark always ends
        assert daemon.stdout.read() == b"", "nobody is left to write to it"


def test_a_worker_whose_query_was_stopped_ends_without_a_word(preload: Preload, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as errors:
        daemon = subprocess.Popen(
            [preload.python, "-m", "pyspark.daemon", "pyspark.sql.worker.analyze_udtf"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(PYTHON_UNIX_DOMAIN_ENABLED="false", PYTHON_WORKER_FACTORY_SECRET="no secret"),
            start_new_session=True,
        )
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")
        with socket.create_connection(("127.0.0.1", port)) as asked:
            worker = int.from_bytes(asked.recv(4), "big")
        until(lambda: not Path(f"/proc/{worker}").exists(), what="the end of the worker")
        daemon.stdin.close()
        daemon.wait(30)
        daemon.stdout.close()
    assert said.read_text() == ""


def test_a_caller_that_says_nothing_does_not_stop_the_others_for_ever(preload: Preload) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(preload.python.with_name("calls")))
        assert FORKED in call(preload, "-m", RUNNER).stderr


def test_it_ends_with_its_owner_and_leaves_nothing(preload: Preload) -> None:
    folder = preload.python.parent
    assert folder.exists()
    preload.close()
    assert process_of(preload).returncode == 0
    assert not folder.exists()


def test_where_it_cannot_be_it_is_not_and_leaves_nothing(tmp_path: Path) -> None:
    far = tmp_path / ("x" * 100)
    assert Preload.start(far) is None  # there is no such folder
    far.mkdir()
    assert Preload.start(far) is None  # no socket has so long a name
    assert list(far.iterdir()) == []


def test_a_disk_that_no_program_is_run_from_has_none(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {Preload.__module__} import Preload; print(Preload.start(Path({str(tmp_path)!r})))"
    command = [*mounted(tmp_path, "noexec"), sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "None\n"


def test_workers_of_a_session_are_forked_from_it(spark: SparkSession) -> None:
    def parents(_: object) -> Iterator[str]:
        at = os.getpid()
        while at > 1:
            yield Path(f"/proc/{at}/cmdline").read_text().replace("\0", " ")
            at = int(Path(f"/proc/{at}/stat").read_text().rpartition(")")[2].split()[1])

    if not Path("/proc/self/stat").exists():
        pytest.skip("needs Linux's /proc")
    found = spark.sparkContext.parallelize([1], 1).flatMap(parents).collect()
    assert any("-m millstream.spark.internals.preload" in each for each in found)
