"""What the workers of a cluster need: our own code is sent to them, libraries must be installed there, and both are checked first.

The package is shipped as one zip file, named by what is in it, so that workers run the code that the driver runs whatever is
installed there. Native libraries (Polars, Arrow and so on) cannot go that way: they are part of the workers' environment.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from millstream.durable import sync
from millstream.errors import MachineError
from millstream.spark.java import cache_folder
from millstream.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MATCHED = ("polars", "pyarrow", "msgspec", "confluent-kafka")
"""Libraries that read the log, or read or write state: they must have one version everywhere."""

_HINT = "give every worker the environment of the driver, see docs/cluster.md; PYSPARK_PYTHON names its Python"
_PACKAGES = ("millstream", "pyspark_millstream", "pyspark_millstream_kafka")
Facts: TypeAlias = dict[str, str]


def archive() -> Path:
    """Return the zip file with our package, made anew when the package has changed."""
    root = Path(__file__).parents[2]
    files = sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py"))
    content = {str(path.relative_to(root)): path.read_bytes() for path in files}
    summed = hashlib.sha256()
    for name, data in content.items():
        summed.update(f"{name}\n{len(data)}\n".encode() + data)
    made = cache_folder() / "ship" / f"millstream-{__version__}-{summed.hexdigest()[:12]}.zip"
    if not made.exists():
        try:
            made.parent.mkdir(parents=True, exist_ok=True)
            fresh = made.with_suffix(f".{os.getpid()}")
            with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as file:
                for name, data in content.items():
                    file.writestr(name, data)
            sync(fresh)  # it is found by its name for good; several may make it at once, each under a name of its own
            fresh.replace(made)
        except OSError as error:
            hint = "set MILLSTREAM_CACHE to a folder that can be written"
            raise MachineError(f"{made} cannot be written: {error.strerror}", hint=hint) from error
    return made


def ship(spark: SparkSession) -> None:
    """Send our package to the workers of a session, and refuse workers that cannot run it."""
    context = spark.sparkContext
    context.addPyFile(str(archive()))
    where = f"the workers of {context.master}"
    wanted = {**here(), "our code in": archive().name}
    for facts in _ask(spark, where, ""):
        if said := difference(facts, wanted):
            raise MachineError(f"{where}: {said}, on host {facts['host']}", hint=_HINT)


def check_shared(spark: SparkSession, path: Path) -> None:
    """Refuse a file that the workers do not see: a checkpoint must be in a folder that all machines share."""
    for facts in _ask(spark, f"the workers of {spark.sparkContext.master}", str(path)):
        if not facts["seen"]:
            raise MachineError(
                f"{path.parent} is not seen from host {facts['host']}: state that one worker writes is lost to the others",
                hint="name a folder that all machines share with checkpoint=",
            )


def here() -> Facts:
    """The facts of this process: each worker must have the same."""
    found = {name: _version(name) for name in MATCHED}
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **found,
        "our code in": Path(__file__).parents[2].name,
    }


def difference(worker: Facts, driver: Facts) -> str:
    """Say in what a worker differs, or nothing.

    >>> difference({"python": "3.11", "polars": "1.0"}, {"python": "3.11", "polars": "1.9"})
    'found polars 1.0, expected 1.9'
    """
    return next(
        (
            f"found {f'{name} {worker[name]}' if worker[name] else f'no {name}'}, expected {wanted}"
            for name, wanted in driver.items()
            if worker[name] != wanted
        ),
        "",
    )


def cause_of(text: str) -> str:
    """Say in one line why a worker's Python could not run our code."""
    if missing := re.search(r"No module named '?([\w.]+)'?", text):
        return f"their Python has no {missing[1].partition('.')[0]}"
    if versions := re.search(r"PYTHON_VERSION_MISMATCH\] (.+)", text):
        return versions[1]
    if program := re.search(r'Cannot run program "([^"]+)"', text):
        return f"there is no {program[1]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[0])


def _ask(spark: SparkSession, where: str, question: str) -> list[Facts]:
    """Run a small job that has several tasks for every core, so that all workers that are there get some."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    count = 4 * spark.sparkContext.defaultParallelism
    try:
        return spark.sparkContext.parallelize([question] * count, count).mapPartitions(_answer).collect()
    except (Py4JJavaError, PySparkException) as error:
        raise MachineError(f"{where} cannot run Millstream: {cause_of(str(error))}", hint=_HINT) from error


def _answer(questions: Iterable[str]) -> Iterator[Facts]:
    import millstream.kernel.host
    import millstream.spark.stages  # noqa: F401  (what a stage needs can be loaded)

    for question in questions:
        yield {**here(), "host": platform.node(), "seen": "yes" if Path(question).exists() else ""}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def python_path(chosen: str) -> str:
    """The search path of Python on a worker, whose folder the archive is put into before Python starts."""
    return os.pathsep.join(filter(None, (archive().name, chosen)))
