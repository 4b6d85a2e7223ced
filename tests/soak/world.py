"""A pipeline of a random shop on real servers, run by the command in a process of its own, that faults may happen to.

What is right at the end is computed from the log by plain Python (:mod:`tests.runtime.random_shop`), so whatever a fault did
to an append counts as it stands in the log.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from millstream.errors import MillstreamError
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.sink import open_store
from millstream.testing import KafkaBroker, PostgresServer
from tests.runtime.random_shop import Shop, Supply, expected, rows_of, stored
from tests.runtime.shop_file import ROOT, Child, load

FILE = """
from pathlib import Path
from tests.runtime.random_shop import Shop

shop = Shop({seed}).pipeline("shop", Path({folder!r}), {log!r}, {to!r})
shop.sink("out", shop.views["by_user"], "topic:out")
"""
PATIENCE = 240.0
"""Seconds that anything may take on a busy machine before it counts as stuck."""


class Wrong(Exception):
    """What a fault must not lead to."""


class Runner:
    """A ``millstream`` command whose batches are heard as they are delivered."""

    def __init__(self, *arguments: object, failpoint: str = "") -> None:
        path = f"{ROOT / 'src'}:{ROOT}"
        self._child = Child(*arguments, failpoint=failpoint, variables={"PYTHONPATH": path})
        self.lines: list[str] = []
        self.errors: list[str] = []
        process = self._child.process
        self._threads = [
            threading.Thread(target=lambda: self.lines.extend(process.stdout or ()), daemon=True),
            threading.Thread(target=lambda: self.errors.extend(process.stderr or ()), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The driver's process."""
        return self._child.pid

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._child.process.poll()

    @property
    def said(self) -> str:
        """What it wrote to its standard error, at the end."""
        return "".join(self.errors[-30:])

    def batches(self) -> int:
        """How many batches it has delivered; what it says while it waits for somebody does not count."""
        return sum(1 for line in list(self.lines) if line.startswith("{") and not json.loads(line)["waiting"])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver."""
        self._child.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end, and for that of all it started; give its exit code."""
        wait(lambda: self.code is not None, "the end of a run")
        self._child.leaves_nothing(PATIENCE)
        for thread in self._threads:
            thread.join(10)
        return self.code if self.code is not None else -1

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        self._child.end()


class World:
    """One pipeline, its log, its store, the records that come, and the process that runs it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-soak-"))
        self.broker = KafkaBroker() if self.chance.random() < 0.5 else None
        self.postgres = PostgresServer() if self.chance.random() < 0.5 else None
        self.limit = self.chance.choice((20, 100, 4_000_000))
        self.shop, self.supply = Shop(self.chance.randrange(1 << 20)), Supply(seed)
        self._servers = ExitStack()
        self.runner: Runner | None = None

    def __enter__(self) -> Self:
        for server in filter(None, (self.broker, self.postgres)):
            self._servers.enter_context(server)
        self.log = self.broker.url if self.broker else f"sqlite:{self.folder / 'log.db'}"
        self.to = self.postgres.address if self.postgres else f"sqlite:{self.folder / 'views.db'}"
        self.file = self.folder / "shop.py"
        self.file.write_text(
            FILE.format(seed=self.shop.seed, folder=str(self.folder), log=self.log, to=self.to), encoding="utf-8"
        )
        with open_log(self.log, create=True) as log:
            log.create_topic("clicks", self.shop.partitions)
            for topic in ("notes", "users", "out"):
                log.create_topic(topic, 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self.runner is not None:
            self.runner.end()
        self._servers.close()

    def remove(self) -> None:
        """Delete its files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def name(self) -> str:
        """What it runs on, in words."""
        return f"{'Kafka' if self.broker else 'SQLite'} to {'PostgreSQL' if self.postgres else 'SQLite'}, {self.limit:,} records a batch"

    @property
    def checkpoint(self) -> Path:
        """The folder of its checkpoint."""
        return self.folder / "shop.check"

    @property
    def pipeline(self) -> Pipeline:
        """The definition, as the file has it."""
        return load(self.file)

    def feed(self) -> None:
        """Append some records to every topic, in several appends."""
        for _ in range(self.chance.randint(1, 4)):
            made = {
                "clicks": self.supply.clicks(self.chance.randint(1, 60)),
                "notes": self.supply.notes(self.chance.randint(1, 10)),
                "users": self.supply.users(self.chance.randint(1, 10)),
            }
            with open_log(self.log, create=False) as log:
                for topic, events in made.items():
                    log.append(topic, events)

    def start(self, *options: str, failpoint: str = "") -> Runner:
        """Run the pipeline until something ends it."""
        self.runner = Runner("run", self.file, "--json", "--rate-limit", self.limit, *options, failpoint=failpoint)
        return self.runner

    def running(self) -> Runner:
        """The process that runs the pipeline; a new one if the last has ended. It has delivered a batch."""
        runner = self.runner
        if runner is None or runner.code is not None:
            runner = self.start()
        self.catch(runner)
        return runner

    def catch(self, runner: Runner) -> None:
        """Feed, and wait until that run has delivered one batch more."""
        before = runner.batches()
        self.feed()
        wait(lambda: runner.batches() > before or runner.code is not None, "the next batch")
        if runner.code is not None:
            raise Wrong(f"the run ended with {runner.code}: {runner.said}")

    def stop(self) -> None:
        """Stop the run in good order."""
        if self.runner is not None and self.runner.code is None:
            self.runner.signal(signal.SIGTERM)
            if (code := self.runner.ended()) != 0:
                raise Wrong(f"a run that was asked to stop ended with {code}: {self.runner.said}")
        self.runner = None

    def once(self) -> Runner:
        """Run until everything is done; the run has ended."""
        self.stop()
        runner = self.start("--once")
        runner.ended()
        self.runner = None
        return runner

    def failed(self, runner: Runner, *words: str) -> None:
        """That run must end with an error in our words."""
        code = runner.ended()
        if code != 1 or "error: " not in runner.said or "Traceback" in runner.said:
            raise Wrong(f"expected an error with a cause; found exit code {code}: {runner.said}")
        if words and not any(word in runner.said for word in words):
            raise Wrong(f"expected an error that says {' or '.join(words)}; found: {runner.said}")

    def check(self) -> str:
        """Finish what is left and compare everything with the recomputation; say what was compared."""
        runner = self.once()
        if runner.code != 0:
            raise Wrong(f"the last run ended with {runner.code}: {runner.said}")
        pipeline = self.pipeline
        with open_log(self.log, create=False) as log:
            views, fates = expected(self.shop, pipeline, log)
            sent = _last_sent(log)
        found = stored(pipeline)
        for name, wanted in views.items():
            if found.get(name, Counter()) != wanted:
                missing, extra = wanted - found.get(name, Counter()), found.get(name, Counter()) - wanted
                raise Wrong(f"view {name}: missing {_some(missing)}; not expected {_some(extra)}")
        with open_store(pipeline.to) as store:
            counted = store.admission("shop").to_pylist()
        for row in counted:
            fate = fates.get((row["topic"], row["partition"]), Counter())
            for verdict in ("admitted", "late", "duplicate", "future", "malformed"):
                if row[verdict] != fate[verdict]:
                    place = f"{row['topic']}/{row['partition']}"
                    raise Wrong(f"{place}: {row[verdict]} records counted as {verdict}, {fate[verdict]} are")
        if sent != rows_of(pipeline.views["by_user"]):
            raise Wrong(f"the topic of changes ends in {_some(sent)}, the view holds {_some(views['by_user'])}")
        return f"{sum(row['records'] for row in counted):,} records, {len(views)} views and a topic of changes"


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait for something, but not for ever."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"{what} did not come in {PATIENCE:.0f} s")
        time.sleep(0.05)


def patiently(do: Callable[[], None]) -> None:
    """Do it again while a server is not back yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            do()
        except MillstreamError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def _last_sent(log: Any) -> Counter[Any]:
    """What the topic of changes holds in the end: the last row of each key, unless it was deleted."""
    last: dict[bytes | None, Any] = {}
    for partition, bound in log.bounds("out").items():
        for record in log.read("out", partition, bound.start, bound.end):
            last[record.key] = None if record.value is None else json.loads(record.value)
    return Counter((row["user"], row["ten"], row["total"]) for row in last.values() if row is not None)


def _some(rows: Counter[Any]) -> str:
    shown = ", ".join(f"{row!r} × {count}" for row, count in list(rows.items())[:5])
    return f"{sum(rows.values())} rows ({shown}{', …' if len(rows) > 5 else ''})" if rows else "none"
