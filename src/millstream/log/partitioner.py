"""Which partition a key belongs to: Kafka's murmur2, so that a key lives in the same partition on both engines.

The result is frozen: it decides where existing data is. ``tests/log/test_partitioner.py`` holds vectors computed by
Kafka's own Java code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_REMEMBERED = 100_000  # keys, per number of partitions
_BATCH = 24  # below this many keys, numpy's fixed cost is more than plain Python's

_seen: dict[int, dict[bytes, int]] = {}


def murmur2(key: bytes) -> int:
    """Kafka's 32-bit murmur2, unsigned.

    >>> murmur2(b"21") == -973932308 & 0xFFFFFFFF
    True
    """
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if tail := key[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of one key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_of(keys: Sequence[bytes], partitions: int) -> list[int]:
    """The partition of each key. Keys seen before are looked up; many new ones of at most 256 bytes are hashed at once."""
    if partitions == 1:
        return [0] * len(keys)
    seen = _seen.setdefault(partitions, {})
    try:
        return [seen[key] for key in keys]
    except KeyError:
        placed = _hash(keys, partitions)
        if len(seen) > _REMEMBERED:
            seen.clear()
        seen.update(zip(keys, placed, strict=True))
        return placed


def _hash(keys: Sequence[bytes], partitions: int) -> list[int]:
    if len(keys) < _BATCH:
        return [partition_of(key, partitions) for key in keys]
    longest = max(map(len, keys))
    if longest > 256:
        return [partition_of(key, partitions) for key in keys]
    result: list[int] = ((_murmur2_many(keys, longest) & 0x7FFFFFFF) % partitions).tolist()
    return result


def _murmur2_many(keys: Sequence[bytes], longest: int) -> npt.NDArray[np.uint32]:
    """Run the same steps over all keys at once: one little-endian word of every key per step, shorter keys masked out."""
    width = (longest + 3) // 4 or 1
    lengths = np.fromiter(map(len, keys), np.uint32, len(keys))
    # Padding with NULs is what the tail of murmur2 sees anyway: it takes the missing bytes as zero.
    words: npt.NDArray[np.uint32] = np.array(keys, f"S{width * 4}").view("<u4").reshape(len(keys), width)
    m = np.uint32(_M)
    h = np.uint32(_SEED) ^ lengths
    whole = lengths // 4
    for i in range(width):
        k = words[:, i] * m
        k = (k ^ (k >> np.uint32(24))) * m
        h = np.where(i < whole, (h * m) ^ k, h)
    tail = words[np.arange(len(keys)), np.minimum(whole, width - 1)]
    h = np.where(lengths % 4 > 0, (h ^ tail) * m, h)
    h = (h ^ (h >> np.uint32(13))) * m
    return h ^ (h >> np.uint32(15))
