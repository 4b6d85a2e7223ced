"""Functions over batches asked again: about each row by itself, and about all rows twice, which must give the same.

A function that looks at more than one row, or that answers otherwise the second time, gives a view that depends on how rows were cut
into batches. A trial has few rows, so it can afford to ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millstream.plan.chain import Chain, Operator
from millstream.plan.spec import Batches


def asked_again(chain: Chain) -> Chain:
    """The chain with functions over batches that are asked again."""
    return replace(chain, operators=tuple(map(_of_operator, chain.operators)))


def _of_operator(operator: Operator) -> Operator:
    spec = operator.spec
    if not isinstance(spec, Batches):
        return operator
    return replace(operator, spec=replace(spec, function=_again(spec.function)))


def _again(function: Callable[[Iterator[Any]], Iterable[Any]]) -> Callable[[Iterator[Any]], Iterable[Any]]:
    def again(batches: Iterator[pa.RecordBatch]) -> list[Any]:
        given = list(batches)
        made = list(function(iter(given)))
        rows = [batch.slice(at, 1) for batch in given for at in range(batch.num_rows)]
        alone = [each for row in rows for each in function(iter([row]))]
        together = list(function(iter([pa.concat_batches([*given, *given])])))
        if all(isinstance(each, pa.RecordBatch) for each in made):
            once = _rows(alone)
            if _rows(made) != once or _rows(together) != once + once:
                raise ValueError("its result for a row depends on other rows, or differs from call to call")
        return made

    again.__name__ = getattr(function, "__name__", "a function")
    return again


def _rows(batches: list[pa.RecordBatch]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for batch in batches for row in batch.to_pylist())
