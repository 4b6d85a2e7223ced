"""A whole run on a terminal: what it leaves to others of its data and its secrets, and how it ends when someone ends it, or Spark."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from millstream import Event
from millstream.log import open_log
from millstream.spark import private_folder
from millstream.testing import RedisServer
from tests.runtime.shop_file import Child, living
from tests.waiting import until

CANARY = "c4n4ry-7f3e"
PIPELINE = """
from millstream import Pipeline

till = Pipeline("till", spark={"spark.hadoop.fs.s3a.secret.key": "${env:CANARY}", "spark.ui.enabled": "true"})
sales = till.stream("sales", "item string, n long")
totals = till.view("totals", sales.group_by("item").agg(n="sum(n)"))
till.sink("out", totals, "redis://:${env:CANARY}@127.0.0.1:PORT/0")
"""


@dataclass
class Seen:
    """What was there while a run was, and what it left."""

    code: int
    output: str
    commands: list[str]
    listening: set[str]
    open_to_others: list[str]
    holding_secrets: list[str]
    left: list[str]


@pytest.fixture(scope="module")
def shop() -> Iterator[Path]:
    """A pipeline that sends to a Redis with a password, and a log with a few sales."""
    with RedisServer() as server, tempfile.TemporaryDirectory(prefix="till-") as name:
        folder = Path(name)
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", CANARY)
        (folder / "till.py").write_text(PIPELINE.replace("PORT", str(server.port)))
        with open_log(f"sqlite:{folder / 'millstream.db'}") as log:
            log.create_topic("sales")
        append(folder, 10)
        yield folder


def append(folder: Path, count: int) -> None:
    with open_log(f"sqlite:{folder / 'millstream.db'}") as log:
        log.append("sales", [Event(json.dumps({"item": f"i{n % 5}", "n": 1}).encode()) for n in range(count)])


def totals(folder: Path) -> int:
    from millstream.store import open_reader

    with open_reader(f"sqlite:{folder / 'till.views.db'}") as store:
        return int(store.query("SELECT sum(n) AS n FROM totals").rows[0][0])


@pytest.fixture(scope="module")
def seen(shop: Path) -> Seen:
    """A live run on a terminal under the weakest umask; a Ctrl-C after its first batch."""
    spill = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    screen, terminal = pty.openpty()
    environ = {**os.environ, "CANARY": CANARY, "TMPDIR": str(spill), "MILLSTREAM_CLASS_ARCHIVE": "keep"}
    environ["JAVA_TOOL_OPTIONS"] = f"-Djava.io.tmpdir={spill}"  # Java asks no TMPDIR; where it would go by itself
    command = ["setsid", "--ctty", sys.executable, "-c", "from millstream.cli import main; main()", "run", "till.py"]
    process = subprocess.Popen(
        command, cwd=shop, env=environ, stdin=terminal, stdout=terminal, stderr=terminal, umask=0
    )
    os.close(terminal)
    shown: list[bytes] = []

    def read() -> None:
        with suppress(OSError):
            while data := os.read(screen, 65536):
                shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        until(lambda: b" 10 " in b"".join(shown) or process.poll() is not None, timeout=200, what="the first batch")
        members = [Path("/proc", str(pid)) for pid in living(process.pid)]
        commands = [(each / "cmdline").read_bytes().replace(b"\0", b" ").decode() for each in members]
        listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        kept = [shop / "till.checkpoint", *shop.glob("*.db*"), shop / "till.checkpoint.spark.log", *spill.iterdir()]
        opened = [str(path) for path in kept if path.stat().st_mode & 0o077]
        files = [path for top in (shop, spill) for path in top.rglob("*") if path.is_file()]
        holding = [str(path) for path in files if CANARY.encode() in path.read_bytes()]
        os.write(screen, b"\x03")
        code = process.wait(100)
        reader.join(10)
        return Seen(
            code,
            b"".join(shown).decode(),
            commands,
            {line.split()[3] for line in listening if any(f"pid={each.name}," in line for each in members)},
            opened,
            holding,
            [path.name for path in spill.iterdir()],
        )
    finally:
        for pid in living(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(screen)
        shutil.rmtree(spill)


def test_ctrl_c_lets_the_batch_end_and_says_nothing_of_spark(seen: Seen) -> None:
    assert seen.code == 0, seen.output
    assert "till: 10 records in this run" in seen.output
    assert [
        word for word in ("Traceback", "py4j", "ERROR", "WARN", "interrupted", "Streaming") if word in seen.output
    ] == []


def test_a_secret_is_on_no_command_line_in_no_file_and_on_no_screen(seen: Seen) -> None:
    assert any("org.apache.spark" in command for command in seen.commands)
    assert [command for command in seen.commands if CANARY in command] == []
    assert seen.holding_secrets == []
    assert CANARY not in seen.output


def test_what_a_run_keeps_is_for_its_owner_alone_and_what_it_spills_goes_with_it(seen: Seen) -> None:
    assert seen.open_to_others == []
    assert seen.left == []


def test_nothing_listens_beyond_this_machine_not_even_sparks_pages(seen: Seen) -> None:
    assert seen.listening
    assert {address for address in seen.listening if "127.0.0.1" not in address} == set()


def test_a_jvm_that_is_killed_is_one_error_and_the_next_run_goes_on(shop: Path, seen: Seen) -> None:
    append(shop, 10)
    child = Child("run", "till.py", "--json", cwd=shop, variables={"CANARY": CANARY})
    try:
        assert child.process.stdout is not None
        assert child.process.stdout.readline()
        (jvm,) = [pid for pid in living(child.pid) if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
        os.kill(jvm, signal.SIGKILL)
        code, _, err = child.wait()
        child.leaves_nothing()
    finally:
        child.end()
    assert code == 1
    assert [line.split(":")[0].strip() for line in err.splitlines()] == ["error", "hint"], err
    assert "Spark's JVM ended" in err
    assert "SIGKILL" in err
    append(shop, 10)
    again = Child("run", "till.py", "--once", "--json", cwd=shop, variables={"CANARY": CANARY})
    try:
        assert again.wait()[0] == 0
    finally:
        again.end()
    assert totals(shop) == 30


def test_a_reader_that_leaves_ends_the_run_in_good_order(shop: Path, seen: Seen) -> None:
    before = totals(shop)
    append(shop, 10)
    child = Child("run", "till.py", "--json", cwd=shop, variables={"CANARY": CANARY})
    try:
        assert child.process.stdout is not None
        assert child.process.stdout.readline()
        child.process.stdout.close()
        append(shop, 10)
        code = child.process.wait(100)
        assert child.process.stderr is not None
        assert (code, child.process.stderr.read()) == (0, ""), "as any command ends whose reader has left"
        child.leaves_nothing()
    finally:
        child.end()
    assert totals(shop) == before + 20


def test_whatever_asks_a_jvm_that_is_gone_says_so(shop: Path, seen: Seen) -> None:
    asked = """
        from pyspark import SparkContext
        from millstream import errors, load_pipeline
        from millstream.runtime import batch, run, time_travel, verify
        from millstream.spark.session import spark_session, stop_session

        till, spark = load_pipeline("till.py"), spark_session()
        SparkContext._gateway.proc.kill()
        for ask in (
            lambda: run.run(till, spark=spark, once=True),
            lambda: batch.run_batch(till, spark=spark, out="out"),
            lambda: verify.verify(till, spark=spark),
            lambda: time_travel.as_of(till, "totals", 0, spark=spark),
        ):
            try:
                ask()
            except errors.SparkError as error:
                print(error.message)
        stop_session()
    """
    environ = {**os.environ, "CANARY": CANARY, "MILLSTREAM_CLASS_ARCHIVE": "keep"}
    command = [sys.executable, "-c", textwrap.dedent(asked)]
    done = subprocess.run(command, cwd=shop, env=environ, capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines() == ["Spark's JVM ended by SIGKILL; the batch at hand was not finished"] * 4, done


def test_folders_of_processes_that_are_gone_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    monkeypatch.setattr(private_folder, "_own", None)
    dead, alive, other = (parent / f"millstream-{os.getuid()}-{name}" for name in ("dead", "alive", "other"))
    for each in (dead, alive):
        each.mkdir()
        (each / "lock").touch()
    other.mkdir()  # not yet locked by who makes it
    with (alive / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        made = private_folder.folder("spark")
        assert not dead.exists()
        assert alive.exists()
        assert other.exists()
    assert made.parent.parent == parent
    assert made.stat().st_mode & 0o777 == 0o700
    private_folder.remove()
    assert not made.parent.exists()
    shutil.rmtree(parent)
