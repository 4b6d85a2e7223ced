"""What Millstream needs on this machine. Each check tries the thing itself; its line says ok, or what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from millstream.address import PostgresAddress, parse_address, parse_log
from millstream.config import Settings
from millstream.errors import MachineError, MillstreamError
from millstream.log import open_log
from millstream.spark import java
from millstream.spark.internals.every import EVERY
from millstream.spark.internals.registry import SWITCH, TESTED, Finding
from millstream.spark.jars import avro_reader, kafka_connector
from millstream.store import open_reader

_START = """
import json, time; begun = time.monotonic()
from millstream.spark.internals.every import EVERY
from millstream.spark.session import spark_session, stop_session
spark = spark_session()
assert spark.range(10).count() == 10
print(time.monotonic() - begun)
print(json.dumps({each.name: vars(each.finding(spark)) for each in EVERY}))
stop_session()
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, what was found, and what to do if that is not good."""

    name: str
    ok: bool
    found: str
    hint: str = ""


def checks(settings: Settings, *, spark: bool = True, views: str | None = None) -> Iterator[Check]:
    """Look at one thing after the other, also at a place for views. Starting Spark twice, to measure, takes up to a minute."""
    yield _check("python", _python)
    yield _check("sqlite", _sqlite)
    yield _check("java", _java)
    yield _check("spark's inside", lambda: _inside({each.name: each.finding() for each in EVERY}))
    yield _check("kafka connector", kafka_connector)
    yield _check("avro", avro_reader)
    yield _check("cache folder", lambda: _writable(java.cache_folder(), "set MILLSTREAM_CACHE"))
    yield _check("temporary folder", lambda: _writable(Path(tempfile.gettempdir()), "set TMPDIR"))
    yield _check("log", lambda: _log(settings))
    if views is not None:
        yield _check("views", lambda: _views(views))
    if spark:
        found: dict[str, Finding] = {}
        yield _check("spark", lambda: _spark(found))
        if found:
            yield _check("spark's inside, in a session", lambda: _inside(found))
        yield _check("class-data archive", _archive)


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except MillstreamError as error:
        return Check(name, False, error.message, error.hint)


def _python() -> str:
    return f"{sys.version.split()[0]} at {sys.executable}"


def _sqlite() -> str:
    import apsw

    from millstream.database import check_sqlite

    check_sqlite(apsw.sqlite_lib_version())
    with tempfile.TemporaryDirectory() as folder, open_log(f"sqlite:{folder}/log.db") as log:
        log.create_topic("doctor")
    return f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}), with page checksums"


def _java() -> str:
    found = java.find_java()
    return f"{found.version} from {found.origin}: {found.home}"


def _writable(folder: Path, otherwise: str) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise MachineError(f"{folder}: {error.strerror}", hint=f"make it writable, or {otherwise}") from error
    return str(folder)


def _log(settings: Settings) -> str:
    address = parse_log(settings.log)
    if address.embedded and not Path(address.place).exists():
        folder = Path(address.place).absolute().parent
        _writable(folder, "name a log in another folder: --log, or log in millstream.toml")
        return f"{settings.log} (none yet; it can be made there)"
    with open_log(settings.log, create=False, kafka=settings.kafka) as log:
        return f"{settings.log}, {len(log.topics())} topics"


def _views(address: str) -> str:
    place = parse_address(address)
    if isinstance(place, PostgresAddress):
        from millstream.store.postgres.server import Server

        with closing(Server(place)) as server:
            return server.describe()
    if not place.exists():
        _writable(place.absolute().parent, "name views in another folder")
        return f"{address} (none yet; they can be made there)"
    with open_reader(address) as store:
        return f"{address}, {len(store.views())} views"


def _inside(found: Mapping[str, Finding]) -> str:
    """What is used of Spark's inside; what failed its self-test is an error that says what is done instead."""
    failed = [each for each in EVERY if found[each.name].state == "failed"]
    if failed:
        raise MachineError(
            "; ".join(f"{each.name} is not used: {found[each.name].why}" for each in failed),
            hint=f"instead {', '.join(each.without or 'what needs it is refused' for each in failed)};"
            f" tested is pyspark{TESTED}; to silence this: {SWITCH}={','.join(each.name for each in failed)}",
        )
    named = {state: [name for name, each in found.items() if each.state == state] for state in ("on", "off")}
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in named.items() if names)


def _spark(found: dict[str, Finding]) -> str:
    """Start it, and put what is found of its inside into ``found``."""
    seconds, inside = _start("off")
    found |= inside
    return f"starts in {seconds:.1f} s without the class-data archive"


def _archive() -> str:
    """Make the archive if there is none, so that there is something to measure."""
    if not java.uses_archive():
        return "not used; the line of Spark's inside says why"
    found = java.find_java()
    made = ""
    if not java.archive_of(found).exists():
        subprocess.run(
            [sys.executable, "-c", "from millstream.spark.training import train; train()"],
            capture_output=True,
            check=False,
        )
        made = "made just now; "
    archive = java.archive_of(found)
    if not archive.exists() and java.archive_is_being_made(found):
        return "is being made in the background; Spark starts faster once it is there"
    if not archive.exists() or archive.stat().st_size == 0:
        raise MachineError(
            "could not be made; Spark starts without it, only slower", hint=f"delete {archive} to try again"
        )
    return f"{made}Spark starts in {_start('keep')[0]:.1f} s with it ({archive.stat().st_size / 1e6:.0f} MB)"


def _start(archive: str) -> tuple[float, dict[str, Finding]]:
    """Seconds from nothing to a first answer, in a process of its own, and what was found there of Spark's inside."""
    result = subprocess.run(
        [sys.executable, "-c", _START],
        env=os.environ | {"MILLSTREAM_CLASS_ARCHIVE": archive},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if result.returncode != 0:
        raise MachineError(
            f"Spark did not start: {result.stderr.strip().splitlines()[-1:]}", hint="see the lines above this one"
        )
    seconds, inside = result.stdout.splitlines()[-2:]
    return float(seconds), {name: Finding(**each) for name, each in json.loads(inside).items()}
