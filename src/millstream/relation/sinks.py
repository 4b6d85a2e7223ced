"""Sinks as they are defined: which view's changes go where, and how surely. Nothing is opened here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from millstream.errors import PlanError
from millstream.relation.clauses import Place, Policy
from millstream.relation.schema import format_duration
from millstream.relation.sink_address import folder_of, scheme_of, search_file_of, ttl_of
from millstream.relation.source import either

Mode: TypeAlias = Literal["exactly_once", "at_least_once", "at_most_once"]

_SURELY: dict[str, tuple[Mode, ...]] = {
    "function": ("at_least_once", "at_most_once"),
    "opensearch": ("at_least_once", "at_most_once"),
}
"""How surely a kind of sink can send where that is not as one likes; the first is what it does unless another is asked for."""

_TOLD = {
    "topic": "records",
    "files": "files of changes",
    "redis": "a hash",
    "rediss": "a hash",
    "search": "a text index",
    "delta": "a Delta table",
    "opensearch": "documents, which a repeat does not change",
    "function": "changes with ids",
}

_MENDED = {
    "function": "a function that remembers the ids of changes makes at least once into once",
    "opensearch": "a request to it is not all or nothing; a document has its batch's number as its version, so a repeat changes nothing",
}
_ROWS = {
    "redis": "be a hash in Redis",
    "rediss": "be a hash in Redis",
    "search": "be a text index",
    "opensearch": "be documents with ids",
}
"""What the rows of a view without a key cannot be."""


@dataclass(frozen=True, slots=True)
class SinkDefinition:
    """A sink: a view's changes, where they go, how surely, and what if a row is refused."""

    name: str
    view: str
    to: str | Callable[[Sequence[Any]], None]
    mode: Mode
    refused: Policy
    place: Place

    @property
    def where(self) -> str:
        """The address, or the name of the function."""
        return self.to if isinstance(self.to, str) else f"{getattr(self.to, '__name__', repr(self.to))}()"

    @property
    def told(self) -> str:
        """Where its view's changes go, as what, and how surely, for people."""
        what = _TOLD["function"] if not isinstance(self.to, str) else _TOLD[scheme_of(self.to)]
        if isinstance(self.to, str) and self.to.startswith("redis") and (ttl := ttl_of(self.to)) is not None:
            what = f"a cache: a row is gone {format_duration(ttl)} after it was written last"
        return f"to {self.where} as {what}, {self.mode.replace('_', ' ')} (sink {self.name})"

    @property
    def tells(self) -> bool:
        """Whether it tells of changes, which nothing untells, rather than keeping the rows that hold."""
        return not isinstance(self.to, str) or scheme_of(self.to) in ("topic", "files")


def checked_sink(
    what: str,
    view: str,
    columns: Sequence[str],
    key: Sequence[str],
    to: str | Callable[[Sequence[Any]], None],
    mode: Mode | None,
    refused: Policy,
) -> Mode:
    """How surely a sink sends; PlanError if it cannot, or there is no such place."""
    try:
        scheme = "function" if callable(to) else scheme_of(to)
    except PlanError as error:
        raise PlanError(f"{what}: {error.message}", hint=error.hint) from error
    modes = _SURELY.get(scheme, get_args(Mode))
    mode = mode or modes[0]
    if mode not in modes:
        raise PlanError(
            f"{what}: expected mode to be {' or '.join(modes)}; found {mode!r}", hint=_MENDED.get(scheme, "")
        )
    check_policy(what, refused)
    if scheme in _ROWS and not key:
        raise PlanError(
            f"{what}: view {view} has no key, so its rows cannot {_ROWS[scheme]}", hint="group_by gives it one"
        )
    if callable(to):
        return mode
    if scheme in ("files", "delta"):
        _check_partition(what, view, columns, key, folder_of(to).partition)
    if scheme == "search":
        _check_searched(what, view, columns, search_file_of(to).columns)
    return mode


def check_policy(what: str, said: str, option: str = "refused") -> None:
    """Refuse a word that says nothing about rows that are not taken, or records that fail."""
    if said not in get_args(Policy):
        raise PlanError(f"{what}: expected {option} to be {either(Policy)}; found {said!r}")


def _check_partition(
    what: str, view: str, columns: Sequence[str], key: Sequence[str], partition: Sequence[str]
) -> None:
    """Refuse folders by columns that are not there, or that are not known of a row that goes."""
    for name in partition:
        if name not in columns:
            raise PlanError(f"{what}: partition={name}: view {view} has the columns {', '.join(columns)}")
        if key and name not in key:
            raise PlanError(
                f"{what}: partition={name}: a delete has only the key of its row, {', '.join(key)}",
                hint=f"make {name} part of it: view(…, key=[…]), or group by it",
            )
    if set(partition) >= set(columns):
        raise PlanError(f"{what}: partition= names every column; expected one at least that is left for the files")


def _check_searched(what: str, view: str, columns: Sequence[str], searched: Sequence[str]) -> None:
    """Refuse a text index over columns that are not there."""
    for name in searched:
        if name not in columns:
            raise PlanError(f"{what}: columns={name}: view {view} has the columns {', '.join(columns)}")
