"""Redis as an outlet: a view is one hash, a field for each key; one script a batch, with the batch's number inside.

The script checks the number, writes and removes, and sets the number: Redis runs it whole before anything else. What Redis
forgets when it crashes (``appendfsync everysec`` loses a second) it forgets together with the number, and the next batch finds out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millstream.address import parse_redis
from millstream.errors import ConfigError, MachineError, SinkError, SinkUnavailable
from millstream.outlet import text
from millstream.outlet.contract import Outlet, Packed, Parcel, check_remembered
from millstream.sink.contract import Refusal

_TIMEOUT = 30.0

_SCRIPT = """
local hash, mark = KEYS[1], KEYS[2]
local sequence, after, pairs = ARGV[1], ARGV[2], tonumber(ARGV[3])
local known = redis.call('GET', mark)
if after ~= '' and tonumber(known or '-1') < tonumber(after) then return -1 end
if sequence ~= '' and known and tonumber(known) >= tonumber(sequence) then return 0 end
for first = 4, 3 + pairs, 2000 do
  redis.call('HSET', hash, unpack(ARGV, first, math.min(first + 1999, 3 + pairs)))
end
for first = 4 + pairs, #ARGV, 2000 do
  redis.call('HDEL', hash, unpack(ARGV, first, math.min(first + 1999, #ARGV)))
end
if sequence ~= '' then redis.call('SET', mark, sequence) end
return 1
"""


class RedisOutlet(Outlet):
    """A hash of JSON documents by JSON keys. Both keys of a view carry its name in braces: one slot of a Redis cluster."""

    def __init__(self, url: str, view: str, producer: str, key: tuple[str, ...]) -> None:
        try:
            import redis
        except ImportError as error:
            raise MachineError("Redis needs its client", hint="pip install 'millstream[redis]'") from error
        if not key:
            raise ConfigError(f"view {view} has no key, so it cannot be a hash in Redis", hint="group_by gives it one")
        self._errors, self._key = redis.exceptions, list(key)
        self._hash, self._mark = f"millstream:{{{view}}}", f"millstream:{{{view}}}:{producer}"
        address = parse_redis(url)
        self._where = address.where
        with self._ours():
            self._client = redis.Redis.from_url(
                address.resolved(), socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT
            )
            self._script = self._client.register_script(_SCRIPT)

    def last(self) -> int | None:
        """The number beside the hash."""
        with self._ours():
            found: Any = self._client.get(self._mark)
        return None if found is None else int(found)

    def pack(self, parcel: Parcel) -> Packed:
        """Fields and values, one after the other, then the fields to remove."""
        rows, refused = text.writable(parcel.rows)
        fields, values = text.documents(rows.select(self._key)).to_list(), text.documents(rows).to_list()
        pairs = [each for pair in zip(fields, values, strict=True) for each in pair]
        gone, _ = text.writable(parcel.gone)  # what was refused when it came is not there
        return Packed((pairs, text.documents(gone).to_list()), refused)

    def send(
        self, payload: tuple[list[str], list[str]], sequence: int, *, marked: bool, after: int | None = None
    ) -> list[Refusal]:
        """Run the script."""
        pairs, gone = payload
        if pairs or gone:
            with self._ours():
                numbers = [sequence if marked else "", "" if after is None else after]
                done = self._script(keys=[self._hash, self._mark], args=[*numbers, len(pairs), *pairs, *gone])
            if done == -1:
                check_remembered(f"Redis at {self._where}", self.last(), after)
        return []

    def anew(self) -> bool:
        """Remove the hash: nothing of it is anyone else's."""
        with self._ours():
            self._client.unlink(self._hash)
        return True

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
