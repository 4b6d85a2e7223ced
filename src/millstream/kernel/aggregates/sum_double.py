"""Sums of doubles that depend neither on order nor on chunks: each is kept exactly and rounded once, when it is read.

A sum is a fixed-point number in seven Int64 columns ``l0 … l6``, digits of 32 bits with weights 2^-128 … 2^64, and a
nullable Binary column ``rest`` for what does not fit them: far too small or large numbers, NaN and the infinities. Rows are
added up with plain Polars (:func:`adding`), and :func:`normalise` brings a sum to the only form it has: equal sums are
equal columns, and a sum of nothing, or of what was all taken back, is zeros and a null. The numbers in ``rest``
cost Python's time, row by row; data that measures things seldom has any.

The form, frozen because state on disk has it: ``l0 … l5`` lie in [0, 2^32), ``l6`` has the sign and lies within ±2^41. A finite
sum that fits is in the limbs alone; one that does not is in ``rest`` alone, as an integer at 2^-1074. ``rest`` is three
little-endian int64 (how many NaN, +∞, −∞) and the shortest little-endian two's complement of that integer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.aggregates.sum_integer import MAX_ROWS, MAX_WEIGHT, Limbs, carry, weights_of

__all__ = [
    "LIMBS",
    "MAX_ROWS",
    "MAX_WEIGHT",
    "adding",
    "between",
    "columns_of",
    "merge_rest",
    "normalise",
    "render",
    "split",
]

LIMBS = 7
_BITS = 32
_MASK = np.int64(0xFFFFFFFF)
_LOWEST = -128  # the binary exponent of l0's last bit
_ROOM = 1 << 41  # a last limb within ± this leaves room for summing MAX_ROWS of them
_HEAVY = 1 << 10  # digits times a weight up to this still leave that room without a carry

# How a double is laid out: 52 bits of fraction, then 11 of exponent; the smallest step of all is 2^-1074.
_FRACTION = np.int64((1 << 52) - 1)
_HIDDEN = np.int64(1 << 52)
_SPECIAL = 0x7FF  # the exponent field of NaN and the infinities
_STEP = 1074
_FIRST = _STEP + 1 + _LOWEST  # the exponent field whose last bit is l0's last bit
_LAST = 1023 + 94  # the exponent field of the largest numbers below 2^95

_SHIFT = _STEP + _LOWEST  # from l0's last bit to the smallest step
_COUNTS = struct.Struct("<qqq")


class _Rest(NamedTuple):
    """What the limbs cannot hold: how many NaN, +∞ and −∞ there are, and a number of the smallest steps."""

    nans: int = 0
    up: int = 0
    down: int = 0
    steps: int = 0

    def __add__(self, other: object) -> _Rest:
        if not isinstance(other, _Rest):
            return NotImplemented
        return _Rest._make(a + b for a, b in zip(self, other, strict=True))

    def pack(self) -> bytes | None:
        if not any(self):
            return None
        size = (self.steps + (self.steps < 0)).bit_length() // 8 + 1 if self.steps else 0
        return _COUNTS.pack(self.nans, self.up, self.down) + self.steps.to_bytes(size, "little", signed=True)


def _unpack(packed: bytes) -> _Rest:
    nans, up, down = _COUNTS.unpack_from(packed)
    return _Rest(nans, up, down, int.from_bytes(packed[_COUNTS.size :], "little", signed=True))


def columns_of(prefix: str = "") -> list[str]:
    """The names of the columns of a sum; a prefix tells several sums in one frame apart."""
    return [*(f"{prefix}l{i}" for i in range(LIMBS)), f"{prefix}rest"]


def split(values: pl.Series, weights: pl.Series, prefix: str = "") -> pl.DataFrame:
    """Write each double, times its weight, as a sum of its own; a null counts nothing.

    >>> split(pl.Series([3.0, None]), pl.Series([-2, 1])).rows()
    [(0, 0, 0, 0, -6, 0, 0, None), (0, 0, 0, 0, 0, 0, 0, None)]
    """
    bits = values.cast(pl.Float64).fill_null(0.0).to_numpy().view(np.int64)
    times = weights_of(weights)
    field = (bits >> 52) & _SPECIAL
    mantissa = (bits & _FRACTION) | _HIDDEN
    outside = (field < _FIRST) | (field > _LAST)
    # Zero has the lowest exponent field of all, and fits.
    place = np.where(outside, 0, field - _FIRST)
    mantissa[outside] = 0
    outside &= (bits << 1) != 0

    # The 53 bits, shifted by 0 … 31, lie in three digits of 32.
    shift = place & (_BITS - 1)
    low = (mantissa & _MASK) << shift
    high = ((mantissa >> _BITS) << shift) + (low >> _BITS)
    signed = np.where(bits < 0, -times, times)
    size = len(bits)
    limbs = np.zeros((LIMBS + 1, size), np.int64)  # one more, because the third digit of the largest numbers is zero
    flat = limbs.reshape(-1)
    at = (place >> 5) * size + np.arange(size)
    flat[at] = (low & _MASK) * signed
    flat[at + size] = (high & _MASK) * signed
    flat[at + 2 * size] = (high >> _BITS) * signed
    limbs = limbs[:LIMBS]

    rests = {row: _rest_of(int(bits[row]), int(times[row])) for row in np.flatnonzero(outside).tolist()}
    heavy = np.flatnonzero(np.abs(times) > _HEAVY)
    if len(heavy):
        limbs[:, heavy] = carry(limbs[:, heavy], _BITS)
        for row in heavy[_too_large(limbs[LIMBS - 1, heavy])].tolist():
            rests[row] = _Rest(steps=_join(limbs[:, row]) << _SHIFT)
            limbs[:, row] = 0
    return _frame(limbs, {row: rest.pack() for row, rest in rests.items()}, prefix)


def adding(prefix: str = "") -> list[pl.Expr]:
    """Give the aggregations that add up rows in a ``group_by``; :func:`normalise` understands what they give.

    At most :data:`MAX_ROWS` rows of :func:`split` or :func:`normalise` may meet in one group.
    """
    *limbs, rest = columns_of(prefix)
    return [*(pl.col(name).sum() for name in limbs), pl.col(rest).drop_nulls()]


def merge_rest(rests: Iterable[bytes | None]) -> bytes | None:
    """Add up values of the column ``rest``; for callers that do not use :func:`adding`."""
    return sum((_unpack(rest) for rest in rests if rest is not None), start=_Rest()).pack()


def between(rest: pl.Series, low: npt.NDArray[np.intp], high: npt.NDArray[np.intp]) -> pl.Series:
    """Add up runs of the column ``rest``, each from ``low`` up to ``high``: for callers that subtract running sums."""
    rows = rest.is_not_null().arg_true().to_numpy()
    if not len(rows):
        return pl.repeat(None, len(low), dtype=pl.Binary, eager=True).alias(rest.name)
    running = [_Rest()]
    for packed in rest.gather(rows):
        running.append(running[-1] + _unpack(packed))
    first, last = np.searchsorted(rows, low), np.searchsorted(rows, high)
    packed = [
        _Rest._make(b - a for a, b in zip(running[i], running[j], strict=True)).pack() if i < j else None
        for i, j in zip(first.tolist(), last.tolist(), strict=True)
    ]
    return pl.Series(rest.name, packed, pl.Binary)


def normalise(frame: pl.DataFrame, prefix: str = "") -> pl.DataFrame:
    """Bring added up rows to their canonical form: equal sums have equal columns. Other columns stay as they are.

    ``rest`` may be Binary, or the list of Binary that :func:`adding` gives.
    """
    limbs = carry(_limbs(frame, prefix), _BITS)
    rests = _present(frame[f"{prefix}rest"])
    for row in {*rests, *np.flatnonzero(_too_large(limbs[-1])).tolist()}:
        rest = sum(map(_unpack, rests.get(row, ())), start=_Rest(steps=_join(limbs[:, row]) << _SHIFT))
        number, below = divmod(rest.steps, 1 << _SHIFT)
        top = number >> _BITS * (LIMBS - 1)
        if below or not -_ROOM <= top < _ROOM:
            number = top = 0
        else:
            rest = rest._replace(steps=0)
        limbs[:-1, row] = [number >> _BITS * i & 0xFFFFFFFF for i in range(LIMBS - 1)]
        limbs[-1, row] = top
        packed = rest.pack()
        rests[row] = [] if packed is None else [packed]
    return frame.with_columns(
        _frame(limbs, {row: rest[0] for row, rest in rests.items() if rest}, prefix).get_columns()
    )


def render(frame: pl.DataFrame, prefix: str = "") -> pl.Series:
    """Round each sum of a normalised frame to the nearest double, ties to even.

    Too large is ±∞; NaN, or both infinities together, is NaN; a sum of nothing is 0.0 (the caller counts what is not null).
    """
    limbs = _limbs(frame, prefix)
    rendered = _round(limbs)
    for row, rests in _present(frame[f"{prefix}rest"]).items():
        rest = sum(map(_unpack, rests), start=_Rest(steps=_join(limbs[:, row]) << _SHIFT))
        if rest.nans or (rest.up and rest.down):
            rendered[row] = math.nan
        elif rest.up or rest.down:
            rendered[row] = math.inf if rest.up else -math.inf
        else:
            try:
                rendered[row] = rest.steps / (1 << _STEP)  # Python rounds the quotient of two integers correctly
            except OverflowError:
                rendered[row] = math.inf if rest.steps > 0 else -math.inf
    return pl.Series("sum", rendered)


def _round(limbs: Limbs) -> npt.NDArray[np.float64]:
    """Round canonical limbs: the leading 64 bits, the last of which is set if anything follows, then one conversion."""
    negative = limbs[-1] < 0
    # Two zeros below, so that there are always three digits; the last limb is wider than 32 bits and becomes two.
    digits = np.zeros((LIMBS + 3, limbs.shape[1]), np.int64)
    digits[2:-1] = np.where(negative, -limbs, limbs)
    carry(digits, _BITS)
    present = digits != 0
    top = len(digits) - 1 - present[::-1].argmax(axis=0)
    top[~present.any(axis=0)] = 2
    sticky = present.argmax(axis=0) < top - 2

    every = np.arange(limbs.shape[1])
    first, second, third = (digits[top - i, every].view(np.uint64) for i in range(3))
    # The exponent of a double tells how many bits a digit has.
    missing = (_BITS - np.frexp(first.astype(np.float64))[1]).astype(np.uint64)
    shifted = third << missing
    leading = (first << np.uint64(_BITS) | second) << missing | shifted >> np.uint64(_BITS)
    sticky |= (shifted & np.uint64(_MASK)) != 0
    # 63 bits, because the conversion of a signed integer is the one that the processor rounds by itself.
    kept = (leading >> np.uint64(1) | leading & np.uint64(1) | sticky).view(np.int64)
    exponent = (top - 2) * _BITS + _LOWEST - _BITS + 1 - missing.astype(np.int64)
    rounded: npt.NDArray[np.float64] = np.ldexp(kept.astype(np.float64), exponent)
    return np.where(negative, -rounded, rounded)


def _rest_of(bits: int, weight: int) -> _Rest:
    field, fraction = bits >> 52 & _SPECIAL, bits & int(_FRACTION)
    if field == _SPECIAL:
        return _Rest(nans=weight) if fraction else _Rest(down=weight) if bits < 0 else _Rest(up=weight)
    steps = fraction if field == 0 else (fraction | int(_HIDDEN)) << field - 1
    return _Rest(steps=-steps * weight if bits < 0 else steps * weight)


def _too_large(last: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return (last < -_ROOM) | (last >= _ROOM)


def _join(limbs: npt.NDArray[np.int64]) -> int:
    return sum(limb << _BITS * i for i, limb in enumerate(limbs.tolist()))


def _limbs(frame: pl.DataFrame, prefix: str) -> Limbs:
    return np.stack([frame[name].to_numpy() for name in columns_of(prefix)[:-1]])


def _present(rest: pl.Series) -> dict[int, list[bytes]]:
    """The rows that have a rest, each with what is there."""
    if rest.dtype == pl.Binary:
        rows = rest.is_not_null().arg_true()
        return {row: [packed] for row, packed in zip(rows, rest.gather(rows), strict=True)}
    rows = (rest.list.len() > 0).arg_true()
    return {row: list(packed) for row, packed in zip(rows, rest.gather(rows), strict=True)}


def _frame(limbs: Limbs, rests: dict[int, bytes | None], prefix: str) -> pl.DataFrame:
    *names, rest = columns_of(prefix)
    if rests:
        last = pl.Series(rest, [rests.get(row) for row in range(limbs.shape[1])], pl.Binary)
    else:
        last = pl.repeat(None, limbs.shape[1], dtype=pl.Binary, eager=True).alias(rest)
    return pl.DataFrame([*(pl.Series(name, limb) for name, limb in zip(names, limbs, strict=True)), last])
