"""A folder of Parquet files compacted: what is left of all batches so far, in one file, or one for each folder of a partition.

Of a view with a key the newest row of each key is left; of any other, rows as often as they are there. The snapshot's entry takes the
place of that of the last batch in it, in one step, while the sink may go on. Files that do not count any more stay for a while, for those
who had their names already.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import polars as pl

from millstream.durable import replace_file
from millstream.errors import ConfigError, SinkError, SinkUnavailable
from millstream.failpoint import failpoint
from millstream.sink import manifest
from millstream.sink.manifest import Entry
from millstream.store.contract import WEIGHT

KEPT = timedelta(hours=1)
"""How long files stay that do not count any more."""
_NULL = "=__HIVE_DEFAULT_PARTITION__"


class Compacted(NamedTuple):
    """What a compaction has done."""

    batches: int
    """Batches that the snapshot now stands for; 0 if there was nothing to do."""
    files: int
    rows: int
    left_files: int
    left_rows: int
    removed: int
    """Files that did not count any more and are gone."""


def compact_files(folder: str | Path, *, key: Sequence[str] | None = None, keep: timedelta = KEPT) -> Compacted:
    """Compact the Parquet files of a sink ``files:FOLDER``; its pipeline may run meanwhile.

    Whoever reads by :func:`committed_files` sees the files as they were, or the snapshot and what came since. A crash leaves one or the
    other; call it again. It takes as much memory as the rows that are left.

    :param folder: the folder
    :param key: the key of the view, if its entries do not say it (those of versions before 0.1.0 do not); none for a view without one
    :param keep: how long files stay that do not count any more, for who reads them still
    :raises ConfigError: if the files are not Parquet, or the key is not known
    :raises SinkError: if a file cannot be read
    """
    top = Path(folder)
    with _ours(top):
        if not (top / manifest.FOLDER).is_dir():
            raise ConfigError(f"files in {top}: there is no manifest", hint="name the folder of a sink files:FOLDER")
        found = manifest.entries(top)
        if len(found) < 2:
            return Compacted(0, 0, 0, 0, 0, _removed(top, found, keep))
        names = [name for entry in found for name in entry.files]
        if other := [name for name in names if not name.endswith(".parquet")]:
            raise ConfigError(f"files in {top}: {other[0]} is no Parquet file", hint="only those can be compacted")
        known = _key(top, found, key)
        last = found[-1].number
        made, rows = _written(top, names, known, last)
        failpoint("files.compact.written")
        with manifest.locked(top):
            if manifest.entries(top)[: len(found)] != found:
                raise SinkUnavailable(f"files in {top}: somebody else compacts them", hint="run it again")
            Entry(last, made, rows, known, snapshot=True).write(top)
        failpoint("files.compact.replaced")
        removed = _removed(top, manifest.entries(top), keep)
    return Compacted(len(found), len(names), sum(entry.rows for entry in found), len(made), rows, removed)


def _key(top: Path, found: Sequence[Entry], said: Sequence[str] | None) -> tuple[str, ...]:
    """The key of the view, by the entries or as it was said."""
    known = {entry.key for entry in found} - {None}
    if len(known) > 1:
        raise ConfigError(
            f"files in {top}: they are of views with different keys", hint="let the sink begin in an empty folder"
        )
    told = None if said is None else tuple(said)
    if known and told is not None and {told} != known:
        (key,) = known
        raise ConfigError(
            f"files in {top}: found the key {_listed(key)}, expected {_listed(told)}", hint="leave --key out"
        )
    if not known and told is None:
        raise ConfigError(
            f"files in {top}: their entries do not say what the key of the view is",
            hint="--key NAMES; --key '' if it has none",
        )
    return told if told is not None else next(key for key in known if key is not None)


def _listed(key: tuple[str, ...] | None) -> str:
    return ", ".join(key or ()) or "none"


def _written(top: Path, names: Sequence[str], key: tuple[str, ...], last: int) -> tuple[tuple[str, ...], int]:
    """Write what is left of these files; the names of those that have it, and how many rows they have."""
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folders[name.rpartition("/")[0]].append(name)
    made, rows = [], 0
    for folder, inside in folders.items():
        frames = [pl.scan_parquet(top / name, hive_partitioning=False) for name in inside]
        if key and _NULL in folder:  # null and the empty text share it, so a key there may be two
            made += inside
            rows += pl.concat(frames).select(pl.len()).collect().item()
            continue
        left = _left(frames, key, folder)
        if left.height:
            made.append(f"{folder}/{last:020d}.snapshot.parquet".lstrip("/"))
            replace_file(top / made[-1], partial(_fill, left))
            rows += left.height
    return tuple(made), rows


def _left(frames: Sequence[pl.LazyFrame], key: tuple[str, ...], folder: str) -> pl.DataFrame:
    """What is left of changes."""
    changes = pl.concat(frames)
    if key:
        said = {part.partition("=")[0] for part in folder.split("/")}
        names = [name for name in key if name not in said]
        newest = changes.unique(names, keep="last", maintain_order=True) if names else changes.tail(1)
        return newest.filter(pl.col(WEIGHT) == 1).collect()
    whole = changes.collect()
    if (whole[WEIGHT] == 1).all():
        return whole
    rows = [name for name in whole.columns if name != WEIGHT]
    summed = whole.group_by(rows, maintain_order=True).agg(pl.col(WEIGHT).sum()).filter(pl.col(WEIGHT) != 0)
    return summed.select(whole.columns)


def _fill(rows: pl.DataFrame, path: Path) -> None:
    rows.write_parquet(path)


def _removed(top: Path, found: Sequence[Entry], keep: timedelta) -> int:
    """Remove entries that do not count, and files that have not counted for a while; how many files."""
    first = found[0] if found else None
    if first is None or not first.snapshot:
        return 0
    for number in manifest.numbers(top):
        if number < first.number:
            manifest.place(top, number).unlink(missing_ok=True)
            failpoint("files.compact.entry_removed")
    if time.time() - manifest.place(top, first.number).stat().st_mtime < keep.total_seconds():
        return 0
    counting = {top / name for entry in found for name in entry.files}
    old = [
        path
        for path in top.rglob("*.parquet")
        if path not in counting and _number(path) is not None and (_number(path) or 0) <= first.number
    ]
    for path in old:
        path.unlink(missing_ok=True)
        failpoint("files.compact.file_removed")
    return len(old)


def _number(path: Path) -> int | None:
    """The number of the batch that wrote a file; None if it is not ours."""
    stem = path.name.removesuffix(".parquet").removesuffix(".snapshot")
    return int(stem) if len(stem) == 20 and stem.isdigit() else None


@contextmanager
def _ours(top: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkUnavailable(
            f"files in {top}: {error}", hint="check the folder, its permissions and its room"
        ) from error
    except pl.exceptions.PolarsError as error:
        raise SinkError(
            f"files in {top}: {str(error).splitlines()[0]}",
            hint="files that were written with other columns cannot be compacted together with newer ones",
        ) from error
