"""Faults of processes: the driver, Spark's JVM and its Python workers."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.runtime.shop_file import living
from tests.soak.runner import Wrong, wait
from tests.soak.world import World

PLACES = [
    "run.before_delivery", "store.before_write", "store.in_transaction", "store.before_commit", "store.after_commit",
    "run.after_delivery", "sink.before_send", "sink.after_send",
]  # fmt: skip
"""Where a driver is killed."""


def kill_the_driver(world: World) -> str:
    """SIGKILL at a random moment."""
    runner = world.running()
    world.feed()
    time.sleep(world.chance.random() * 2)
    runner.signal(signal.SIGKILL)
    runner.ended()
    return "the driver was killed"


def kill_at_a_place(world: World) -> str:
    """SIGKILL at a named place of a delivery."""
    world.stop()
    place = world.chance.choice(PLACES)
    runner = world.start(failpoint=f"{place}:kill@{world.chance.randint(1, 3)}")

    wait(lambda: runner.code is not None or _feed(world), f"the driver at {place}")
    if (code := runner.ended()) != -signal.SIGKILL:
        raise Wrong(f"the run ended with {code}: {runner.said}")
    return f"the driver was killed at {place}"


def kill_the_jvm(world: World) -> str:
    """SIGKILL of Spark's JVM."""
    runner = world.running()
    world.feed()
    jvm = one_of(runner.pid, "java")
    if jvm is None:
        raise Wrong("the run has no JVM")
    os.kill(jvm, signal.SIGKILL)
    runner.failed("Spark's JVM ended by SIGKILL")
    return "Spark's JVM was killed"


def kill_a_worker(world: World) -> str:
    """SIGKILL of any Python process of Spark's."""
    runner = world.running()
    world.feed()
    worker = one_of(runner.pid, "python", besides=runner.pid, nth=world.chance.random())
    if worker is None:
        return "no worker was there to be killed"
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    before = runner.batches()
    world.feed()
    wait(lambda: runner.batches() > before + 1 or runner.code is not None or _feed(world), "a batch after the kill")
    if runner.code is not None:
        runner.failed("a Python process of Spark's was killed")
        return "a worker was killed; the run ended and said so"
    return "a worker was killed"


def stop_and_take_over(world: World) -> str:
    """SIGSTOP, another takes over, SIGCONT: the first writes nothing more."""
    zombie = world.running()
    world.feed()
    zombie.signal(signal.SIGSTOP)
    world.catch(world.start("--takeover"))
    zombie.signal(signal.SIGCONT)
    zombie.failed("taken over", "is running")
    return "the driver was stopped, taken over from and woken"


def pause(world: World) -> str:
    """SIGSTOP for some seconds."""
    runner = world.running()
    runner.signal(signal.SIGSTOP)
    world.feed()
    time.sleep(1 + world.chance.random() * 5)
    runner.signal(signal.SIGCONT)
    world.catch(runner)
    return "the driver stood still for seconds"


def stop_and_go(world: World) -> str:
    """SIGTERM, then a new run."""
    world.running()
    world.stop()
    return "the run was stopped in good order"


def interrupt(world: World) -> str:
    """Ctrl-C, then a new run."""
    runner = world.running()
    world.feed()
    runner.signal(signal.SIGINT)
    code = runner.ended()
    if code != 0 or "Traceback" in runner.said:
        raise Wrong(f"an interrupted run ended with {code}: {runner.said}")
    return "the run was interrupted"


def _feed(world: World) -> bool:
    """Some more records, a second later: what waits for batches must not wait for want of them."""
    time.sleep(1)
    world.feed()
    return False


def one_of(session: int, program: str, besides: int = 0, nth: float = 0) -> int | None:
    """A process of a session that runs that program; which one, as a part of all."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in sorted(living(session)) if pid != besides and program in _program(pid)]
        return bool(found)

    with suppress(Wrong):
        wait(look, program)
    return found[int(nth * len(found))] if found else None


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
