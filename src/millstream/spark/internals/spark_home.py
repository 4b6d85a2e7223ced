"""Where Spark is: the folder of its wheel, and folders of links to it that are given to Spark as its own."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from millstream.errors import MachineError
from millstream.spark.internals.registry import Internal, expect

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
"""The class that a driver's JVM is started with, by which our launcher knows one."""
_LINKED = ("bin", "jars")


def spark_folder() -> Path:
    """Return the folder of the installed pyspark, without importing it."""
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise MachineError("pyspark is not installed", hint="pip install --force-reinstall millstream")
    return Path(found.submodule_search_locations[0])


def spark_home(home: Path) -> Path:
    """Return a folder that is Spark's but for its Python.

    Spark puts a zip file with its Python before everything else. A zip file has no compiled modules, so that each of the
    Python processes of a query, some ten of them, would compile the same modules again: 0.3 s each.
    """
    if not LINKS.works():
        return spark_folder()
    folder = home / "spark"
    for name in _LINKED:
        link = folder / name
        if not link.is_symlink():
            try:
                folder.mkdir(exist_ok=True)
                link.symlink_to(spark_folder() / name)
            except FileExistsError:
                pass  # another process was faster
            except OSError:  # the cache may be on a read-only disk
                return spark_folder()
    return folder


def cluster_home() -> Path:
    """Return a folder that is Spark's, for a ``local-cluster``: its workers leave their files in it, and it ends with us."""
    folder = Path(tempfile.mkdtemp(prefix="millstream-cluster-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in (*_LINKED, "python"):
        (folder / name).symlink_to(spark_folder() / name)
    return folder


def _test_links() -> None:
    for name in ("spark-submit", "spark-class", "load-spark-env.sh"):
        expect((spark_folder() / "bin" / name).is_file(), f"it has no bin/{name}")
    text = (spark_folder() / "bin" / "spark-class").read_text(encoding="utf-8")
    expect("${SPARK_HOME}/jars" in text, "bin/spark-class does not look for jars in its own folder")


def _test_class_archive() -> None:
    text = (spark_folder() / "bin" / "spark-submit").read_text(encoding="utf-8")
    expect(SUBMIT in text, f"bin/spark-submit does not run {SUBMIT}")


CLASS_ARCHIVE = Internal("class_archive", "the JVM reads every class from its jar", _test_class_archive)
LINKS = Internal("links", "SPARK_HOME is the folder of the wheel, with its Python in a zip file", _test_links)
