"""What a view is, wherever it is kept: which definitions can be kept, what differs between two of them, keys to look up.

Invariant: nothing here knows an engine. What one engine refuses for names and shapes every engine refuses, so that a pipeline
can move from one to another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import polars as pl
import pyarrow as pa

from millstream.errors import CheckpointMismatch, PipelineError, UnknownView, ViewError
from millstream.store.comparable import comparable
from millstream.store.contract import WEIGHT, Comparison, Entry, Page, Target, ViewInfo

COUNT, ROW = "_count", "_row"
_START_OVER = (
    "to start over, `millstream run --rebuild` computes the views anew; or give the changed pipeline another name"
)


class Stored(Protocol):
    """A target as an engine keeps it."""

    @property
    def target(self) -> Target:
        """What was asked for."""

    @property
    def pipeline(self) -> str:
        """Whose it is."""

    @property
    def fingerprint(self) -> str:
        """Of which definition."""


S = TypeVar("S", bound=Stored)
T = TypeVar("T")


def check_target(target: Target, sql_type: Callable[[Any, str], str]) -> None:
    """Refuse a view that cannot be kept, before anything is made; ``sql_type`` refuses types that the engine has no place for."""
    name, names = target.name, target.schema.names
    what = f"view {name!r}"
    if not name or name.lower().startswith(("millstream", "sqlite_")):
        raise ViewError(f"{what}: the name is reserved", hint="names begin neither with millstream nor with sqlite_")
    folded = [column.lower() for column in names]
    twice = sorted({column for column in folded if folded.count(column) > 1})
    if twice or not names:
        found = f"two columns called {twice[0]!r}" if twice else "no column"
        raise ViewError(
            f"{what}: {found}; not every database tells upper from lower case", hint="give each a name of its own"
        )
    taken = {COUNT, ROW, WEIGHT} & set(folded)
    if taken:
        raise ViewError(f"{what}: the column name {min(taken)} is reserved", hint="give the column another name")
    if target.append and target.key:
        raise ViewError(f"{what}: an append-only view is keyed by its origin, found the key {target.key}")
    missing = [column for column in target.identity if column not in names]
    if missing:
        raise ViewError(f"{what}: no column {missing[0]!r} for its key; found {', '.join(names)}")
    for field in target.schema:
        sql_type(field.type, f"{what}, column {field.name!r}")


def check_definition(
    where: str, pipeline: str, fingerprint: str, targets: Sequence[Target], everything: Mapping[str, S], *, begun: bool
) -> bool:
    """Whether the tables are still to be made; refuses views that are not the stored ones, or that another pipeline has.

    ``everything`` is what is kept here. ``begun`` says that the ledger has batches of the pipeline.
    """
    wanted = {target.name: target for target in targets}
    mine = {name: kept for name, kept in everything.items() if kept.pipeline == pipeline}
    if mine or begun:
        _compare(pipeline, fingerprint, wanted, mine)
        return False
    for name, kept in everything.items():
        if name.lower() in {each.lower() for each in wanted}:
            raise ViewError(
                f"{where}: the view {name!r} is already kept here, by pipeline {kept.pipeline!r}",
                hint="give the view another name, or keep it elsewhere (to=…)",
            )
    return True


def check_names(targets: Sequence[Target]) -> None:
    """Refuse two views of one name."""
    if len({target.name.lower() for target in targets}) < len(targets):
        raise ViewError(f"two views of one name among {', '.join(target.name for target in targets)}")


def check_changes(pipeline: str, prepared: Mapping[str, T] | None, changed: Collection[str]) -> Mapping[str, T]:
    """What was prepared of a pipeline; refuses changes of anything else."""
    if prepared is None:
        raise PipelineError(f"pipeline {pipeline!r}: prepare() comes before the first commit()")
    unknown = sorted(set(changed) - set(prepared))
    if unknown:
        raise PipelineError(f"changes of {unknown[0]!r}, which is not a view of {pipeline!r}; nothing was written")
    return prepared


def check_versions(claimed: str, pipeline: str, coming: str, kept: Collection[Any]) -> None:
    """Refuse a swap by who does not hold the pipeline, or with a version that is not there."""
    if claimed != pipeline:
        raise PipelineError(f"pipeline {pipeline!r} is not claimed by this store, which holds {claimed!r}")
    if not kept:
        raise PipelineError(f"there is no version {coming!r} of pipeline {pipeline!r} to take its place")


def info_of(target: Target, pipeline: str, rows: int, last: Entry | None, refused: int) -> ViewInfo:
    """What is told of a stored view."""
    return ViewInfo(
        target.name,
        pipeline,
        tuple((field.name, str(field.type)) for field in target.schema),
        target.key,
        target.append,
        rows,
        last.batch if last else None,
        last.committed_at if last else None,
        refused,
    )


def plain_schema(schema: Any) -> Any:
    """Names and types, which is what counts: whether Spark knows a column to be never null may change by itself."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def find(where: str, views: Mapping[str, S], view: str) -> S:
    """A stored view; UnknownView if there is none."""
    if view not in views:
        raise UnknownView(
            f"{where}: no view {view!r}; found {', '.join(views) or 'none'}",
            hint="`millstream run FILE` makes the views of a pipeline",
        )
    return views[view]


def key_columns(target: Target, key: Sequence[Any]) -> list[pl.Series]:
    """The values of a key, each as a comparable column of one. Text is taken for any type, in the form that Arrow reads."""
    names = target.identity
    if not names:
        raise ViewError(f"view {target.name!r} has no key", hint="use table() or query()")
    if len(key) != len(names):
        raise ViewError(f"view {target.name!r}: found a key of {len(key)}, expected {len(names)}: {', '.join(names)}")
    return [_key_column(value, target.schema.field(name)) for name, value in zip(names, key, strict=True)]


def order_of(target: Target, page: Page) -> list[tuple[str, bool]]:
    """By which columns a page is in order, those of the key at the end so that it is the same each time."""
    named = [column for column, _ in page.order]
    for column in named:
        _ordered(target, column)
    return [*page.order, *((name, False) for name in target.identity or target.schema.names if name not in named)]


def conditions_of(target: Target, page: Page) -> list[tuple[Comparison, pl.Series]]:
    """What a page compares: each value as a comparable column of one."""
    return [(each.comparison, _key_column(each.value, _ordered(target, each.column))) for each in page.where]


def _ordered(target: Target, column: str) -> Any:
    """A column that can be compared."""
    if column not in target.schema.names:
        raise ViewError(
            f"view {target.name!r}: no column {column!r:.80}; found {', '.join(target.schema.names)}",
        )
    field = target.schema.field(column)
    if pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_null(field.type):
        raise ViewError(f"view {target.name!r}: column {column!r} is {field.type}, which is not compared here")
    return field


def taken_back(target: Target, row: str, count: int) -> PipelineError:
    """The error for a row whose count would fall below zero."""
    return PipelineError(
        f"view {target.name!r}, row {row}: taken back more often than it came, its count would be {count};"
        " nothing of the batch was written",
        hint="the changes do not fit what is stored: this is a bug of a kernel; please report it",
    )


def _key_column(value: Any, field: Any) -> pl.Series:
    try:
        scalar = pa.scalar(value).cast(field.type) if isinstance(value, str) else pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ViewError(f"key column {field.name}: found {value!r}, expected {field.type}") from error
    column = pa.table({field.name: pa.array([scalar.as_py()], field.type)})
    found: pl.Series = comparable(column, pa.schema([field]), f"key column {field.name}")[field.name]
    return found


def _compare(pipeline: str, fingerprint: str, wanted: Mapping[str, Target], stored: Mapping[str, S]) -> None:
    """Refuse views that are not the stored ones: going on would mix rows of two definitions."""
    found = ""
    for name in sorted(wanted.keys() | stored.keys()):
        if name not in stored:
            found = f"view {name!r} is new, and would lack what came before"
        elif name not in wanted:
            found = f"view {name!r} is stored but no longer defined"
        else:
            old, new = stored[name].target, wanted[name]
            if (old.key, old.append) != (new.key, new.append):
                found = f"view {name!r} is stored by the key {_key(old)}, now it is {_key(new)}"
            elif old.schema != plain_schema(new.schema):
                found = f"view {name!r} is stored as ({_columns(old)}), now it is ({_columns(new)})"
            elif stored[name].fingerprint != fingerprint:
                found = f"its fingerprint is {fingerprint}, the stored one {stored[name].fingerprint}"
        if found:
            raise CheckpointMismatch(f"pipeline {pipeline!r} is not the one that was stored: {found}", hint=_START_OVER)


def _key(target: Target) -> str:
    return "of its origin" if target.append else f"({', '.join(target.key)})"


def _columns(target: Target) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in target.schema)
