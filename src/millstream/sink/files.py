"""Files as an sink: a Parquet or JSON file for each batch with changes, and a manifest that says which of them count.

A file is in its place, under a name that its batch's number decides, before the manifest's entry appears; what has no entry
does not count, and is written again under the same name. Entries are made under a lock, and their numbers only grow.

With a partition there is a file for each value of some columns, in a folder that says it as Hive and Spark do:
``day=2026-01-01/minute=08%3A15``. These columns are not in the file. One entry names all files of a batch.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from millstream.durable import replace_file, sync
from millstream.errors import ConfigError, SinkUnavailable
from millstream.failpoint import failpoint
from millstream.sink import json_rows, manifest
from millstream.sink.contract import ChangeSet, Packed, Sink, check_remembered
from millstream.store.contract import WEIGHT, Refusal

FORMATS = ("parquet", "json")
_LONGEST = 255
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")


class FileSink(Sink):
    """A folder of files, only added to. Rows that went have the weight −1, and of a view with a key nothing but their key."""

    def __init__(
        self, folder: Path, kind: str, partition: tuple[str, ...] = (), key: tuple[str, ...] | None = None
    ) -> None:
        if kind not in FORMATS:
            raise ConfigError(f"files: found format={kind}, expected {' or '.join(FORMATS)}")
        self._folder, self._kind, self._partition, self._key = folder, kind, partition, key
        self._me = uuid.uuid4().bytes
        self._known: int | None = None
        with _ours(folder):
            (folder / manifest.FOLDER).mkdir(parents=True, exist_ok=True)

    def last(self) -> int | None:
        """The number of the newest entry."""
        with _ours(self._folder):
            return max(manifest.numbers(self._folder), default=None)

    def pack(self, change_set: ChangeSet) -> Packed:
        """All changes by the folder that they belong in."""
        rows = (
            change_set.rows
            if WEIGHT in change_set.rows.columns
            else change_set.rows.with_columns(pl.lit(1, pl.Int64).alias(WEIGHT))
        )
        gone = change_set.gone.with_columns(pl.lit(-1, pl.Int64).alias(WEIGHT))
        rows, refused = json_rows.writable(rows) if self._kind == "json" else (rows, [])
        found, gone_found = (_parted(each, self._partition) for each in (rows, gone))
        refused += [each for parts in (found, gone_found) for each in parts.refused]
        made: dict[str, pl.DataFrame | pl.Series] = {}
        for folder in dict.fromkeys((*found.by_folder, *gone_found.by_folder)):
            came, went = (each.by_folder.get(folder, each.none) for each in (found, gone_found))
            if self._kind == "parquet":
                made[folder] = pl.concat([came, went], how="diagonal").select(came.columns)
            else:
                made[folder] = pl.concat([json_rows.documents(came), json_rows.documents(went)])
        return Packed(made, refused)

    def send(
        self,
        payload: Any,
        sequence: int,
        *,
        marked: bool,  # noqa: ARG002
        after: int | None = None,
    ) -> list[Refusal]:
        """Write the files, then their entry; a number costs nothing here, so it always counts."""
        if not payload:
            return []
        with _ours(self._folder), manifest.locked(self._folder):
            known = self._newest()
            check_remembered(f"files in {self._folder}", known, after)
            if known is not None and sequence <= known:
                return []
            names = [f"{folder}{sequence:020d}.{self._kind}" for folder in payload]
            for name, content in zip(names, payload.values(), strict=True):
                _make(self._folder, (self._folder / name).parent)
                replace_file(self._folder / name, partial(self._fill, content=content))
                failpoint("sink.files.written")
            rows = sum(map(len, payload.values()))
            manifest.Entry(sequence, tuple(names), rows, self._key).write(self._folder)
            self._known = sequence
        return []

    def seal(self, sequence: int, *, after: int | None) -> bool:
        """An entry that names no file."""
        with _ours(self._folder), manifest.locked(self._folder):
            known = self._newest()
            if known == after:
                manifest.Entry(sequence, (), 0, self._key).write(self._folder)
                self._known = sequence
            return known in (after, sequence)

    def held(self) -> Iterator[tuple[str, str]] | None:
        """The newest row of each key. Of folders by columns it is not told: null and the empty text share one."""
        return self._left() if self._key and not self._partition else None

    def _left(self) -> Iterator[tuple[str, str]]:
        key, newest = list(self._key or ()), dict[bytes, bytes | None]()
        for file in committed_files(self._folder):
            if self._kind == "parquet":
                documents: Iterable[Any] = json_rows.documents(pl.read_parquet(file))
            else:
                documents = filter(None, file.read_bytes().split(b"\n"))
            for row in map(msgspec.json.decode, documents):
                weight, name = row.pop(WEIGHT), msgspec.json.encode({each: row[each] for each in key})
                newest[name] = msgspec.json.encode(row) if weight == 1 else None
        for name, row in newest.items():
            if row is not None:
                yield name.decode(), row.decode()

    def close(self) -> None:
        """Nothing is held open."""

    def _newest(self) -> int | None:
        """What :meth:`last` gives, under the lock; without listing the manifest if nobody else has written since."""
        writer, known = self._folder / manifest.FOLDER / ".writer", self._known
        there = known is not None and manifest.place(self._folder, known).exists()
        if there and writer.exists() and writer.read_bytes() == self._me:
            return known
        writer.write_bytes(self._me)
        return self.last()

    def _fill(self, path: Path, content: Any) -> None:
        if self._kind == "parquet":
            content.write_parquet(path)
        else:
            path.write_bytes("".join(f"{document}\n" for document in content).encode())


def committed_files(folder: str | Path) -> list[Path]:
    """The files of a folder that count, in the order in which they were written.

    After ``millstream files compact`` the first of them have what was left of all that came before.

    :param folder: the folder of a sink ``files:FOLDER``
    :raises OSError: if they cannot be read
    """
    top = Path(folder)
    return [top / name for entry in manifest.entries(top) for name in entry.files]


class _Parts(NamedTuple):
    """Rows by the folder that they belong in, without the columns that it says; and those that fit into none."""

    by_folder: dict[str, pl.DataFrame]
    none: pl.DataFrame
    refused: list[Refusal]


def _parted(rows: pl.DataFrame, partition: tuple[str, ...]) -> _Parts:
    none = rows.clear().drop(partition, strict=False)  # of a view without a key nothing tells which rows are gone
    if not partition or not rows.height:
        return _Parts({"": rows} if rows.height else {}, none, [])
    for name in partition:
        if not (rows.schema[name].is_integer() or rows.schema[name] in (pl.String, pl.Boolean, pl.Date)):
            raise ConfigError(
                f"files: partition={name} is of {rows.schema[name]}; expected text, whole numbers, dates or booleans",
                hint=f"select(\"date_format({name}, 'yyyy-MM-dd') AS day\", …)",
            )
    by_folder: dict[str, pl.DataFrame] = {}
    refused: list[Refusal] = []
    for values, part in rows.partition_by(*partition, as_dict=True, maintain_order=True).items():
        names = [f"{_escaped(name)}={_escaped(value)}" for name, value in zip(partition, values, strict=True)]
        if max(len(name.encode()) for name in names) > _LONGEST:
            refused += json_rows.refusals(part, f"the name of a folder has at most {_LONGEST} bytes")
            continue
        folder = "/".join(names) + "/"
        # Null and the empty text share a folder, as with Hive.
        by_folder[folder] = pl.concat([by_folder.get(folder, none), part.drop(partition)])
    return _Parts(by_folder, none, refused)


def _escaped(value: Any) -> str:
    """A value as Hive and Spark write it in the name of a folder."""
    if value is None or value == "":
        return "__HIVE_DEFAULT_PARTITION__"
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", said)


def _make(top: Path, folder: Path) -> None:
    """Make a folder, and those above it, so that they are on the disk."""
    missing = [each for each in (folder, *folder.parents) if each != top and top in each.parents and not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync(each.parent)


@contextmanager
def _ours(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise SinkUnavailable(
            f"files in {folder}: {why}", hint="check the folder, its permissions and its room"
        ) from error
