"""Measurements, always beside a baseline in the same run: the machine's speed cancels out of the ratio."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Result:
    """One measured figure; ``against`` names what ``baseline`` is, ``ratio`` is value ÷ baseline.

    ``note`` says what else is to be known, such as why there is no baseline.
    """

    name: str
    value: float
    unit: str
    against: str | None = None
    baseline: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Value ÷ baseline; more is better for rates, less for costs and delays."""
        return self.value / self.baseline if self.baseline else None

    def to_dict(self) -> dict[str, Any]:
        """The fields that apply."""
        fields = {"name": self.name, "value": _round(self.value), "unit": self.unit, "against": self.against}
        fields |= {"baseline": _round(self.baseline), "ratio": _round(self.ratio), "note": self.note or None}
        return {name: value for name, value in fields.items() if value is not None}


class Shown(Protocol):
    """Something measured, as its fields."""

    def to_dict(self) -> dict[str, Any]:
        """The fields that apply."""


def report(results: Sequence[Shown]) -> dict[str, Any]:
    """What every ``millstream bench … --json`` prints."""
    machine = {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 2),
    }
    versions = {"python": sys.version.split()[0]}
    for package in ("millstream", "apsw", "pyspark", "pyarrow", "polars", "duckdb", "confluent-kafka"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"results": [result.to_dict() for result in results], "machine": machine, "versions": versions}


def alternate(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Run both in turn, so that a slow moment of the machine hits both; give the medians."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3 if abs(value) < 100 else 0)
