"""The triggers of a captured table, as SQL that every SQLite since 3.8 runs: they store values and call nothing but the clock.

An insert, update or delete is a row among the changes, made by an AFTER trigger. ``REPLACE`` deletes rows that hold a unique key in its
way, and unless ``recursive_triggers`` is on no trigger fires for them: so BEFORE triggers note every row that is in the way as a suspect,
and who reads the changes finds out what became of it (:mod:`millstream.capture.sqlite.suspects`).

SQLite fires the trigger first that was made last, so that ours, made behind those of the application, see a change before those react to
it. Where a write may still have changed its row once more (``careful``), the row is read again, and what is noted is what is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.capture.sqlite.shape import Shape, Unique, quoted

INSERTED, UPDATED, DELETED, SUSPECT = 1, 2, 3, 4
_NOW = "julianday('now')"


def triggers(prefix: str, number: int, shape: Shape) -> Iterator[tuple[str, str]]:
    """Names and statements of the triggers of a table, whose number in the registry this is."""
    made = _Triggers(prefix, number, shape)
    before_update = f"BEFORE UPDATE{made.watched()}"
    for name, when, body in (
        ("bi", "BEFORE INSERT", made.suspects(updating=False)),
        ("bu", before_update, made.suspects(updating=True)),
        ("ai", "AFTER INSERT", made.inserted()),
        ("au", "AFTER UPDATE", made.updated()),
        ("ad", "AFTER DELETE", made.deleted()),
    ):
        full = f"{prefix}{number}:{name}"
        yield full, f"CREATE TRIGGER {quoted(full)} {when} ON {quoted(shape.name)} BEGIN {body} END"


class _Triggers:
    def __init__(self, prefix: str, number: int, shape: Shape) -> None:
        self._changes, self._number, self._shape = quoted(f"{prefix}changes"), number, shape
        self._names = [quoted(name) for name, _ in shape.columns]
        self._table = quoted(shape.name)
        self._primary = next(each for each in shape.uniques if set(each.columns) == set(shape.key) and not each.where)

    def inserted(self) -> str:
        if not self._shape.careful:
            return f"{self._into(1)} VALUES ({self._head(INSERTED)}, {self._row('NEW')});"
        return f"{self._into(1)} SELECT {self._head(INSERTED)}, {', '.join(self._names)} FROM {self._table} WHERE {self._at('NEW')};"

    def updated(self) -> str:
        if not self._shape.careful:
            return f"{self._into(2)} VALUES ({self._head(UPDATED)}, {self._row('OLD')}, {self._row('NEW')});"
        now, there = ", ".join(self._names), f"FROM {self._table} WHERE {self._at('NEW')}"
        return (  # where the key changed: the old row is gone, unless there is one again, and the new one came
            f"{self._into(1)} SELECT {self._head(DELETED)}, {self._row('OLD')} WHERE NOT ({self._same()})"
            f" AND NOT EXISTS (SELECT 1 FROM {self._table} WHERE {self._at('OLD')});"
            f" {self._into(1)} SELECT {self._head(INSERTED)}, {now} {there} AND NOT ({self._same()});"
            f" {self._into(2)} SELECT {self._head(UPDATED)}, {self._row('OLD')}, {now} {there} AND {self._same()};"
        )

    def deleted(self) -> str:
        if not self._shape.careful:
            return f"{self._into(1)} VALUES ({self._head(DELETED)}, {self._row('OLD')});"
        return (
            f"{self._into(1)} SELECT {self._head(DELETED)}, {self._row('OLD')}"
            f" WHERE NOT EXISTS (SELECT 1 FROM {self._table} WHERE {self._at('OLD')});"
        )

    def suspects(self, *, updating: bool) -> str:
        """Note the rows that hold what the new row wants to have; of an update not the row itself."""
        keys = list(self._shape.uniques)
        conditions = [" AND ".join(self._wants(each)) for each in keys]
        if self._shape.rowid and not self._shape.alias:
            conditions.append(f"{self._shape.rowid} = NEW.{self._shape.rowid}")
        other = f" AND NOT ({self._same('')})" if updating else ""
        select = f"SELECT {self._head(SUSPECT)}, {', '.join(self._names)} FROM {self._table} WHERE"
        return " ".join(f"{self._into(1)} {select} {each}{other};" for each in conditions)

    def watched(self) -> str:
        """The columns whose update may be in the way of another row; nothing stands for all."""
        if self._shape.generated or any(each.where for each in self._shape.uniques):
            return ""
        names = dict.fromkeys(quoted(name) for each in self._shape.uniques for name in each.columns)
        return f" OF {', '.join((*names, *(('rowid', '_rowid_', 'oid') if self._shape.rowid else ())))}"

    def _wants(self, unique: Unique) -> Iterator[str]:
        defaults = dict(self._shape.defaults)
        for name, collation in zip(unique.columns, unique.collations, strict=True):
            new = f"NEW.{quoted(name)}"
            if name in defaults:  # REPLACE puts the default where a null may not be
                new = f"coalesce({new}, {defaults[name]})"
            yield f"{quoted(name)} = {new} COLLATE {quoted(collation)}"
        if unique.where:
            yield f"({unique.where})"

    def _at(self, which: str) -> str:
        """The row with exactly this key: by its index, and then to the letter."""
        found = []
        for name, collation in zip(self._primary.columns, self._primary.collations, strict=True):
            found.append(f"{quoted(name)} = {which}.{quoted(name)} COLLATE {quoted(collation)}")
            if collation != "BINARY":
                found.append(f"{quoted(name)} IS {which}.{quoted(name)} COLLATE BINARY")
        return " AND ".join(found)

    def _same(self, new: str = "NEW.") -> str:
        return " AND ".join(f"{new}{quoted(name)} IS OLD.{quoted(name)} COLLATE BINARY" for name in self._shape.key)

    def _into(self, images: int) -> str:
        places = ", ".join(f"v{place}" for place in range(images * len(self._names)))
        return f"INSERT INTO {self._changes} (t, op, at, {places})"

    def _head(self, op: int) -> str:
        return f"{self._number}, {op}, {_NOW}"

    def _row(self, which: str) -> str:
        return ", ".join(f"{which}.{name}" for name in self._names)
