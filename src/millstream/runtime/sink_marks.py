"""What a checkpoint remembers of a sink: that it was met, what it acknowledged, what was begun where nothing may be sent twice.

Batches have numbers in a sink. Those of a checkpoint begin at its epoch, above all that was sent before it. A sink that is
*sealed* takes a number of a new epoch with nothing under it, so that nothing below it is taken any more, whoever still sends it; from
then on the batches of this checkpoint have numbers of that epoch there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millstream.durable import replace_file

EPOCH = 32
"""Bits of a number that count batches; those above count checkpoints, so that a new one begins above all that was sent."""


class Marks:
    """The marks of one sink. Only those of the epoch at hand count."""

    def __init__(self, folder: Path, sink: str, epoch: int) -> None:
        self._path = _path(folder, sink)
        self.epoch: int = max(epoch, self._all().get("epoch", 0))

    @property
    def base(self) -> int:
        """The number below those of all batches."""
        return self.epoch << EPOCH

    def number(self, batch: int) -> int:
        """What a batch is called in the sink."""
        return self.base + batch + 1

    def get(self, name: str) -> int | None:
        """The number under a name."""
        found: int | None = self._all().get(name)
        return found if found is not None and found >= self.base else None

    def acknowledged(self, most: int) -> int | None:
        """The highest number up to that one that the sink has acknowledged: what comes after it is sent anyhow."""
        found = [number for name in ("sent", "before") if (number := self.get(name)) and number <= most]
        return max(found, default=None)

    @property
    def place(self) -> str:
        """The identity of the sink's place when the checkpoint first met it."""
        return str(self._all().get("place", ""))

    def keep(self, **found: Any) -> None:
        """Remember, durably."""
        marks = self._all()
        if marks | found == marks:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(marks | found).encode())

    def seal(self, epoch: int) -> None:
        """Remember that a sink is about to be sealed by the first number of an epoch."""
        self.keep(sealing=epoch)

    def settle(self, last: int | None) -> None:
        """Go on in the epoch by which the sink was sealed, if it was: ``last`` is the number there."""
        epoch = self._all().get("sealing", 0)
        if epoch <= self.epoch or last is None or last < epoch << EPOCH:
            return
        base = epoch << EPOCH
        met = {} if self.get("met") is None else {"met": base + 1}
        self.keep(epoch=epoch, sent=base, **met)
        self.epoch = epoch

    def _all(self) -> dict[str, Any]:
        return json.loads(self._path.read_bytes()) if self._path.exists() else {}


def sent_before(folder: Path, sink: str) -> bool:
    """Whether a run of that checkpoint has met a sink."""
    return _path(folder, sink).exists()


def _path(folder: Path, sink: str) -> Path:
    return folder / "sent" / f"{sink}.json"
