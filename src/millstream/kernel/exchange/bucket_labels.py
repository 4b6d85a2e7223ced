"""Which label a bucket goes by, so that Spark deals buckets out evenly.

Spark puts a group into one of its tasks by its own hash of the group's key. Over a few small numbers that hash is uneven: of the
buckets 0 to 7 it gave one task of two 2 and the other 6, which made a stage a third slower. So a bucket goes by the first number
that falls into the task it is meant for. The number of tasks is part of a checkpoint and never changes.

It stands here, although the hash is Spark's: what is kept in a checkpoint is kept under these labels, and marks are told by them, so
whoever runs a chain must give the same ones, be it Spark or a loop. It is arithmetic on three numbers that each port has, and the
leader of a port is known only once the whole chain is built; labels as data would have to be written into every port.
"""

from __future__ import annotations

import itertools
from functools import cache

_SEED = 42
_MASK = 0xFFFFFFFF


@cache
def labels(target: int, buckets: int, tasks: int) -> tuple[int, ...]:
    """The labels of a kernel's buckets: bucket ``i`` falls into task ``i % tasks``.

    >>> labels(1, 4, 1)
    (0, 1, 2, 3)
    >>> [task_of(1, label, 2) for label in labels(1, 6, 2)]
    [0, 1, 0, 1, 0, 1]
    """
    found: list[list[int]] = [[] for _ in range(tasks)]
    for label in itertools.count():
        found[task_of(target, label, tasks)].append(label)
        if all(len(found[number % tasks]) > number // tasks for number in range(buckets)):
            return tuple(found[number % tasks][number // tasks] for number in range(buckets))
    raise AssertionError


def task_of(target: int, label: int, tasks: int) -> int:
    """The task that Spark gives the group (target, label): its murmur3 of two ints, modulo the number of tasks."""
    hashed = _hash(label, _hash(target, _SEED))
    return (hashed - (1 << 32) if hashed >> 31 else hashed) % tasks


def _hash(value: int, seed: int) -> int:
    k = (value & _MASK) * 0xCC9E2D51 & _MASK
    k = (k << 15 | k >> 17) & _MASK
    h = seed ^ (k * 0x1B873593 & _MASK)
    h = ((h << 13 | h >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16
