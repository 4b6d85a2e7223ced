"""Sums of integers and decimals that never wrap, whatever their order, chunks and cancellations.

A sum is kept as digits of 42 bits in Int64 columns ``l0, l1, …``: two for integers and decimals of at most 18 digits, four
for wider decimals. Plain Polars sums add them up, :func:`normalise` carries them to the one form that a number has, and
:func:`render` gives the value back, or says that it does not fit. What lies between may overflow the type and come back.
Polars' own Decimal is no choice here: its grouped sum wraps around silently beyond 38 digits.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

MAX_WEIGHT = 1 << 20
"""A weight lies strictly between this and its negative."""

MAX_ROWS = 1 << 20
"""So many rows of :func:`split` or :func:`normalise` may be summed before the result is normalised."""

# A value of 64 bits times a weight has at most 83: a low digit of 42, a high one of 41. Either leaves 2^20 rows of room.
_BITS = 42
_MASK = (1 << _BITS) - 1
_NARROW = 18  # digits of a decimal whose unscaled value fits 64 bits

Limbs = npt.NDArray[np.int64]


def limb_count(dtype: pl.DataType) -> int:
    """How many limb columns a sum of this type has."""
    return 4 if isinstance(dtype, pl.Decimal) and dtype.precision > _NARROW else 2


def limb_names(count: int, prefix: str = "") -> list[str]:
    """The names of the limb columns, lowest first."""
    return [f"{prefix}l{i}" for i in range(count)]


def carry(limbs: Limbs, bits: int) -> Limbs:
    """Carry in place, so that every limb but the last lies in [0, 2^bits); the last one has the sign."""
    for low, high in pairwise(limbs):
        high += low >> bits
        low &= (1 << bits) - 1
    return limbs


def weights_of(weights: pl.Series) -> npt.NDArray[np.int64]:
    """Check the weights and give them as an array."""
    if weights.null_count():
        raise ValueError("a weight is null; every change has one")
    given = weights.cast(pl.Int64).to_numpy()
    if len(given) and max(int(given.max()), -int(given.min())) >= MAX_WEIGHT:
        raise ValueError(f"a weight is {max(given, key=abs)}; it must lie within ±{MAX_WEIGHT - 1}")
    return given


def split(values: pl.Series, weights: pl.Series, prefix: str = "") -> pl.DataFrame:
    """Split each value times its weight into limbs; a null counts nothing.

    >>> split(pl.Series([5, None]), pl.Series([-1, 1])).rows()
    [(4398046511099, -1), (0, 0)]
    """
    count = limb_count(values.dtype)
    limbs = np.zeros((count, len(values)), np.int64)
    if isinstance(values.dtype, pl.Decimal):
        low, high = _halves(values)
    else:
        low = values.fill_null(0).cast(pl.Int64).to_numpy()
        high = low >> 63
    limbs[0] = low & _MASK
    if count == 2:
        limbs[1] = low >> _BITS
    else:
        unsigned = low.view(np.uint64)
        limbs[1] = (unsigned >> np.uint64(_BITS)).view(np.int64) | ((high << (64 - _BITS)) & _MASK)
        limbs[2] = high >> (2 * _BITS - 64)
    limbs *= weights_of(weights)
    return _frame(carry(limbs, _BITS), prefix)


def normalise(frame: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
    """Bring summed limbs to their canonical form: equal sums have equal columns. Other columns stay as they are."""
    return frame.with_columns(_frame(carry(_limbs(frame, prefix), _BITS), prefix).get_columns())


def render(frame: pl.DataFrame, dtype: pl.DataType, prefix: str = "") -> tuple[pl.Series, pl.Series]:
    """Give the sums of a normalised frame as this type, and a boolean series that is true where one does not fit.

    A sum that does not fit is null in the first series. ``dtype`` is Int64, or a Decimal with the scale of the values.
    A decimal type may be wider than the one summed: ``render(..., pl.Decimal(28, 2))`` for a sum of ``Decimal(18, 2)``.

    >>> render(pl.DataFrame({"l0": [4398046511099, 0], "l1": [-1, 1 << 21]}), pl.Int64())[0].to_list()
    [-5, None]
    """
    limbs = _limbs(frame, prefix)
    if isinstance(dtype, pl.Decimal):
        outside = _below(limbs, 1 - 10**dtype.precision) | ~_below(limbs, 10**dtype.precision)
        rendered = _decimals(np.where(outside, 0, limbs), dtype)
    else:
        outside = _below(limbs, -(1 << 63)) | ~_below(limbs, 1 << 63)
        rendered = pl.Series(_low_half(limbs))
    mask = pl.Series("overflow", outside)
    return pl.select(pl.when(~mask).then(rendered).alias("sum")).to_series(), mask


def _below(limbs: Limbs, bound: int) -> npt.NDArray[np.bool_]:
    """Compare canonical numbers with a bound, digit by digit from the top."""
    below = np.zeros(limbs.shape[1], np.bool_)
    equal = np.ones(limbs.shape[1], np.bool_)
    for i in reversed(range(len(limbs))):
        digit = bound >> i * _BITS
        if i < len(limbs) - 1:
            digit &= _MASK
        below |= equal & (limbs[i] < digit)
        equal &= limbs[i] == digit
    return below


def _low_half(limbs: Limbs) -> Limbs:
    # Unsigned, because the upper bits of the second digit are meant to fall off.
    low, high = limbs[0].view(np.uint64), limbs[1].view(np.uint64)
    joined: Limbs = (low | high << np.uint64(_BITS)).view(np.int64)
    return joined


def _decimals(limbs: Limbs, dtype: pl.Decimal) -> pl.Series:
    high = limbs[1] >> (64 - _BITS)
    if len(limbs) == 4:
        high |= limbs[2] << (2 * _BITS - 64) | limbs[3] << (3 * _BITS - 64)
    halves = np.stack([_low_half(limbs), high], axis=1)
    kind = pa.decimal128(dtype.precision, dtype.scale)
    return pl.Series(pa.Array.from_buffers(kind, len(halves), [None, pa.py_buffer(halves)]))


def _halves(decimals: pl.Series) -> tuple[Limbs, Limbs]:
    """The unscaled 128-bit values as their low and high 64 bits; a null is zero."""
    array = decimals.to_arrow()
    raw = np.frombuffer(array.buffers()[1], "<i8")[2 * array.offset : 2 * (array.offset + len(array))]
    halves = raw.reshape(-1, 2)
    if decimals.null_count():
        halves = np.where(decimals.is_null().to_numpy()[:, None], 0, halves)
    return halves[:, 0].copy(), halves[:, 1].copy()


def _limbs(frame: pl.DataFrame, prefix: str) -> Limbs:
    count = 4 if f"{prefix}l3" in frame.columns else 2
    return np.stack([frame[name].to_numpy() for name in limb_names(count, prefix)])


def _frame(limbs: Limbs, prefix: str) -> pl.DataFrame:
    return pl.DataFrame(dict(zip(limb_names(len(limbs), prefix), limbs, strict=True)))
