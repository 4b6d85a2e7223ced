"""What a search has matched so far, as conditions look at it: rows by variable, and aggregates that go on and back row by row.

Sums are exact, whatever the order: of doubles too, which are kept as whole numbers of a power of two that is small enough for all
of a column, and rounded once, when they are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import polars as pl

from millstream.kernel.pattern.closures import Unsure, decimal_total

_STEP = 1074
_LONG = 1 << 63


class Running(Protocol):
    """Something that goes on by a row, and back."""

    def push(self, row: int) -> None:
        """Take one more row."""
        ...

    def pop(self) -> None:
        """Forget the last row."""
        ...


class Rows:
    """The rows of some variables, in order."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.push = self.rows.append
        self._pop = self.rows.pop

    def pop(self) -> None:
        """Forget the last row."""
        self._pop()


class Count:
    """How many rows there are, of which a column is not null if one is given."""

    def __init__(self, values: list[Any] | None) -> None:
        self._values = values
        self._counts = [0]

    def push(self, row: int) -> None:
        """Take one more row."""
        there = self._values is None or self._values[row] is not None
        self._counts.append(self._counts[-1] + there)

    def pop(self) -> None:
        """Forget the last row."""
        self._counts.pop()

    def value(self) -> int:
        """How many."""
        return self._counts[-1]


class Extreme:
    """The least or the greatest value; NaN is greater than any other number."""

    def __init__(self, values: list[Any], greatest: bool) -> None:
        self._values, self._greatest = values, greatest
        self._best: list[Any] = [None]

    def push(self, row: int) -> None:
        """Take one more row."""
        best, value = self._best[-1], self._values[row]
        if best is None or (value is not None and _above(value, best) is self._greatest and not _same(value, best)):
            best = value if value is not None else best
        self._best.append(best)

    def pop(self) -> None:
        """Forget the last row."""
        self._best.pop()

    def value(self) -> Any:
        """The value; null of none."""
        return self._best[-1]


class Total:
    """A sum, or a mean."""

    def __init__(self, values: list[Any], dtype: pl.DataType, mean: bool) -> None:
        self._values, self._mean = values, mean
        self._doubles = dtype.is_float()
        self._decimals = isinstance(dtype, pl.Decimal)
        self._bits = _bits(values) if self._doubles else 0
        self._sums: list[tuple[int, Any, int, int, int]] = [(0, 0, 0, 0, 0)]

    def push(self, row: int) -> None:
        """Take one more row."""
        count, total, nans, up, down = self._sums[-1]
        value = self._values[row]
        if value is None:
            self._sums.append(self._sums[-1])
            return
        if self._doubles:
            if math.isfinite(value):
                number, below = value.as_integer_ratio()
                total += number << (self._bits - below.bit_length() + 1)
            elif value != value:
                nans += 1
            elif value > 0:
                up += 1
            else:
                down += 1
        else:
            total = decimal_total(total, value) if self._decimals and count else value if not count else total + value
        self._sums.append((count + 1, total, nans, up, down))

    def pop(self) -> None:
        """Forget the last row."""
        self._sums.pop()

    def value(self) -> Any:
        """The sum or the mean; null of none."""
        count, total, nans, up, down = self._sums[-1]
        if not count:
            return None
        if self._doubles:
            total = math.nan if nans or (up and down) else _rounded(total, self._bits, up, down)
        elif self._mean:
            total = float(total)
        elif not self._decimals and not -_LONG <= total < _LONG:
            raise Unsure
        return total / count if self._mean else total


class Asked:
    """Any other aggregate: asked anew for all of its rows."""

    def __init__(self, ask: Callable[[list[int]], Any]) -> None:
        self._rows, self._ask = Rows(), ask
        self.push, self.pop = self._rows.push, self._rows.pop

    def value(self) -> Any:
        """What it is of the rows so far."""
        return self._ask(self._rows.rows)


def _rounded(total: int, bits: int, up: int, down: int) -> float:
    if up or down:
        return math.inf if up else -math.inf
    try:
        return total / (1 << bits)  # Python rounds the quotient of two integers correctly
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _bits(values: list[Any]) -> int:
    """How many binary digits behind the point hold all of these."""
    most = 0
    for value in values:
        if value is not None and math.isfinite(value):
            most = max(most, value.as_integer_ratio()[1].bit_length() - 1)
            if most == _STEP:
                break
    return most


def _above(one: Any, other: Any) -> bool:
    return bool(one > other or (one != one and other == other))


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))
