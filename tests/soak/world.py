"""A pipeline of a random shop on real servers, run by the command in a process of its own, that faults may happen to.

What is right at the end is computed from the log by plain Python (:mod:`tests.runtime.random_shop`), so whatever a fault did
to an append counts as it stands in the log.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from millstream.log import Log, open_log
from millstream.pipeline import Pipeline
from millstream.runtime.checkpoint import folder_for
from millstream.store import open_writer
from millstream.testing import KafkaBroker, PostgresServer, RedisServer
from tests.runtime.random_shop import Shop, Supply
from tests.runtime.shop_file import load
from tests.soak.right import compare
from tests.soak.runner import Runner, Wrong, wait

FILE = """
from pathlib import Path
from tests.runtime.random_shop import Shop

shop = Shop({seed}).pipeline("shop", Path({folder!r}), {log!r}, {to!r})
shop.sink("out", shop.views["by_user"], "topic:out")
"""
CACHE = 'shop.sink("cache", shop.views["by_user"], {url!r})\n'
DISK = 192 << 20
"""Bytes of the disk that log, views and checkpoint are on; a round needs a few MB."""
_OWN = "SOAK_DISKS"


def with_disks_of_its_own() -> None:
    """Begin the soak again in a mount namespace of its own, where that may be: its disks go when it ends, however it ends."""
    own = ["unshare", "-m"]
    if _OWN not in os.environ and shutil.which("unshare"):
        allowed = subprocess.run([*own, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
        os.environ[_OWN] = "yes" if allowed else ""
        if allowed:
            os.execvp(own[0], [*own, sys.executable, "-m", "tests.soak", *sys.argv[1:]])


class World:
    """One pipeline, its log, its store, the records that come, and the process that runs it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-soak-"))
        self.disk = self.folder / "disk"
        self.bounded = bool(os.environ.get(_OWN))
        self.broker = KafkaBroker() if self.chance.random() < 0.5 else None
        self.postgres = PostgresServer() if self.chance.random() < 0.5 else None
        self.redis = RedisServer() if self.chance.random() < 0.5 else None
        self.limit = self.chance.choice((20, 100, 4_000_000))
        self.shop, self.supply = Shop(self.chance.randrange(1 << 20)), Supply(seed)
        self._servers = ExitStack()
        self.runner: Runner | None = None

    def __enter__(self) -> Self:
        self.disk.mkdir()
        if self.bounded:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", self.disk], check=True)
        for server in filter(None, (self.broker, self.postgres, self.redis)):
            self._servers.enter_context(server)
        self.log = self.broker.url if self.broker else f"sqlite:{self.disk / 'log.db'}"
        self.to = self.postgres.address if self.postgres else f"sqlite:{self.disk / 'views.db'}"
        self.file = self.folder / "shop.py"
        text = FILE.format(seed=self.shop.seed, folder=str(self.disk), log=self.log, to=self.to)
        self.file.write_text(text + (CACHE.format(url=self.redis.url) if self.redis else ""), encoding="utf-8")
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
        self._unmount()
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep(self) -> Path:
        """Where its files are, for whoever looks for what went wrong."""
        shutil.copytree(self.disk, self.folder / "kept", dirs_exist_ok=True)
        self._unmount()
        return self.folder

    def _unmount(self) -> None:
        if self.bounded:
            subprocess.run(["umount", "-l", self.disk], check=False)

    @property
    def name(self) -> str:
        """What it runs on, in words."""
        store = "PostgreSQL" if self.postgres else "SQLite"
        sinks = ", a topic and Redis" if self.redis else " and a topic"
        return f"{'Kafka' if self.broker else 'SQLite'} to {store}{sinks}, {self.limit:,} records a batch"

    @property
    def checkpoint(self) -> Path:
        """The folder of its checkpoint, of whatever version its views are."""
        pipeline = self.pipeline
        with open_writer(pipeline.to) as writer:
            return folder_for(self.disk / "shop.check", writer.last(pipeline.name))

    @property
    def pipeline(self) -> Pipeline:
        """The definition, as the file has it."""
        return load(self.file)

    @contextmanager
    def opened(self) -> Iterator[Log]:
        """Its log."""
        with open_log(self.log, create=False) as log:
            yield log

    def feed(self, log: Log | None = None) -> None:
        """Append some records to every topic, in several appends."""
        if log is None:
            with self.opened() as found:
                return self.feed(found)
        for _ in range(self.chance.randint(1, 4)):
            log.append("clicks", self.supply.clicks(self.chance.randint(1, 60)))
            log.append("notes", self.supply.notes(self.chance.randint(1, 10)))
            log.append("users", self.supply.users(self.chance.randint(1, 10)))
        return None

    def start(self, *options: str, failpoint: str = "", variables: Mapping[str, str] | None = None) -> Runner:
        """Run the pipeline until something ends it."""
        asked = ("run", self.file, "--json", "--rate-limit", self.limit, *options)
        self.runner = Runner(*asked, failpoint=failpoint, variables=variables)
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

    def once(self, *options: str) -> Runner:
        """Run until everything is done; the run has ended."""
        self.stop()
        runner = self.start("--once", *options)
        runner.ended()
        self.runner = None
        return runner

    def check(self) -> str:
        """Finish what is left and compare everything with the recomputation; say what was compared."""
        runner = self.once()
        if runner.code != 0:
            raise Wrong(f"the last run ended with {runner.code}: {runner.said}")
        return compare(self.shop, self.pipeline, self.redis.url if self.redis else None)
