"""Faults of servers: the broker, PostgreSQL and Redis are away for a while, stand still, or forget."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from millstream.errors import ViewStoreUnavailable
from millstream.testing.process import Server
from tests.soak.processes import kill_at_a_place, kill_the_driver
from tests.soak.runner import Wrong, patiently
from tests.soak.world import World


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
    """PostgreSQL is killed and comes back under the run, and under someone who reads a view all the time."""
    if world.postgres is None:
        return kill_at_a_place(world)
    runner = world.running()
    with _reading(world):
        world.postgres.kill()
        world.feed()
        time.sleep(world.chance.random() * 8)
        world.postgres.start()
        world.catch(runner)
    return "PostgreSQL was killed under a reader and came back"


def restart_redis(world: World) -> str:
    """Redis is killed and comes back under the run, which waits for it."""
    if world.redis is None:
        return kill_the_driver(world)
    runner = world.running()
    world.redis.kill()
    world.feed()
    time.sleep(world.chance.random() * 8)
    world.redis.start()
    world.catch(runner)
    return "Redis was killed and came back"


def flush_redis(world: World) -> str:
    """Redis forgets everything; the view is sent to it again."""
    if world.redis is None:
        return kill_at_a_place(world)
    runner = world.running()
    with redis.Redis.from_url(world.redis.url) as client:
        client.flushall()
    world.catch(runner)
    return "Redis was flushed"


def slow_down_a_server(world: World) -> str:
    """A server stands still for seconds, again and again; what is written to it takes as long."""
    servers: list[Server] = [server for server in (world.broker, world.redis) if server is not None]
    if not servers:
        return kill_the_driver(world)
    runner, server = world.running(), world.chance.choice(servers)
    before = runner.batches()
    for _ in range(3):
        if server is not world.broker:
            world.feed()
        if server.pid is not None:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(world.chance.random() * 4)
            os.kill(server.pid, signal.SIGCONT)
        time.sleep(0.5)
        patiently(world.feed)
    if runner.batches() == before:
        world.catch(runner)
    return f"the {server.name} was slow"


@contextmanager
def _reading(world: World) -> Iterator[None]:
    """Read a view all the time: every answer is a view, or says that the store is away."""
    view, stop = world.pipeline.views["by_user"], threading.Event()
    reads, wrong = [0], list[Exception]()

    def read() -> None:
        while not stop.wait(0.05):
            try:
                view.to_arrow()
                reads[0] += 1
            except ViewStoreUnavailable:
                pass
            except Exception as error:
                wrong.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
        before = reads[0]
        patiently(lambda: _more(reads, before))
    finally:
        stop.set()
        reader.join(60)
    if wrong:
        raise Wrong(f"a reader met {wrong[0]!r}") from wrong[0]


def _more(reads: list[int], before: int) -> None:
    if reads[0] == before:
        raise ViewStoreUnavailable("no read since the server is back")
