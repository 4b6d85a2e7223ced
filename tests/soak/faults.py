"""The faults of a soak: each happens to a running pipeline, and leaves it able to go on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.runtime.shop_file import living
from tests.soak.world import World, Wrong, patiently, wait

Fault = Callable[[World], str]
"""Harms a pipeline, and says in words how."""
PLACES = [
    "run.before_delivery", "sink.before_write", "sink.in_transaction", "sink.before_commit", "sink.after_commit",
    "run.after_delivery", "outlet.before_send", "outlet.after_send",
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
    jvm = _one_of(runner.pid, "java")
    if jvm is None:
        raise Wrong("the run has no JVM")
    os.kill(jvm, signal.SIGKILL)
    world.failed(runner)
    return "Spark's JVM was killed"


def kill_a_worker(world: World) -> str:
    """SIGKILL of a Python process of Spark's."""
    runner = world.running()
    world.feed()
    worker = _one_of(runner.pid, "python", besides=runner.pid)
    if worker is None:
        return "no worker was there to be killed"
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
    before = runner.batches()
    world.feed()
    wait(lambda: runner.batches() > before + 1 or runner.code is not None or _feed(world), "a batch after the kill")
    if runner.code is not None:
        world.failed(runner)
        return "a worker was killed; the run ended with an error"
    return "a worker was killed"


def stop_and_take_over(world: World) -> str:
    """SIGSTOP, another takes over, SIGCONT: the first writes nothing more."""
    zombie = world.running()
    world.feed()
    zombie.signal(signal.SIGSTOP)
    world.catch(world.start("--takeover"))
    zombie.signal(signal.SIGCONT)
    world.failed(zombie, "taken over", "is running")
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


def restart_the_broker(world: World) -> str:
    """The broker is killed and comes back under the run."""
    if world.broker is None:
        return kill_the_driver(world)
    runner = world.running()
    world.broker.kill()
    time.sleep(world.chance.random() * 8)
    world.broker.start()
    patiently(world.feed)
    world.catch(runner)
    return "the broker was killed and came back"


def restart_the_database(world: World) -> str:
    """PostgreSQL is killed and comes back under the run."""
    if world.postgres is None:
        return kill_at_a_place(world)
    runner = world.running()
    world.postgres.kill()
    world.feed()
    time.sleep(world.chance.random() * 8)
    world.postgres.start()
    world.catch(runner)
    return "PostgreSQL was killed and came back"


def put_back_an_older_checkpoint(world: World) -> str:
    """A copy of the checkpoint from before is put in its place: refused; with the right one it goes on."""
    world.running()
    world.stop()
    old, new = world.folder / "old", world.folder / "new"
    shutil.copytree(world.checkpoint, old)
    for _ in range(2):
        world.running()
    world.stop()
    world.checkpoint.rename(new)
    old.rename(world.checkpoint)
    world.feed()
    world.failed(world.once(), "older")
    shutil.rmtree(world.checkpoint)
    new.rename(world.checkpoint)
    return "an older checkpoint was put in the place of the newest"


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


FAULTS: list[Fault] = [
    kill_the_driver, kill_at_a_place, kill_the_jvm, kill_a_worker, stop_and_take_over, pause, restart_the_broker,
    restart_the_database, put_back_an_older_checkpoint, stop_and_go, interrupt,
]  # fmt: skip


def _feed(world: World) -> bool:
    """Some more records, a second later: what waits for batches must not wait for want of them."""
    time.sleep(1)
    world.feed()
    return False


def _one_of(session: int, program: str, besides: int = 0) -> int | None:
    """A process of a session that runs that program."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in sorted(living(session)) if pid != besides and program in _program(pid)]
        return bool(found)

    with suppress(Wrong):
        wait(look, program)
    return found[-1] if found else None


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
