"""A Delta table as a sink, by the library ``deltalake``: a batch is one commit, with its number as an application's transaction in it.

A view with a key is merged by it; of any other view rows are appended. A commit is tried against the version that was read, and never
moved to a later one: whoever lost the race reads again, and finds out whether a higher number is there. The library leaves what it
writes to the system's cache, so the files of a commit are synced here before the batch is acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from millstream.durable import sync
from millstream.errors import MachineError, SinkError, SinkUnavailable
from millstream.failpoint import failpoint
from millstream.sink import json_rows
from millstream.sink.contract import ChangeSet, Packed, Sink, check_remembered
from millstream.sink.delta_types import differing, null_hint, types
from millstream.store.contract import Refusal

_GONE = "__gone"
_TRIES = 10
_EMPTY_FOLDER = "give the sink an empty folder: it begins with all that the view holds"


@dataclass(frozen=True)
class Payload:
    """Rows to put and keys to remove."""

    rows: pl.DataFrame
    gone: pl.DataFrame

    def __len__(self) -> int:
        return self.rows.height + self.gone.height


class DeltaSink(Sink):
    """A folder with a Delta table, made by the first batch."""

    def __init__(
        self, folder: Path, view: str, producer: str, key: tuple[str, ...], partition: tuple[str, ...] = ()
    ) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise MachineError("a Delta table needs its library", hint="pip install 'millstream[delta]'") from error
        self._delta: Any = deltalake
        self._errors: Any = deltalake.exceptions
        self._folder, self._view, self._producer = folder.absolute(), view, producer
        self._key, self._partition = list(key), list(partition)
        self._told: pl.Schema | None = None
        """The types of rows that the table is known to have."""
        with self._ours():
            self._folder.mkdir(parents=True, exist_ok=True)
            if (table := self._table()) is not None:
                self._keep(table)

    def last(self) -> int | None:
        """The version of our transaction in the newest version of the table."""
        with self._ours():
            return self._known(self._table())

    def pack(self, change_set: ChangeSet) -> Packed:
        """The rows as they are: Parquet has room for each of their values."""
        return Packed(Payload(change_set.rows, change_set.gone), [])

    def send(
        self,
        payload: Payload,
        sequence: int,
        *,
        marked: bool,  # noqa: ARG002
        after: int | None = None,
    ) -> list[Refusal]:
        """Commit the rows with the number; it costs nothing here, so it always counts."""
        if not len(payload):
            return []
        for _ in range(_TRIES):
            with self._ours():
                table = self._table()
                known = self._known(table)
                check_remembered(f"the Delta table in {self._folder}", known, after)
                if known is not None and sequence <= known:
                    return []
                if self._committed(table, payload, sequence):
                    return []
        raise SinkUnavailable(
            f"the Delta table in {self._folder}: somebody else committed {_TRIES} times while a batch was written",
            hint="let one writer, or one optimize, be at work at a time",
        )

    def held(self) -> Iterator[tuple[str, str]] | None:
        """The rows of the newest version."""
        return self._rows() if self._key else None

    def _rows(self) -> Iterator[tuple[str, str]]:
        with self._ours():
            table = self._table()
            rows = pl.DataFrame() if table is None else pl.DataFrame(table.to_pyarrow_table())
        if rows.height:
            yield from zip(json_rows.documents(rows.select(self._key)), json_rows.documents(rows), strict=True)

    def anew(self) -> bool:
        """Remove all rows of a table with a key; any other is ready only if it is not there."""
        with self._ours():
            table = self._table()
            if table is not None and self._key:
                table.delete(commit_properties=self._delta.CommitProperties(max_commit_retries=0))
        return table is None or bool(self._key)

    def seal(self, sequence: int, *, after: int | None) -> bool:
        """A commit with the number and nothing else. A table that is not there cannot have one."""
        with self._ours():
            table = self._table()
            known = self._known(table)
            if table is None or known not in (after, sequence):
                return False
            return known == sequence or self._numbered(table, sequence)

    def close(self) -> None:
        """Nothing is held open."""

    def _table(self) -> Any:
        """The table as it is now; None if there is none."""
        try:
            return self._delta.DeltaTable(self._folder)
        except self._errors.TableNotFoundError:
            return None

    def _known(self, table: Any) -> int | None:
        found: int | None = table.transaction_version(self._producer) if table is not None else None
        return found

    def _committed(self, table: Any, payload: Payload, sequence: int) -> bool:
        """Make one commit of a batch; False if somebody else was faster."""
        try:
            if table is None:
                self._create(payload.rows, sequence)
            else:
                self._check(table, payload.rows)
                self._write(table, payload, sequence)
        except self._errors.CommitFailedError:
            return False
        except self._errors.DeltaError as error:
            if table is None and self._table() is not None:  # made by somebody else meanwhile
                return False
            raise SinkError(f"the Delta table in {self._folder}: {error}", hint=null_hint(payload.rows)) from error
        there = self._table()
        if (self._known(there) or -1) < sequence:  # nothing of the batch was there to be changed, so it made no commit
            return there is not None and self._numbered(there, sequence)
        self._keep(there)
        failpoint("sink.delta.committed")
        return True

    def _create(self, rows: pl.DataFrame, sequence: int) -> None:
        self._delta.write_deltalake(
            self._folder,
            rows,
            mode="error",
            name=self._view,
            partition_by=self._partition or None,
            commit_properties=self._properties(sequence),
        )

    def _write(self, table: Any, payload: Payload, sequence: int) -> None:
        properties, names = self._properties(sequence), payload.rows.columns
        if not self._key:
            self._delta.write_deltalake(table, payload.rows, mode="append", commit_properties=properties)
            return
        came = payload.rows.with_columns(pl.lit(False).alias(_GONE))
        went = payload.gone.with_columns(pl.lit(True).alias(_GONE))
        same = " AND ".join(f"t.{_quoted(name)} IS NOT DISTINCT FROM s.{_quoted(name)}" for name in self._key)
        values = {_quoted(name): f"s.{_quoted(name)}" for name in names}
        merge = table.merge(
            pl.concat([came, went], how="diagonal"),
            same,
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        merge = merge.when_matched_delete(f"s.{_GONE}").when_matched_update(values)
        merge.when_not_matched_insert(values, predicate=f"NOT s.{_GONE}").execute()

    def _numbered(self, table: Any, sequence: int) -> bool:
        """A commit of the number alone; False if somebody else was faster."""
        try:
            table.create_write_transaction(
                [],
                mode="append",
                schema=table.schema(),
                partition_by=self._partition,
                commit_properties=self._properties(sequence),
            )
        except self._errors.CommitFailedError:
            return False
        self._keep(self._table())
        return True

    def _properties(self, sequence: int) -> Any:
        transaction = self._delta.Transaction(self._producer, sequence)
        return self._delta.CommitProperties(max_commit_retries=0, app_transactions=[transaction])

    def _check(self, table: Any, rows: pl.DataFrame) -> None:
        """Refuse a table that has other columns than the view, or of other types."""
        if rows.schema == self._told:
            return
        wanted = types(self._delta.Schema.from_arrow(rows.to_arrow().schema))
        there = types(table.schema())
        if wanted != there:
            raise SinkError(
                f"the Delta table in {self._folder} has the columns {differing(there, wanted)}; view {self._view} has {differing(wanted, there)}",
                hint=f"{_EMPTY_FOLDER}; or make the view's columns those of the table",
            )
        self._told = rows.schema

    def _keep(self, table: Any) -> None:
        """Bring the newest commit and its files to the disk; SinkError if a crash of the machine has cost some of it."""
        said = self._folder / "_delta_log" / f"{table.version():020d}.json"
        if not said.exists():
            return  # cleaned up, behind a checkpoint
        for line in said.read_text().splitlines():
            if (added := json.loads(line).get("add")) is None:
                continue
            file = self._folder / unquote(added["path"])
            if file.exists() and file.stat().st_size != added["size"]:
                raise SinkError(
                    f"the Delta table in {self._folder}: {file.name} is not whole: the machine stopped while it was written",
                    hint=_EMPTY_FOLDER,
                )
            if file.exists():
                sync(file)
                sync(file.parent)
        sync(said)
        sync(said.parent)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._errors.CommitFailedError) as error:
            raise SinkUnavailable(
                f"the Delta table in {self._folder}: {error}", hint="check the folder, its permissions and its room"
            ) from error
        except self._errors.DeltaError as error:
            raise SinkError(f"the Delta table in {self._folder}: {error}") from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
