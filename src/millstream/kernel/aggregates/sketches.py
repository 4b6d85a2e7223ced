"""Sketches: what approximate aggregates keep instead of values, some kilobytes a group however many rows it has.

A sketch is bytes in one column. It is a function of the rows of a batch and of the bytes that were there: values are sorted first,
and neither kind draws lots. Distinct values are counted by CPC, whose estimate depends on the values alone. Percentiles are
read off a t-digest, which depends on which values were merged with which, so on where batches ended. A t-digest takes
finite numbers only; the others are counted beside it, so that NaN is the greatest number here too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.state.hash import hash_words
from millstream.kernel.zset import WEIGHT

if TYPE_CHECKING:
    from datasketches import cpc_sketch

SKETCH = "_sketch"
K = 500
"""Accuracy of a t-digest: at most some 10 KB, and a rank that is off by a percent in the middle, and by far less at both ends."""
LG_K = 12
"""Accuracy of a CPC sketch: at most some 2.6 KB, and a standard error of 1.1 percent."""

_LARGE = 1e300  # a t-digest adds numbers up; what might overflow is taken for infinite
_BESIDE = struct.Struct("<3q")  # how often −∞, ∞ and NaN came


def sketched(function: str, rows: pl.DataFrame, value: str, group: Sequence[str]) -> pl.DataFrame:
    """A sketch of the values of each group; nulls are passed over. A row counts as often as its weight says."""
    if WEIGHT in rows.columns:  # never below zero: np.repeat would refuse it
        rows = rows[np.repeat(np.arange(rows.height), rows[WEIGHT].to_numpy())]
    values = rows.select(*group, pl.col(value).alias("_v")).drop_nulls("_v")
    if function == "approx_percentile":
        if not values.schema["_v"].is_numeric():
            raise PipelineError(
                f"approx_percentile: expected numbers; found {values.schema['_v']}",
                hint="cast them: approx_percentile(cast(… AS double), 0.5)",
            )
        values = values.with_columns(pl.col("_v").cast(pl.Float64)).sort("_v")
        return _made(values, group, lambda each: _packed(*_digest_of(each)))
    values = values.with_columns(pl.Series("_v", hash_words(values["_v"]).view(np.int64)))
    return _made(values.unique().sort("_v"), group, _counted)


def merged(function: str, parts: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
    """The sketches of each group as one, in the order in which they come."""
    merge = _merged_digests if function == "approx_percentile" else _merged_counts
    gathered = parts.group_by(group, maintain_order=True).agg(pl.col(SKETCH))
    return _with(gathered, [each[0] if len(each) == 1 else merge(each) for each in gathered[SKETCH].to_list()])


def looked(function: str, sketches: pl.DataFrame, fractions: Sequence[float], group: Sequence[str]) -> pl.DataFrame:
    """What each group's sketch says: ``_value``, or ``_value_0.5`` for the percentile 0.5 and so on."""
    found: list[bytes] = sketches[SKETCH].to_list()
    if function == "approx_percentile":
        answers = [_quantiles(each, fractions) for each in found]
        columns = [
            pl.Series(f"_value_{fraction}", [each[at] for each in answers], pl.Float64)
            for at, fraction in enumerate(fractions)
        ]
    else:
        columns = [pl.Series("_value", [round(_counter(each).get_estimate()) for each in found], pl.Int64)]
    return sketches.select(group).with_columns(columns)


def _made(values: pl.DataFrame, group: Sequence[str], make: Any) -> pl.DataFrame:
    gathered = values.group_by(group, maintain_order=True).agg(pl.col("_v"))
    return _with(gathered, [make(each.to_numpy()) for each in gathered["_v"]]).drop("_v")


def _with(frame: pl.DataFrame, sketches: list[bytes]) -> pl.DataFrame:
    return frame.with_columns(pl.Series(SKETCH, sketches, pl.Binary))


def _digest_of(values: npt.NDArray[np.float64]) -> tuple[Any, list[int]]:
    from datasketches import tdigest_double

    finite = values[np.abs(values) < _LARGE]  # NaN is not below anything
    digest = tdigest_double(K)
    digest.update(finite)
    nan = int(np.isnan(values).sum())
    low = int((values <= -_LARGE).sum())
    return digest, [low, len(values) - len(finite) - low - nan, nan]


def _packed(digest: Any, beside: Iterable[int]) -> bytes:
    kept: bytes = b"" if digest.is_empty() else digest.serialize()
    return _BESIDE.pack(*beside) + kept


def _unpacked(sketch: bytes) -> tuple[Any, tuple[int, ...]]:
    from datasketches import tdigest_double

    kept = sketch[_BESIDE.size :]
    return tdigest_double.deserialize(kept) if kept else tdigest_double(K), _BESIDE.unpack_from(sketch)


def _merged_digests(sketches: Sequence[bytes]) -> bytes:
    digest, beside = _unpacked(sketches[0])
    for each in sketches[1:]:
        other, more = _unpacked(each)
        if not other.is_empty():
            digest.merge(other)
        beside = tuple(map(sum, zip(beside, more, strict=True)))
    return _packed(digest, beside)


def _quantiles(sketch: bytes, fractions: Sequence[float]) -> list[float]:
    digest, (low, high, nan) = _unpacked(sketch)
    finite = digest.get_total_weight()
    return [_quantile(digest, fraction * (low + finite + high + nan - 1), low, finite, high) for fraction in fractions]


def _quantile(digest: Any, at: float, low: int, finite: int, high: int) -> float:
    """The value at a position among all, the first of which is 0."""
    if at < low:
        return -math.inf
    if at < low + finite:
        found: float = digest.get_quantile(min(1.0, (at - low) / max(finite - 1, 1)))
        return found
    return math.inf if at < low + finite + high else math.nan


def _counted(words: npt.NDArray[np.int64]) -> bytes:
    from datasketches import cpc_sketch

    sketch = cpc_sketch(LG_K)
    for word in words.tolist():
        sketch.update(word)
    return _union([sketch])


def _merged_counts(sketches: Sequence[bytes]) -> bytes:
    return _union(map(_counter, sketches))


def _union(sketches: Iterable[cpc_sketch]) -> bytes:
    """The sketch of all; also of one: a sketch that was never merged has an estimate that depends on the order of its values."""
    from datasketches import cpc_union

    union = cpc_union(LG_K)
    for sketch in sketches:
        union.update(sketch)
    united: bytes = union.get_result().serialize()
    return united


def _counter(sketch: bytes) -> cpc_sketch:
    from datasketches import cpc_sketch

    return cpc_sketch.deserialize(sketch)
