"""Whether a server writes what can be followed, and which server it is; each refusal says the line that mends it."""

from __future__ import annotations

from millstream.capture.postgres.position import At, lsn_of
from millstream.capture.postgres.server import Ask, gone, quoted
from millstream.errors import CaptureError

_SETTINGS = (
    "SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,"
    " pg_is_in_recovery(), current_setting('server_encoding'),"
    " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)"
)


def check_settings(ask: Ask) -> None:
    """Refuse a server from which nothing can be captured."""
    level, slots, senders, standby, encoding, may = ask(_SETTINGS)[0]
    if standby:
        raise CaptureError(
            "the server is a standby, which takes no replication slot of ours", hint="capture from the primary"
        )
    if level != "logical":
        raise CaptureError(
            f"the server has wal_level = {level}, expected logical",
            hint="ALTER SYSTEM SET wal_level = logical; and restart the server",
        )
    for name, value in (("max_replication_slots", slots), ("max_wal_senders", senders)):
        if value < 2:
            raise CaptureError(
                f"the server has {name} = {value}, expected 2 or more",
                hint=f"ALTER SYSTEM SET {name} = 10; and restart the server",
            )
    if encoding == "SQL_ASCII":
        raise CaptureError(
            "the database has the encoding SQL_ASCII: its text may be anything",
            hint="dump it and restore it into a database in UTF8",
        )
    if not may:
        user = quoted(ask.db.info.user)
        raise CaptureError("the user may not read the write-ahead log", hint=f"ALTER ROLE {user} REPLICATION;")


def identify(ask: Ask) -> tuple[str, int]:
    """System and timeline, on a connection for replication."""
    system, timeline, *_ = ask("IDENTIFY_SYSTEM")[0]
    return str(system), int(timeline)


def check_system(ask: Ask, at: At) -> None:
    """Refuse a position of another server, or of the same before somebody else was made primary."""
    system, timeline = identify(ask)
    if system != at.system:
        raise gone(f"the position is of the system {at.system}, and this is {system}")
    if timeline != at.timeline:
        raise gone(
            f"the server is on timeline {timeline}, and the position on {at.timeline}: a standby was promoted, or a backup restored"
        )


def end_of(ask: Ask) -> int:
    """Where the write-ahead log ends, as far as it is on the disk."""
    return lsn_of(ask("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def end_of_commits(ask: Ask) -> int:
    """Where the write-ahead log ends, with every commit that others see: one that did not wait for the disk is there when this returns."""
    if ask("SELECT pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()") == [(True,)]:
        ask("SET synchronous_commit = local")
        ask("SELECT pg_logical_emit_message(true, 'millstream', '')")  # its commit takes those before it to the disk
    return end_of(ask)


def beat_of(ask: Ask) -> float:
    """How often the server must hear of us, in seconds."""
    ((millis,),) = ask("SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'")
    return min(1.0, millis / 4000) if millis else 1.0
