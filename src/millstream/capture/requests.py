"""What others ask of a running capture by the control topic: tables that are to be read again."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.capture.control import CONTROL
from millstream.log.contract import Log

_AT_ONCE = 1000


class Requests:
    """Tables that somebody asked for, each until it is taken; ``open_`` are those that were asked for before."""

    def __init__(self, log: Log, name: str, open_: Iterable[str]) -> None:
        self._prefix = f"{name}/snapshot/".encode()
        self._asked = dict.fromkeys(open_)
        self._reader = log.reader(CONTROL, "latest")

    def take(self) -> list[str]:
        """What was asked for since the last time."""
        while records := self._reader.poll(_AT_ONCE):
            for record in records:
                if record.key is None or not record.key.startswith(self._prefix):
                    continue
                table = record.key[len(self._prefix) :].decode()
                if record.value is not None:
                    self._asked[table] = None
        asked, self._asked = list(self._asked), {}
        return asked

    def close(self) -> None:
        """Let go of the reader."""
        self._reader.close()
