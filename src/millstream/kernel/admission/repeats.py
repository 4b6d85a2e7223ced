"""Which records are repeats: their producer, or the key of their table, has used that number or a higher one before.

A record without a number is no repeat, but for a table's tombstone: it follows a record of its key, and is what that was. Replayed
behind the row's return (``delete, tombstone, insert; delete, tombstone, insert`` again) it would otherwise delete the row that lives.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.state.segments import PLACE, Table, place
from millstream.kernel.state.store import NEVER, Meta, Store
from millstream.plan.build import Feed

_AGAIN = "_again"


def repeats_of(feed: Feed, rows: pl.DataFrame, meta: Meta, store: Store) -> npt.NDArray[np.bool_]:
    """Say which rows are repeats, and remember the highest number of each producer, with what its last record was where that counts."""
    table = Table(store, meta, "sequences", 0)
    used = rows.select("_who", pl.col("_nth").fill_null(NEVER)).with_row_index("_i")
    places = place(used, ["_who"])
    known = table.load(places)
    is_table = feed.source.kind == "table"
    if known is None:
        known = pl.DataFrame(schema={"_who": rows.schema["_who"], "_nth": pl.Int64, PLACE: pl.UInt64})
        known = known.with_columns(pl.lit(None, pl.Boolean).alias(_AGAIN)) if is_table else known
    kept = known.select("_who", pl.col("_nth").alias("_kept"), *([pl.col(_AGAIN).alias("_was")] if is_table else []))
    joined = used.join(kept, on="_who", how="left", nulls_equal=True).sort("_i")
    running = pl.col("_nth").cum_max().shift(1).over("_who").fill_null(NEVER)
    before = pl.max_horizontal(pl.col("_kept").fill_null(NEVER), running)
    again = (pl.col("_nth") > NEVER) & (pl.col("_nth") <= before)
    if is_table:
        tombstone = rows.select(pl.col("_deleted") & pl.all_horizontal(pl.col("_nth", "_bad", "_beat").is_null()))
        joined = joined.with_columns(pl.when(~tombstone.to_series().fill_null(False)).then(again).alias(_AGAIN))
        last = pl.col(_AGAIN).forward_fill().over("_who")
        again = pl.coalesce(last, "_was", pl.lit(False))
    judged = joined.with_columns(again.alias(_AGAIN), pl.Series(PLACE, places))
    names = [name for name in known.columns if name != PLACE]
    newest = (
        pl.concat([known, judged.select(known.columns)])
        .group_by("_who", maintain_order=True)
        .agg(pl.col("_nth").max(), *(pl.col(each).last() for each in names if each == _AGAIN), pl.col(PLACE).first())
    )
    table.save(newest)
    return judged[_AGAIN].to_numpy()
