"""The faults of a soak: each happens to a running pipeline, and leaves it able to go on."""

from __future__ import annotations

from collections.abc import Callable

from tests.soak import processes, records, servers, storage
from tests.soak.world import World

Fault = Callable[[World], str]
"""Harms a pipeline, and says in words how."""
FAULTS: list[Fault] = [
    processes.kill_the_driver, processes.kill_at_a_place, processes.kill_the_jvm, processes.kill_a_worker,
    processes.stop_and_take_over, processes.pause, processes.stop_and_go, processes.interrupt,
    servers.restart_the_broker, servers.restart_the_database, servers.restart_redis, servers.flush_redis, servers.slow_down_a_server,
    storage.fill_the_disk, storage.put_back_an_older_checkpoint, storage.make_a_topic_anew, storage.rebuild, storage.rebuild_beside,
    records.flood, records.append_under_another_clock, records.run_under_another_clock,
]  # fmt: skip
