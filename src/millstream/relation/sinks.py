"""Sinks as they are defined: which view's changes go where, and how surely. Nothing is opened here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qs

from millstream.address import parse_log, parse_redis
from millstream.errors import ConfigError, PlanError
from millstream.relation.clauses import Place, Policy
from millstream.relation.source import either
from millstream.secret import check_address, redacted

Mode: TypeAlias = Literal["exactly_once", "at_least_once", "at_most_once"]

_EXPECTED = "topic:NAME, topic:NAME@LOG, redis://HOST:PORT/DB, files:FOLDER or a function"


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


class Folder(NamedTuple):
    """Where and how a sink of files writes: ``files:FOLDER?format=json&partition=day,minute``."""

    path: str
    format: str
    partition: tuple[str, ...]


def folder_of(address: str) -> Folder:
    """Read the address of a sink of files; PlanError if it has options that there are not."""
    path, _, text = address.partition(":")[2].partition("?")
    options = parse_qs(text, keep_blank_values=True)
    if unknown := sorted(options.keys() - {"format", "partition"}):
        raise PlanError(f"files: found {unknown[0]}=, expected format= or partition=")
    names = [name.strip() for text in options.get("partition", []) for name in text.split(",")]
    return Folder(path, options.get("format", ["parquet"])[-1], tuple(names))


def scheme_of(address: str) -> str:
    """What kind of sink an address names; PlanError if there is no such kind."""
    scheme, _, rest = address.partition(":") if isinstance(address, str) else ("", "", "")
    if scheme not in ("topic", "files", "redis", "rediss") or not rest.strip("/"):
        found = redacted(address) if isinstance(address, str) else address
        raise PlanError(f"found {found!r}, expected {_EXPECTED}")
    try:
        if scheme.startswith("redis"):
            parse_redis(address)
        elif "@" in rest and scheme == "topic":
            parse_log(rest.partition("@")[2])
        check_address(scheme, address)
    except ConfigError as error:
        raise PlanError(error.message, hint=error.hint) from error
    return scheme


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
    modes: tuple[Mode, ...] = ("at_least_once", "at_most_once") if callable(to) else get_args(Mode)
    mode = mode or modes[0]
    if mode not in modes:
        raise PlanError(
            f"{what}: expected mode to be {' or '.join(modes)}; found {mode!r}",
            hint="a function that remembers the ids of changes makes at least once into once" if callable(to) else "",
        )
    check_policy(what, refused)
    if not callable(to):
        try:
            scheme = scheme_of(to)
        except PlanError as error:
            raise PlanError(f"{what}: {error.message}", hint=error.hint) from error
        if scheme == "files":
            _check_partition(what, view, columns, key, folder_of(to).partition)
        if scheme.startswith("redis") and not key:
            raise PlanError(f"{what}: view {view} has no key, so it cannot be a hash in Redis")
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
                f"{what}: partition={name}: of a row that goes only its key is told, {', '.join(key)}",
                hint=f"make {name} part of it: view(…, key=[…]), or group by it",
            )
    if set(partition) >= set(columns):
        raise PlanError(f"{what}: partition= names every column; expected one at least that is left for the files")
