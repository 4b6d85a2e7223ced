"""A process that captures, so that it can be killed; and a thread that does, so that it can be watched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.capture.contract import Source
from millstream.capture.loop import Report, Settings, capture
from millstream.log.contract import Log
from tests.capture.databases import Database
from tests.capture.topics import assert_same
from tests.waiting import until

COMMAND = [sys.executable, "-c", "from millstream.cli import main; main()"]


def started(*arguments: str, failpoint: str = "") -> subprocess.Popen[bytes]:
    """``millstream capture start`` with these arguments, which dies at a failpoint."""
    environ = {name: value for name, value in os.environ.items() if name != "MILLSTREAM_FAILPOINT"}
    if failpoint:
        environ["MILLSTREAM_FAILPOINT"] = failpoint
    return subprocess.Popen(
        [*COMMAND, "capture", "start", *arguments], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def settings(database: Database, **more: object) -> Settings:
    return Settings("shop", database.address, **more)  # type: ignore[arg-type]


def once(log: Log, database: Database, *tables: str, **more: object) -> Report:
    """Capture up to now."""
    source = database.source(*(tables or ("a", "b")))
    try:
        return capture(log, source, settings(database, **more), once=True)
    finally:
        source.close()


def same(log: Log, database: Database, *tables: str) -> int:
    source = database.source(*(tables or ("a", "b")))
    try:
        return assert_same(log, source, "shop", tables or ("a", "b"))
    finally:
        source.close()


class Running:
    """A capture in a thread."""

    def __init__(self, log: Log, source: Source, settings: Settings) -> None:
        self.stop = threading.Event()
        self.report = Report()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(log, source, settings))
        self.thread.start()

    def _run(self, *arguments: Any) -> None:
        try:
            capture(*arguments, stop=self.stop, report=self._said)
        except BaseException as error:
            self.error = error

    def _said(self, report: Report) -> None:
        self.report = report

    def wait(self, changes: int) -> None:
        """Until so many changes are in."""
        until(lambda: self.report.changes >= changes or self.error, timeout=60)
        assert self.error is None, self.error

    def end(self) -> None:
        """Stop it, in good order."""
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def running(log: Log, source: Source, settings: Settings) -> Iterator[Running]:
    """A capture for as long as the block lasts; its error at the end."""
    run = Running(log, source, settings)
    try:
        yield run
    finally:
        run.stop.set()
        run.thread.join(60)
    if run.error is not None:
        raise run.error
