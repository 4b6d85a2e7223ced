"""A change of the schema that a capture goes on over: triggers away, the statement, triggers again, in one transaction.

Nobody can write in between, so nothing is missing. A row whose told values are others afterwards, since a column came with a default or has
another name, is told once more, as an update. Statements that write rows are refused: nobody would tell of what they wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from millstream.capture.sqlite.file import Db
from millstream.capture.sqlite.registry import Registered, Registry
from millstream.capture.sqlite.shape import quoted
from millstream.capture.sqlite.triggers import UPDATED
from millstream.errors import CaptureError, ConfigError

_ALLOWED = ("alter table", "create index", "create unique index", "drop index", "create trigger", "drop trigger")


def check_statement(statement: str) -> None:
    """Refuse what is no change of the schema."""
    words = " ".join(statement.split()).lower()
    if not words.startswith(_ALLOWED):
        raise ConfigError(
            f"capture: found the statement {statement.strip()[:80]!r}, expected ALTER TABLE, or CREATE or DROP of an INDEX or TRIGGER",
            hint="statements that write rows are run as ever, their changes are captured",
        )


def alter(db: Db, registry: Registry, statement: str) -> None:
    """Run one statement, within a transaction that the caller has begun."""
    check_statement(statement)
    live = registry.live(db)
    registry.check_tables(db, [each.shape.name for each in live.values()])
    for each in live.values():
        registry.unwatch(db, each)
    with _one_statement(db):
        db.execute(statement).fetchall()
    for each in live.values():
        now = _watched(db, registry, each)
        _tell(db, registry, each, now)


def _watched(db: Db, registry: Registry, before: Registered) -> Registered:
    """The table with its triggers again; CaptureError if it is no longer what is captured."""
    name = before.shape.name
    now = None
    with suppress(CaptureError):
        now = registry.watch(db, name)
    if now is None:
        raise CaptureError(
            f"table {name}: the statement would drop or rename it, or make of it what cannot be captured; nothing was done",
            hint="take the table out of the capture first; or `millstream capture remove`, and a new snapshot",
        )
    if now.shape.key != before.shape.key:
        raise CaptureError(
            f"table {name}: its key would be ({', '.join(now.shape.key)}), expected ({', '.join(before.shape.key)}); nothing was done",
            hint="`millstream capture remove`, the statement, and a new snapshot",
        )
    return now


def _tell(db: Db, registry: Registry, before: Registered, now: Registered) -> None:
    """Tell the rows again that have something in a column that was not there."""
    known = {name for name, _ in before.shape.columns}
    gained = [name for name, _ in now.shape.columns if name not in known]
    if not gained:
        return
    names = [name for name, _ in now.shape.columns]
    places = ", ".join(f"v{place}" for place in range(2 * len(names)))
    old: Iterable[str] = ("NULL" if name in gained else quoted(name) for name in names)
    db.execute(
        f"INSERT INTO {registry.changes} (t, op, at, {places})"
        f" SELECT {now.number}, {UPDATED}, julianday('now'), {', '.join(old)}, {', '.join(map(quoted, names))}"
        f" FROM main.{quoted(now.shape.name)} WHERE {' OR '.join(f'{quoted(name)} IS NOT NULL' for name in gained)}"
    )


@contextmanager
def _one_statement(db: Db) -> Iterator[None]:
    """Refuse a second statement behind the first."""
    seen: list[str] = []

    def trace(_: object, sql: str, __: object) -> bool:
        seen.append(sql)
        if len(seen) > 1 and sql.strip():
            raise ConfigError(
                f"capture: found {sql.strip()[:80]!r} behind the statement, expected one", hint="one after the other"
            )
        return True

    db.exec_trace = trace
    try:
        yield
    finally:
        db.exec_trace = None
