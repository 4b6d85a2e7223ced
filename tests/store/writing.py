"""Batch after batch into a server, while something happens to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millstream.store import open_writer
from tests.contracts.store import Batches
from tests.store.test_faults import commit_batch
from tests.waiting import until


@contextmanager
def writing(address: str, done: list[int]) -> Iterator[Callable[[int], None]]:
    """Write from another thread, a number in ``done`` for each batch; gives who waits for so many more. Nothing may fail."""
    problems: list[BaseException] = []
    over = threading.Event()

    def write() -> None:
        try:
            with open_writer(address) as writer:
                batches = Batches(writer)
                while not over.is_set():
                    assert commit_batch(batches, len(done))
                    done.append(len(done))
        except BaseException as error:
            problems.append(error)

    def more(count: int) -> None:
        goal = len(done) + count
        until(lambda: len(done) >= goal or problems)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield more
    finally:
        over.set()
        thread.join(60)
    assert problems == []
