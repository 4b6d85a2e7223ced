"""The publication, which says what the slot gives of which tables, and the slot, which keeps what was not read yet.

Invariant: nothing is captured through a publication that leaves something out, nor from a slot that has forgotten something.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from psycopg import errors

from millstream.capture.postgres.position import At, lsn_of, lsn_text
from millstream.capture.postgres.server import Ask, gone, literal, quoted
from millstream.capture.postgres.tables import Described
from millstream.errors import CaptureError, CaptureUnavailable, TableChanged

PLUGIN = "pgoutput"
_PUBLISH = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"
_PUBLICATION = (
    "SELECT oid::int8, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot"
    " FROM pg_publication WHERE pubname = %s"
)
_ENTRIES = "SELECT prrelid::int8, oid::int8, prqual IS NOT NULL, prattrs IS NOT NULL FROM pg_publication_rel WHERE prpubid = %s"
_PUBLISHED = (
    "SELECT c.oid::int8 FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname"
    " JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename WHERE t.pubname = %s"
)
_SLOT = (
    "SELECT coalesce(plugin, slot_type)::text, database::text, temporary, active_pid, confirmed_flush_lsn::text, wal_status,"
    " current_database()::text FROM pg_replication_slots WHERE slot_name = %s"
)


def name_of(capture: str) -> str:
    """The name of publication and slot: what a slot may be called, and another one for each capture.

    >>> name_of("shop"), name_of("Shop 2")
    ('millstream_shop', 'millstream_shop_2_f87d1d51')
    """
    plain = re.sub(r"[^a-z0-9_]", "_", capture.lower())
    if plain != capture or len(plain) > 40:
        plain = f"{plain[:40]}_{zlib.crc32(capture.encode()):08x}"
    return f"millstream_{plain}"


def make_publication(ask: Ask, name: str, tables: Sequence[Described]) -> None:
    """Make the publication, or let it have these tables too; an administrator may have done it."""
    found = ask(_PUBLICATION, name)
    if not found:
        command = f"CREATE PUBLICATION {quoted(name)} FOR TABLE {_listed(tables)} WITH ({_PUBLISH})"
    else:
        there = {row[0] for row in ask(_PUBLISHED, name)}
        missing = [each for each in tables if each.number not in there]
        if not missing:
            return
        command = f"ALTER PUBLICATION {quoted(name)} ADD TABLE {_listed(missing)}"
    with _by_owner(command):
        ask(command)


def check_publication(ask: Ask, name: str, tables: Sequence[Described]) -> tuple[int, Mapping[str, str]]:
    """Refuse a publication that leaves out something of these tables; its number, and those of the tables and their entries."""
    found = ask(_PUBLICATION, name)
    if not found:
        raise gone(f"there is no publication {name} any more")
    number, _, everything, root = found[0]
    if not everything or (not root and any(each.partitioned for each in tables)):
        raise CaptureError(
            f"the publication {name} leaves out kinds of changes, or says partitions in place of their table",
            hint=f"ALTER PUBLICATION {quoted(name)} SET ({_PUBLISH}); and a new snapshot",
        )
    entries = {row[0]: row[1:] for row in ask(_ENTRIES, number)}
    there = {row[0] for row in ask(_PUBLISHED, name)}
    numbers = {}
    for each in tables:
        entry, rows, columns = entries.get(each.number, (0, False, False))
        said = quoted(each.table.schema, each.table.name)
        if each.number not in there:
            raise TableChanged(
                f"table {each.table.full_name} is not in the publication {name} any more, or is another table of that name",
                hint=f"ALTER PUBLICATION {quoted(name)} ADD TABLE {said}; and a new snapshot of it",
            )
        if rows or columns:
            raise CaptureError(
                f"the publication {name} has only some {'rows' if rows else 'columns'} of table {each.table.full_name}",
                hint=f"ALTER PUBLICATION {quoted(name)} DROP TABLE {said}; ALTER PUBLICATION {quoted(name)} ADD TABLE {said}; and a new snapshot",
            )
        numbers[each.table.full_name] = f"{each.number}.{entry}"
    return int(number), numbers


def check_same(at: At, publication: int, tables: Mapping[str, str]) -> None:
    """Refuse what was made again after the position: between its two lives changes were not told."""
    if publication != at.publication:
        raise gone("the publication was dropped and made again")
    for name, number in tables.items():
        if at.tables.get(name, number) != number:
            raise TableChanged(
                f"table {name} is another table than the one captured so far, or was out of the publication for a while",
                hint="take a new snapshot of it",
            )


def make_slot(ask: Ask, name: str) -> None:
    """Make the slot, on a connection for replication, after the publication."""
    ask.patiently(f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL {PLUGIN} (SNAPSHOT 'nothing')")


def peeked(ask: Ask, name: str, end: int, most: int) -> list[bytes]:
    """Messages that the slot keeps, up to an LSN, or until there are so many; it keeps them still. An error while another process reads it."""
    options = "'proto_version', '2', 'publication_names', %s"
    query = f"SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s, {options})"
    return [bytes(row[0]) for row in ask(query, name, lsn_text(end), most, quoted(name))]


def drop_slot(ask: Ask, name: str) -> None:
    """Drop the slot if it is there; who reads from it is thrown out before."""
    for _, _, _, pid, *_ in ask(_SLOT, name):
        if pid is not None:
            ask("SELECT pg_terminate_backend(%s, 10000)", pid)
        with suppress(errors.UndefinedObject):
            ask("SELECT pg_drop_replication_slot(%s)", name)


def slot_is_lost(ask: Ask, name: str) -> bool | None:
    """Whether the slot has forgotten what it kept; None if there is none."""
    found = ask(_SLOT, name)
    return bool(found[0][5] == "lost") if found else None


def check_slot(ask: Ask, name: str, at: At | None) -> None:
    """Refuse a slot from which what came after the position cannot be read."""
    found = ask(_SLOT, name)
    drop = f"SELECT pg_drop_replication_slot({literal(name)});"
    if not found:
        raise gone(f"there is no replication slot {name} any more")
    plugin, database, temporary, _, confirmed, status, ours = found[0]
    if plugin != PLUGIN or database != ours or temporary:
        what = "is temporary" if temporary else f"is of the database {database} and has the plugin {plugin}"
        raise CaptureError(
            f"the replication slot {name} {what}, expected {ours} and {PLUGIN}",
            hint=f"if nobody needs it, {drop} or give this capture another name",
        )
    if status == "lost" or confirmed is None:
        raise gone(f"the server has thrown away what the replication slot {name} kept (wal_status is lost)")
    if at is not None and lsn_of(confirmed) > at.lsn:
        raise gone(
            f"the replication slot {name} begins at {confirmed}, after the position {lsn_text(at.lsn)}:"
            " it was advanced, or dropped and made again"
        )


def slot_is_free(ask: Ask, name: str, *, last: bool) -> bool:
    """Whether nobody reads from the slot; the ``last`` time, an error if somebody does."""
    for row in ask(_SLOT, name):
        if row[3] is not None and last:
            raise CaptureUnavailable(
                f"the replication slot {name} is in use by the server's process {row[3]}",
                hint="another process reads with this capture's name: stop it, or give this capture another name",
            )
        return row[3] is None
    return True


@contextmanager
def _by_owner(command: str) -> Iterator[None]:
    try:
        yield
    except errors.InsufficientPrivilege as error:
        raise CaptureError(
            f"the publication is missing, or lacks a table, and this user may not change it: {error.diag.message_primary}",
            hint=f"let the owner of the tables run: {command};",
        ) from error


def _listed(tables: Sequence[Described]) -> str:
    """ONLY: tables that inherit from one are tables of their own. Partitions are not."""
    return ", ".join(
        ("" if each.partitioned else "ONLY ") + quoted(each.table.schema, each.table.name) for each in tables
    )
