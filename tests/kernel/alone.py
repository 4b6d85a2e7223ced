"""One kernel on its own: changes and marks in, the rows it stands for out.

Every batch is run twice from the same state, and must give the same changes. What is taken back must have been there.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import polars as pl

from millstream.kernel.kernel import State
from millstream.kernel.operators.kernel_of import kernel_of
from millstream.kernel.state import segments as segment
from millstream.kernel.state.store import FOREVER, NEVER, Memory, Meta
from millstream.kernel.zset import WEIGHT
from millstream.plan.spec import Spec
from tests.kernel.local import STAMP, hashable
from tests.kernel.oracle import moment, stamp

SECOND = 1_000_000
Row = dict[str, Any]
Change = tuple[Row, int]

TYPES: dict[str, Any] = {"k": pl.Int64, "at": STAMP, "i": pl.Int64, "f": pl.Float64, "s": pl.String}


class Alone:
    """A kernel with its state. ``rows`` is what it has said so far, ``sent`` the changes of each batch."""

    def __init__(self, spec: Spec, types: dict[str, Any] = TYPES, limit: int = 256) -> None:
        self.kernel, self.types, self.limit = kernel_of(spec), types, limit
        self.store = Memory()
        self.rows: Counter[Any] = Counter()
        self.sent: list[Counter[Any]] = []
        self.held = 0

    def batch(self, changes: Sequence[Change], mark: int = NEVER) -> None:
        """Run one batch: all rows, then the mark."""
        usual, segment.LIMIT = segment.LIMIT, self.limit
        try:
            kept = copy.deepcopy(self.store)
            sent = self._run(self.store, changes, mark)
            assert self._run(kept, changes[::-1], mark) == sent, "a batch that runs again gives other changes"
        finally:
            segment.LIMIT = usual
        self.sent.append(sent)
        self.rows.update(sent)
        assert all(count >= 0 for count in self.rows.values()), "taken back, and never said"
        self.rows = +self.rows

    def _run(self, store: Memory, changes: Sequence[Change], mark: int) -> Counter[Any]:
        frame = None
        if changes:
            columns = {name: [row.get(name) for row, _ in changes] for name in self.types}
            frame = pl.DataFrame(columns, schema=self.types)
            if any(weight != 1 for _, weight in changes):
                frame = frame.with_columns(pl.Series(WEIGHT, [weight for _, weight in changes], pl.Int64))
        meta = Meta.read(store)
        after = max(meta.mark, mark)
        state = State(store, meta, meta.mark, after, pl.Schema(self.types))
        made = self.kernel.step(state, frame)
        meta.mark = after
        meta.write(store)
        self.held = sum(table.rows for table in state.tables.values())
        sent: Counter[Any] = Counter()
        if made is not None:
            weights = made[WEIGHT].to_list()
            for row, weight in zip(made.drop(WEIGHT).rows(), weights, strict=True):
                sent[hashable(row)] += weight
        return Counter({row: weight for row, weight in sent.items() if weight})

    @property
    def segments(self) -> int:
        """How many segments there are, whoever counts."""
        return len(self.store.segments)


def any_row(chance: Random, at: int = 0, keys: Sequence[Any] = (None, 0, 1)) -> Row:
    """Any row of that time."""
    return {
        "k": chance.choice(keys),
        "at": stamp(at),
        "i": chance.choice((None, 0, 1, -1, 7)),
        "f": chance.choice((None, 0.0, 0.1, 0.2, -0.3, 1e16, -1e16, 1e300, float("nan"))),
        "s": chance.choice((None, "", "a", "b")),
    }


class Script:
    """Random batches whose times go on, and what is there after each.

    Nothing comes, or is taken back, from before the mark less ``lateness``. ``there`` are the rows so far.
    """

    def __init__(self, chance: Random, *, lateness: int = 0, deletes: bool = False, step: int = 10 * SECOND) -> None:
        self.chance, self.lateness, self.deletes, self.step = chance, lateness, deletes, step
        self.now = chance.choice((0, -100 * SECOND, 1_700_000_000_500_000))
        self.mark = NEVER
        self.there: list[Row] = []
        self.making: Callable[[Random, int], Row] = any_row

    def batch(self) -> list[Change]:
        """Some changes, and a mark that goes on."""
        chance, changes = self.chance, []
        low = self.mark - self.lateness
        for _ in range(chance.randint(0, 8)):
            mine = [row for row in self.there if moment(row["at"]) >= low]
            if self.deletes and mine and chance.random() < 0.3:
                row = chance.choice(mine)
                self.there.remove(row)
                changes.append((row, -1))
                continue
            self.now += chance.choice((0, 1, SECOND, self.step, 3 * self.step))
            at = self.now - chance.choice((0, 0, 1, SECOND, self.step, 4 * self.step, self.lateness))
            row = self.making(chance, max(at, low))
            self.there += [row] * (copies := 2 if self.deletes and chance.random() < 0.1 else 1)
            changes.append((row, copies))
        if chance.random() < 0.6:
            self.mark = max(self.mark, self.now - chance.choice((0, 1, SECOND, self.step)))
        return changes

    def close(self) -> None:
        """No more will come."""
        self.mark = FOREVER
