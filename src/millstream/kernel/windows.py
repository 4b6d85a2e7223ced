"""Windows that are the same for all rows: which hold a row's time."""

from __future__ import annotations

import numpy as np
import polars as pl

from millstream.plan.nodes import WINDOW_COLUMNS


def in_windows(rows: pl.DataFrame, size: int, every: int) -> pl.DataFrame:
    """Each row once for every window that holds its time, with the start of the window in its place."""
    times = rows[WINDOW_COLUMNS[0]].dt.epoch("us").to_numpy()
    starts = (times - times % every)[:, None] - every * np.arange(-(-size // every))
    which, hop = np.nonzero(starts + size > times[:, None])
    made = pl.Series(WINDOW_COLUMNS[0], starts[which, hop]).cast(rows.schema[WINDOW_COLUMNS[0]])
    return (rows if size == every else rows[which]).with_columns(made)
