"""What is used of Spark's inside, and of librdkafka's: each thing has a name, a self-test, a switch and a fallback.

A self-test checks, in milliseconds, that the inside is what it was in the versions of Spark that are tested. If it is not, or if
``MILLSTREAM_WITHOUT`` names the thing, the fallback is taken: that costs speed or comfort and never an answer. A thing that has no
fallback is an error when it is needed. The modules of this folder define what they use, each as an :class:`Internal`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from millstream.errors import ConfigError, SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SWITCH = "MILLSTREAM_WITHOUT"
EVERYTHING = "all"
TESTED = ">=4.2,<4.4"
"""The versions of PySpark that the tests pass with; pyproject.toml says the same."""
NAMES = (
    "fork",
    "daemon",
    "quiet_daemon",
    "quiet_driver",
    "links",
    "class_archive",
    "checkpoint_files",
    "command_line",
    "signals",
    "jvm_process",
    "active_context",
    "class_check",
    "pipelined_state",
    "arrow_schema",
    "try_eval",
    "python_functions",
    "kafka_messages",
)
"""All of them, in the order in which a session meets them."""
NO_OTHER_WAY = ("try_eval",)

_log = logging.getLogger("millstream")
_testing = threading.Lock()  # two threads would disturb each other in a session
_tested: dict[str, str] = {}
"""By name: why the self-test failed in this process, or nothing if it passed."""


class Unexpected(Exception):
    """A self-test found something else than it expected."""


def expect(holds: object, otherwise: str) -> None:
    """Let a self-test fail unless something holds."""
    if not holds:
        raise Unexpected(otherwise)


@dataclass(frozen=True)
class Finding:
    """Whether something is used, and if not, why."""

    state: Literal["on", "off", "failed"]
    why: str = ""


@dataclass(frozen=True)
class Internal:
    """One thing of Spark's inside; ``test`` raises if it is not as expected and gets the session if it needs one."""

    name: str
    without: str
    """The fallback, as the rest of a sentence after "instead"; empty if there is none."""
    test: Callable[[], None] | None = field(default=None, compare=False)
    test_in: Callable[[SparkSession], None] | None = field(default=None, compare=False)
    of: str = "pyspark"
    """The package whose inside it is."""

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"{self.name} is not among the names of the registry")

    def finding(self, spark: SparkSession | None = None) -> Finding:
        """Whether it is used. The self-test runs once in a process; one that needs a session counts as passed until there is one."""
        if self.name in switched_off(os.environ.get(SWITCH, "")):
            return Finding("off", f"named in {SWITCH}")
        with _testing:
            if self.name not in _tested:
                if self.test_in is not None and spark is None:
                    return Finding("on")
                _tested[self.name] = self._why(spark)
            why = _tested[self.name]
        return Finding("failed", why) if why else Finding("on")

    def works(self, spark: SparkSession | None = None, *, tell: bool = True) -> bool:
        """Whether to use it. A self-test that failed is logged once, as a warning of the logger ``millstream``."""
        known = self.name in _tested
        found = self.finding(spark)
        if found.state == "failed" and not known and tell:
            _log.warning("%s: %s is not used: %s; instead %s", _version(self.of), self.name, found.why, self.without)
        return found.state == "on"

    def require(self, spark: SparkSession, needed: str) -> None:
        """Raise SparkError if it is not used; ``needed`` names what needs it."""
        found = self.finding(spark)
        if found.state == "off":
            raise SparkError(f"{needed} needs {self.name}, which {SWITCH} switches off", hint=f"unset {SWITCH}")
        if found.state == "failed":
            raise SparkError(
                f"{needed} needs {self.name} of Spark's inside, and {_version()} is not as expected: {found.why}",
                hint=f"these versions are tested: pip install 'pyspark{TESTED}'",
            )

    def _why(self, spark: SparkSession | None) -> str:
        try:
            if self.test is not None:
                self.test()
            if self.test_in is not None and spark is not None:
                self.test_in(spark)
        except Exception as error:
            said = str(error).strip().splitlines()
            text = said[0] if said else "no reason given"
            return text if isinstance(error, Unexpected) else f"{type(error).__name__}: {text}"
        return ""


@cache
def switched_off(text: str) -> frozenset[str]:
    """The names that a value of the switch has; ``all`` stands for every one that has a fallback.

    >>> sorted(switched_off("links, fork"))
    ['fork', 'links']
    """
    wanted = {name.strip() for name in text.split(",")} - {""}
    if unknown := sorted(wanted - {*NAMES, EVERYTHING}):
        raise ConfigError(f"{SWITCH}: {unknown[0]!r} is unknown", hint=f"known: {', '.join(NAMES)}, or {EVERYTHING}")
    return frozenset({*NAMES} - {*NO_OTHER_WAY} if EVERYTHING in wanted else wanted)


def forget_tests() -> None:
    """Let every self-test run again."""
    _tested.clear()


def _version(package: str = "pyspark") -> str:
    return f"{'Spark' if package == 'pyspark' else package} {version(package)}"
