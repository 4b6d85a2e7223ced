"""Sinks as they are defined: which view's changes go where, and how surely. Nothing is opened here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qs

from millstream.errors import PlanError
from millstream.plan.nodes import Place
from millstream.plan.source import either

Mode: TypeAlias = Literal["exactly once", "at least once", "at most once"]
Policy: TypeAlias = Literal["stop", "dead letter"]

_PASSWORD = re.compile(r"//[^/@]*:(?!\$\{)[^/@]+@")
_EXPECTED = "topic:NAME, topic:NAME@LOG, redis://HOST:PORT/DB, files:FOLDER or a function"


@dataclass(frozen=True, slots=True)
class Outgoing:
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
        raise PlanError(f"found {address!r}, expected {_EXPECTED}")
    if _PASSWORD.search(address):
        raise PlanError(
            "a password must not stand in an address",
            hint="name where it is: redis://:${env:REDIS_PASSWORD}@HOST:PORT/0",
        )
    return scheme


def checked_sink(
    what: str,
    view: str,
    key: Sequence[str],
    to: str | Callable[[Sequence[Any]], None],
    mode: Mode | None,
    refused: Policy,
) -> Mode:
    """How surely a sink sends; PlanError if it cannot, or there is no such place."""
    modes: tuple[Mode, ...] = ("at least once", "at most once") if callable(to) else get_args(Mode)
    mode = mode or modes[0]
    if mode not in modes:
        raise PlanError(
            f"{what}: expected mode to be {' or '.join(modes)}; found {mode!r}",
            hint="a function that remembers the ids of changes makes at least once into once" if callable(to) else "",
        )
    if refused not in get_args(Policy):
        raise PlanError(f"{what}: expected refused to be {either(Policy)}; found {refused!r}")
    if not callable(to):
        try:
            scheme = scheme_of(to)
        except PlanError as error:
            raise PlanError(f"{what}: {error.message}", hint=error.hint) from error
        if scheme.startswith("redis") and not key:
            raise PlanError(f"{what}: view {view} has no key, so it cannot be a hash in Redis")
    return mode
