"""Redis as an sink: a view is one hash, a field for each key; a script writes rows together with the batch's number.

Redis runs a script whole before anything else, and stands still meanwhile. So a batch of many rows comes in parts, each a script:
how many of them are there stands in a key of its own, and the number of the batch is set by the last. The script says which part
it wants next, so a repeat goes on where the batch was cut off, and again from what Redis still has if it lost something. What it
forgets when it crashes (``appendfsync everysec`` loses a second) it forgets together with the numbers, and the next part finds out.

With a time to live each row is a key of its own, which expires so long after it was last written; the number never does. What has
expired is not noticed: such a view is a cache, and no copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from millstream.address import parse_redis
from millstream.errors import ConfigError, MachineError, SinkError, SinkUnavailable
from millstream.failpoint import failpoint
from millstream.sink import json_rows
from millstream.sink.contract import ChangeSet, Packed, Sink, check_remembered
from millstream.store.contract import Refusal

_TIMEOUT = 30.0
ROWS, BYTES = 10_000, 8 << 20
"""Rows and bytes of a part, at most; but always one row."""

_SCRIPT = """
local hash, mark, parts = KEYS[1], KEYS[2], KEYS[3]
local sequence, after, part, of, digest, pairs = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local known = redis.call('GET', mark)
if after ~= '' and tonumber(known or '-1') < tonumber(after) then return -1 end
if sequence ~= '' then
  if known and tonumber(known) >= tonumber(sequence) then return of end
  local begun, there, same = string.match(redis.call('GET', parts) or '', '^(%d+) (%d+) (%S+)$')
  if begun and tonumber(begun) > tonumber(sequence) then return of end
  local wanted = 0
  if begun == sequence and same == digest then wanted = tonumber(there) end
  if wanted ~= part then return wanted end
end
-- WRITE
if sequence ~= '' then
  if part + 1 < of then
    redis.call('SET', parts, sequence .. ' ' .. (part + 1) .. ' ' .. digest)
  else
    redis.call('SET', mark, sequence)
    redis.call('DEL', parts)
  end
end
return part + 1
"""

_FIELDS = """
for first = 7, 6 + pairs, 2000 do
  redis.call('HSET', hash, unpack(ARGV, first, math.min(first + 1999, 6 + pairs)))
end
for first = 7 + pairs, #ARGV, 2000 do
  redis.call('HDEL', hash, unpack(ARGV, first, math.min(first + 1999, #ARGV)))
end
"""
_KEYS = """
for at = 7, 5 + pairs, 2 do
  redis.call('SET', hash .. ':' .. ARGV[at], ARGV[at + 1], 'PX', TTL)
end
for at = 7 + pairs, #ARGV do
  redis.call('UNLINK', hash .. ':' .. ARGV[at])
end
"""

_SEAL = """
local known = redis.call('GET', KEYS[1]) or ''
if known == ARGV[1] then return 1 end
if known ~= ARGV[2] or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""


class Part(NamedTuple):
    """Fields and values, one after the other, and fields to remove."""

    pairs: list[str]
    gone: list[str]


class RedisSink(Sink):
    """A hash of JSON documents by JSON keys; with ``ttl`` a key for each. All keys of a view carry its name in braces: one slot of a cluster."""

    def __init__(self, url: str, view: str, producer: str, key: tuple[str, ...], ttl: timedelta | None = None) -> None:
        try:
            import redis
        except ImportError as error:
            raise MachineError("Redis needs its client", hint="pip install 'millstream[redis]'") from error
        if not key:
            raise ConfigError(f"view {view} has no key, so it cannot be a hash in Redis", hint="group_by gives it one")
        self._errors, self._key, self._ttl = redis.exceptions, list(key), ttl
        write = _FIELDS if ttl is None else _KEYS.replace("TTL", str(ttl // timedelta(milliseconds=1)))
        self._hash, self._mark = f"millstream:{{{view}}}", f"millstream:{{{view}}}:{producer}"
        self._parts = f"{self._mark}:parts"
        address = parse_redis(url)
        self._where = address.where
        with self._ours():
            self._client = redis.Redis.from_url(
                address.resolved(), socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT
            )
            scripts = (_SCRIPT.replace("-- WRITE", write), _SEAL)
            self._script, self._seal = (self._client.register_script(each) for each in scripts)

    def last(self) -> int | None:
        """The number beside the hash."""
        with self._ours():
            found: Any = self._client.get(self._mark)
        return None if found is None else int(found)

    def pack(self, change_set: ChangeSet) -> Packed:
        """All rows, then all fields to remove, cut into parts."""
        rows, refused = json_rows.writable(change_set.rows)
        fields, values = json_rows.documents(rows.select(self._key)), json_rows.documents(rows)
        pairs = [each for pair in zip(fields.to_list(), values.to_list(), strict=True) for each in pair]
        keys, _ = json_rows.writable(change_set.gone)  # what was refused when it came is not there
        gone = json_rows.documents(keys)
        removed, n = gone.to_list(), rows.height
        sizes = pl.concat([fields.str.len_bytes() + values.str.len_bytes(), gone.str.len_bytes()])
        cuts = _cuts(sizes.to_numpy())
        return Packed([Part(pairs[2 * a : 2 * b], removed[max(0, a - n) : max(0, b - n)]) for a, b in cuts], refused)

    def send(self, payload: list[Part], sequence: int, *, marked: bool, after: int | None = None) -> list[Refusal]:
        """Run the script for each part that is not there."""
        digest = _digest(payload) if len(payload) > 1 else ""
        numbers = [sequence if marked else "", "" if after is None else after]
        at = 0
        while at < len(payload):
            part = payload[at]
            with self._ours():
                done: Any = self._script(
                    keys=[self._hash, self._mark, self._parts],
                    args=[*numbers, at, len(payload), digest, len(part.pairs), *part.pairs, *part.gone],
                )
            if done == -1:
                check_remembered(f"Redis at {self._where}", self.last(), after)
            at = max(0, done)
            failpoint("sink.redis.part")
        return []

    def held(self) -> Iterator[tuple[str, str]] | None:
        """The fields of the hash; of rows that expire nobody knows which there should be."""
        return None if self._ttl is not None else self._fields()

    def _fields(self) -> Iterator[tuple[str, str]]:
        with self._ours():
            for key, row in dict(self._client.hscan_iter(self._hash, count=1000)).items():  # a field may come twice
                yield key.decode(), row.decode()

    def anew(self) -> bool:
        """Remove the hash, or the keys: nothing of it is anyone else's."""
        with self._ours():
            self._client.unlink(self._hash, self._parts)
            if self._ttl is not None:
                for key in self._client.scan_iter(match=f"{self._hash}:{{*", count=1000):  # those of rows are JSON
                    self._client.unlink(key)
        return True

    def seal(self, sequence: int, *, after: int | None) -> bool:
        """Set the number, unless parts of a batch are there."""
        with self._ours():
            done: Any = self._seal(keys=[self._mark, self._parts], args=[sequence, "" if after is None else after])
        return bool(done)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            yield
        except (self._errors.ConnectionError, self._errors.TimeoutError, self._errors.BusyLoadingError) as error:
            raise SinkUnavailable(f"Redis at {self._where}: {error}", hint="is it running?") from error
        except self._errors.OutOfMemoryError as error:
            raise SinkUnavailable(f"Redis at {self._where}: {error}", hint="give it more memory (maxmemory)") from error
        except self._errors.RedisError as error:
            raise SinkError(f"Redis at {self._where}: {error}") from error


def _cuts(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where to cut rows of these sizes into parts."""
    ends, at = np.cumsum(sizes, dtype=np.int64), 0
    while at < len(ends):
        fits = int(np.searchsorted(ends, (ends[at - 1] if at else 0) + BYTES, "right"))
        end = max(at + 1, min(at + ROWS, fits, len(ends)))
        yield at, end
        at = end


def _digest(parts: list[Part]) -> str:
    """A digest of a batch and of how it is cut: another batch under its number has another."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(repr((len(part.pairs), len(part.gone))).encode())
        for each in (part.pairs, part.gone):
            made.update("\0".join(each).encode())
    return made.hexdigest()
