"""Send rows to a port, cut by bucket: those that can matter, or their partial sums; nothing, if no view reads them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from millstream.errors import NeedsSpark
from millstream.kernel.aggregates.accumulators import bags
from millstream.kernel.aggregates.preaggregate import Adder, is_less
from millstream.kernel.exchange.chunk import SIDES, Chunk, Kind, cut, pieces, shaped
from millstream.kernel.exchange.projection import finish_alone
from millstream.kernel.exchange.top_prefilter import promising
from millstream.plan.chain import Output, Port


def send(rows: pl.DataFrame, port: Port, bucket: int = 0) -> Iterator[Chunk]:
    """Pack rows for whoever takes them: those to keep, the columns they want; sums in their place where that is enough and less.

    What goes to the driver stays in the sender's ``bucket``. What nobody gets is computed, and sent only where that takes Spark.
    """
    rows, kind = shaped(rows, port), SIDES[port.side]
    if port.unread is not None and _is_finished(rows, port.unread):
        return
    if port.first is not None:
        rows = promising(rows, port.first)
    if port.sums is None or not rows.height or bags(port.sums):
        yield from cut(rows, port, kind, bucket)
        return
    adder = Adder(port.sums, rows.schema)
    for piece in pieces(rows):  # the values of a group go together, so they must not be those of all rows
        if is_less(piece, adder):
            yield from cut(adder.pack(adder.add_rows(piece)), port, Kind.SUMS, bucket)
        else:
            yield from cut(piece, port, kind, bucket)


def _is_finished(rows: pl.DataFrame, view: Output) -> bool:
    """Compute the columns of a view, all of them; False if only Spark can."""
    try:
        finish_alone(view, rows, utc=False)
    except NeedsSpark:
        return False
    return True
