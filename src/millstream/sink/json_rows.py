"""Rows as JSON text, many at a time; what JSON has no word for is refused, row by row.

Times are RFC 3339 in UTC, decimals text, bytes base64: what a stream of JSON documents reads back.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from millstream.store.contract import Refusal
from millstream.store.net_changes import describe

_TIME = "%Y-%m-%dT%H:%M:%S%.6fZ"


def documents(rows: pl.DataFrame) -> pl.Series:
    """One JSON document for each row."""
    if not rows.width:
        return pl.Series(["{}"] * rows.height, dtype=pl.String)
    return rows.select(pl.struct(_plain(rows)).struct.json_encode().alias("document")).to_series()


def writable(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[Refusal]]:
    """The rows that JSON can say, and the others."""
    real = [name for name, kind in rows.schema.items() if kind.is_float()]
    if not real:
        return rows, []
    bad = rows.select(pl.any_horizontal(~pl.col(real).is_finite().fill_null(True))).to_series()
    if not bad.any():
        return rows, []
    return rows.filter(~bad), refusals(rows.filter(bad), "JSON has neither NaN nor infinities")


def refusals(rows: pl.DataFrame, why: str) -> list[Refusal]:
    """These rows, refused."""
    return [Refusal(describe(row), why) for row in rows.iter_rows(named=True)]


def _plain(rows: pl.DataFrame) -> Sequence[pl.Expr]:
    columns = []
    for name, kind in rows.schema.items():
        column = pl.col(name)
        if isinstance(kind, pl.Datetime):
            column = column.dt.strftime(_TIME)
        elif kind == pl.Binary:
            column = column.bin.encode("base64")
        columns.append(column)
    return columns
