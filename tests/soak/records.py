"""Faults of records and clocks: a flood of what is bad and late, and a clock that jumps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
from tests.soak.processes import stop_and_go
from tests.soak.world import World

HOUR = 3600


def flood(world: World) -> str:
    """Thousands of records at once that are bad, late, repeated or of the future."""
    runner = world.running()
    with world.opened() as log:
        for _ in range(3):
            log.append("clicks", [_bad(world) for _ in range(1000)])
            log.append("users", [Event(b"{", key=b"1") for _ in range(300)])
    world.catch(runner)
    return "a flood of bad and late records came"


def _bad(world: World) -> Event:
    chance, supply = world.chance, world.supply
    kind = chance.randrange(4)
    if kind == 0 or not supply.sent:
        return Event(chance.choice((b"nonsense", b"\xff\xfe", None, b'{"user": "x"}')), key=b"1")
    if kind == 1:
        return chance.choice(supply.sent)
    at = supply.clock + (timedelta(hours=-1) if kind == 2 else timedelta(days=365_000))
    value = {"user": 1, "page": "/a", "amount": 1.0, "at": at.isoformat(), "who": "1", "nth": None}
    return Event(json.dumps(value).encode(), key=b"1")


def append_under_another_clock(world: World) -> str:
    """A producer whose clock is an hour ahead appends, then one whose clock is right."""
    if world.broker is not None:
        return stop_and_go(world)
    runner = world.running()
    ahead = SqliteLog(world.disk / "log.db", create=False, clock=lambda: time.time_ns() // 1_000_000 + HOUR * 1000)
    with ahead:
        world.feed(ahead)
    world.feed()
    world.catch(runner)
    return "a producer's clock was an hour ahead"


def run_under_another_clock(world: World) -> str:
    """The clock of the run jumps an hour, and perhaps back; then it is killed, and another runs under the right clock."""
    library, clock = world.folder / "clock.so", world.folder / "clock"
    if not _is_compiled(library):
        return append_under_another_clock(world)
    world.stop()
    clock.write_bytes(_seconds(0))
    runner = world.start(variables={"LD_PRELOAD": str(library), "SOAK_CLOCK": str(clock)})
    world.catch(runner)
    jumps = world.chance.choice(((HOUR, 0), (-HOUR, 0), (HOUR,), (-HOUR,)))
    for jump in jumps:
        with clock.open("r+b") as file:  # in place: the processes have it mapped
            file.write(_seconds(jump))
        world.catch(runner)
    runner.kill()
    runner.ended()
    return f"the clock of the run jumped an hour {'ahead' if jumps[0] > 0 else 'back'}{' and again' if len(jumps) > 1 else ''}"


def _seconds(ahead: int) -> bytes:
    return ahead.to_bytes(8, sys.byteorder, signed=True)


def _is_compiled(library: Path) -> bool:
    """Make the library that moves the clock of a process, where there is a compiler."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return False
    source = Path(__file__).with_name("clock.c")
    return subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=False).returncode == 0
