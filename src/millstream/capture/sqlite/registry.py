"""What a capture has made in a file: a registry of its tables as they were, the changes, and triggers; see that it is all there, and undo it.

Invariants: every change names by a number the table as it was then, so a table that is altered gets another number; changes are forgotten
only up to a position that was acknowledged, which is noted in the same transaction; a row of the registry keeps the text of the triggers,
so that a trigger that somebody changed, by hand or by renaming a column, is found.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from millstream.capture.sqlite.file import Db
from millstream.capture.sqlite.position import At, milliseconds
from millstream.capture.sqlite.shape import OURS, Shape, exists, quoted, read_shape
from millstream.capture.sqlite.triggers import triggers
from millstream.errors import CaptureError, CaptureGap, TableChanged

FORMAT = 1
_CURE = 'take a new snapshot; and next time let the capture do it, without one: `millstream capture alter sqlite:FILE "ALTER TABLE …"`'


@dataclass(frozen=True)
class Registered:
    """A table as it is or was; ``made`` are the statements of its triggers."""

    number: int
    shape: Shape
    made: tuple[str, ...]
    live: bool


class Registry:
    """The objects of one capture in a file. All it does is part of a transaction that the caller has begun."""

    def __init__(self, where: str, name: str, allow: Collection[str]) -> None:
        self.where, self.name = where, name
        self.prefix = f"{OURS}{name.lower()}:"
        self._state, self.changes, self._tables = (
            quoted(f"{self.prefix}{what}") for what in ("state", "changes", "tables")
        )
        self._allow = allow

    def install(self, db: Db) -> str:
        """Make everything anew, without tables, under a new id."""
        self.remove(db)
        identity = uuid4().hex
        db.execute(f"CREATE TABLE {self._state} (capture TEXT, format INTEGER, seq INTEGER, made INTEGER)")
        db.execute(f"CREATE TABLE {self._tables} (number INTEGER PRIMARY KEY, shape TEXT, made TEXT, live INTEGER)")
        db.execute(f"CREATE TABLE {self.changes} (seq INTEGER PRIMARY KEY AUTOINCREMENT, t, op, at)")
        db.execute(f"INSERT INTO {self._state} VALUES (?, ?, 0, 0)", (identity, FORMAT))
        return identity

    def remove(self, db: Db) -> None:
        """Take everything out of the file that is ours."""
        for kind in ("trigger", "table"):
            names = db.execute(
                "SELECT name FROM main.sqlite_master WHERE type = ? AND substr(name, 1, ?) = ?",
                (kind, len(self.prefix), self.prefix),
            ).fetchall()
            for (name,) in names:
                db.execute(f"DROP {kind} {quoted(name)}")

    def state(self, db: Db) -> At:
        """What was acknowledged last; CaptureGap if there is no such capture in the file."""
        if not exists(db, f"{self.prefix}state"):
            raise CaptureGap(
                f"{self.where} has nothing of the capture {self.name!r}: it was removed, or the file is another one",
                hint="take a new snapshot",
            )
        identity, version, seq, made = db.execute(f"SELECT * FROM {self._state}").fetchone()
        if version != FORMAT:
            raise CaptureError(
                f"{self.where}: the capture {self.name!r} was made by another version, in format {version}, expected {FORMAT}",
                hint="use that version; or `millstream capture remove`, and a new snapshot",
            )
        return At(identity, seq, made)

    def end(self, db: Db) -> At:
        """The last change that is committed."""
        state = self.state(db)
        last = db.execute(f"SELECT seq, at FROM {self.changes} ORDER BY seq DESC LIMIT 1").fetchone()
        return At(state.capture, last[0], milliseconds(last[1])) if last else state

    def check_reaches(self, db: Db, at: At) -> None:
        """Refuse a position that is not in this file, or behind which changes were forgotten."""
        state = self.state(db)
        why = ""
        if state.capture != at.capture:
            why = "the capture of this name in it began anew, or the file is another one"
        elif at.seq < state.seq:
            why = f"the changes up to {state.seq} were acknowledged and are forgotten, and the position is {at.seq}"
        else:
            row = db.execute(f"SELECT at FROM {self.changes} WHERE seq = ?", (at.seq,)).fetchone()
            made = state.made if at.seq == state.seq else milliseconds(row[0]) if row else None
            if made != at.made:
                why = f"it does not have the change {at.seq} that was read: it was restored from a backup"
        if why:
            raise CaptureGap(f"{self.where}: {why}; going on would leave a gap", hint="take a new snapshot")

    def forget(self, db: Db, upto: At, most: int) -> bool:
        """Delete changes up to a position, at most so many; whether there are none left of them."""
        state = self.state(db)
        if state.capture == upto.capture and upto.seq <= state.seq:
            return True
        self.check_reaches(db, upto)
        row = db.execute(
            f"SELECT seq, at FROM {self.changes} WHERE seq <= ? ORDER BY seq LIMIT 1 OFFSET ?", (upto.seq, most - 1)
        ).fetchone()
        last = At(upto.capture, row[0], milliseconds(row[1])) if row else upto
        db.execute(f"DELETE FROM {self.changes} WHERE seq <= ?", (last.seq,))
        db.execute(f"UPDATE {self._state} SET seq = ?, made = ?", (last.seq, last.made))
        return last.seq == upto.seq

    def registered(self, db: Db) -> list[Registered]:
        """The tables as they are and were."""
        return [
            Registered(number, Shape.read(shape), tuple(json.loads(made)), bool(live))
            for number, shape, made, live in db.execute(f"SELECT * FROM {self._tables} ORDER BY number").fetchall()
        ]

    def live(self, db: Db) -> dict[str, Registered]:
        """The tables that have triggers, by their names in lower case."""
        return {each.shape.name.lower(): each for each in self.registered(db) if each.live}

    def check_tables(self, db: Db, names: Iterable[str]) -> None:
        """Refuse to go on where a table or its triggers are not as they were made: changes of it may be missing."""
        live = self.live(db)
        for name in names:
            known = live.get(name.lower())
            why = "it is not captured yet" if known is None else self._changed(db, known)
            if why:
                raise TableChanged(f"table {name} of {self.where}: {why}", hint=_CURE)

    def _changed(self, db: Db, known: Registered) -> str:
        if not exists(db, known.shape.name):
            return "it was dropped or renamed"
        now = read_shape(db, known.shape.name, self._allow)
        if (now.columns, now.key) != (known.shape.columns, known.shape.key):
            return f"it was altered: found {_columns(now)}, expected {_columns(known.shape)}"
        if set(now.uniques) != set(known.shape.uniques):
            return "its unique keys are others, and which rows a REPLACE deletes by them cannot be told"
        if now.careful and not known.shape.careful:
            return "it has triggers or foreign keys of the application that it did not have, and changes may be told out of order"
        found = db.execute(
            "SELECT sql FROM main.sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(?)", (now.name,)
        ).fetchall()
        if not set(known.made) <= {sql for (sql,) in found}:
            return "triggers of the capture were dropped or changed"
        return ""

    def watch(self, db: Db, name: str) -> Registered:
        """Make the triggers of a table, as it is now."""
        shape = read_shape(db, name, self._allow)
        number = (db.execute(f"SELECT max(number) FROM {self._tables}").get or 0) + 1
        self._widen(db, 2 * len(shape.columns))
        made = [sql for _, sql in triggers(self.prefix, number, shape)]
        for sql in made:
            db.execute(sql)
        db.execute(
            f"INSERT INTO {self._tables} VALUES (?, ?, ?, 1)",
            (number, shape.said(), json.dumps(made, ensure_ascii=False)),
        )
        return Registered(number, shape, tuple(made), True)

    def unwatch(self, db: Db, known: Registered) -> None:
        """Take the triggers of a table away; its changes remain, and what it was like."""
        for each, _ in triggers(self.prefix, known.number, known.shape):
            db.execute(f"DROP TRIGGER IF EXISTS {quoted(each)}")
        db.execute(f"UPDATE {self._tables} SET live = 0 WHERE number = ?", (known.number,))

    def widest(self, db: Db) -> int:
        """How many columns for values the table of changes has."""
        return len(db.execute("SELECT name FROM pragma_table_info(?)", (f"{self.prefix}changes",)).fetchall()) - 4

    def _widen(self, db: Db, columns: int) -> None:
        for place in range(self.widest(db), columns):
            db.execute(f"ALTER TABLE {self.changes} ADD COLUMN v{place}")


def _columns(shape: Shape) -> str:
    names: Sequence[str] = [
        f"{name} {said}".strip() + (" key" if name in shape.key else "") for name, said in shape.columns
    ]
    return f"({', '.join(names)})"
