"""Faults of what is stored: a disk that is full, an older checkpoint, a topic made anew; and rebuilds, which mend."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from millstream.errors import LogFull
from tests.soak.processes import stop_and_go
from tests.soak.runner import Runner, Wrong, patiently, wait
from tests.soak.world import World


def fill_the_disk(world: World) -> str:
    """The disk of log, views and checkpoint is full for a while: the run waits, or ends and says so."""
    if not world.bounded:
        return stop_and_go(world)
    runner = world.running()
    left = world.chance.choice((0, 40, 300))
    with _full(world, left):
        with suppress(LogFull):
            world.feed()
        time.sleep(world.chance.random() * 8)
    before = runner.batches()
    patiently(world.feed)
    wait(lambda: runner.batches() > before or runner.code is not None, "a batch after the disk was full")
    if runner.code is None:
        return "the disk was full for a while"
    runner.failed("disk is full", "no room on the disk")
    return "the disk was full, and the run ended"


@contextmanager
def _full(world: World, left: int) -> Iterator[None]:
    """Only so many KB are left on the disk."""
    ballast = world.disk / "ballast"
    with ballast.open("wb") as file, suppress(OSError):
        file.write(bytes(max(0, shutil.disk_usage(world.disk).free - (left << 10))))
    try:
        yield
    finally:
        ballast.unlink()


def put_back_an_older_checkpoint(world: World) -> str:
    """A copy of the checkpoint from before is put in its place: refused; with the right one it goes on."""
    world.running()
    world.stop()
    newest, old, new = world.checkpoint, world.folder / "old", world.folder / "new"
    shutil.copytree(newest, old)
    for _ in range(2):
        world.running()
    world.stop()
    shutil.move(newest, new)
    shutil.move(old, newest)
    world.feed()
    world.once().failed("older")
    shutil.rmtree(newest)
    shutil.move(new, newest)
    return "an older checkpoint was put in the place of the newest"


def make_a_topic_anew(world: World) -> str:
    """A topic is deleted and made again under the run: refused by name, until the views are computed anew."""
    runner = world.running()
    topic = world.chance.choice(("notes", "users"))
    with world.opened() as log:
        log.delete_topic(topic)
        time.sleep(world.chance.random() * 2)
        log.create_topic(topic, 1)
    patiently(world.feed)
    runner.failed(topic)
    world.once().failed(topic)
    world.catch(world.start("--rebuild"))
    return "a topic was deleted and made again; the views were computed anew"


def rebuild(world: World) -> str:
    """The views are forgotten and computed anew."""
    world.running()
    world.stop()
    world.catch(world.start("--rebuild"))
    return "the views were computed anew"


def rebuild_beside(world: World) -> str:
    """The views are computed anew beside those of the run, and take their place; the run ends."""
    runner = world.running()
    beside = Runner("rebuild", world.file, "--takeover", "--json", "--rate-limit", world.limit)
    try:
        if beside.ended() != 0:
            raise Wrong(f"a rebuild ended with {beside.code}: {beside.said}")
    finally:
        beside.end()
    runner.failed("taken over", "is running")
    return "the views were computed anew beside, and exchanged"
