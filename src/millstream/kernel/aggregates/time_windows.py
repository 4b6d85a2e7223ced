"""Windows that are the same for all rows: which hold a row's time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.relation.nodes import WINDOW_COLUMNS


def in_windows(rows: pl.DataFrame, size: int, every: int) -> pl.DataFrame:
    """Each row once for every window that holds its time, with the start of the window in its place."""
    which, starts = windows_of(rows[WINDOW_COLUMNS[0]], size, every)
    return (rows if size == every else rows[which]).with_columns(starts)


def windows_of(times: pl.Series, size: int, every: int) -> tuple[npt.NDArray[np.intp], pl.Series]:
    """Each row once for every window that holds its time: which row, and the start of the window."""
    found = micros(times).to_numpy()
    starts = (found - found % every)[:, None] - every * np.arange(-(-size // every))
    which, hop = np.nonzero(starts + size > found[:, None])
    return which, pl.Series(times.name, starts[which, hop]).cast(times.dtype)


def micros(times: pl.Series) -> pl.Series:
    """Times as whole microseconds."""
    return times.dt.epoch("us")
