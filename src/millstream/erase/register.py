"""The register of requests: who asked to be forgotten, and what has become of it. One file beside the log, for its owner alone.

A name stands here until it is erased; then nothing of it is left but its digest under a key of the register, by which one can tell
later that somebody was forgotten, and when. One process at a time changes what follows from requests: who holds the lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from millstream.database import Database, Db, Form, Words
from millstream.erase.blank import Mode, Wish, compacted_file
from millstream.erase.form import Subject
from millstream.errors import AlreadyErasing, ConfigError, EraseError

_SCHEMA = """
CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE request (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, name TEXT, digest TEXT NOT NULL, mode TEXT NOT NULL,
    asked TEXT NOT NULL, done TEXT, outcome TEXT NOT NULL
) STRICT;
CREATE TABLE step (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE rule (topic TEXT NOT NULL, source TEXT NOT NULL, PRIMARY KEY (topic, source)) STRICT, WITHOUT ROWID;
"""
_BROKEN = Words(EraseError, "{where}: {why}; nothing was changed", "restore the file from a backup")
_SHUT = Words(EraseError, "cannot open {where}: {why}", "check the folder, its permissions and its free space")
REGISTER = Form(
    "register",
    0x4D494C45,  # "MILE"
    1,
    _SCHEMA,
    {
        "missing": Words(EraseError, "no requests at {where}", "`millstream erase request` makes the register"),
        "closed": Words(EraseError, "{where}: the register is closed{why}"),
        "full": Words(EraseError, "{where}: no room on the disk", "free some space and ask again"),
        "refused": _BROKEN, "large": _BROKEN, "corrupt": _BROKEN, "failed": _BROKEN,
        "busy": Words(EraseError, "{where}: another process held the lock for {why}", "look for a stuck process"),
        "shut": _SHUT, "read-only": _SHUT, "unmade": _SHUT,
        "no database": Words(EraseError, "{where} is no register of requests", "move that file away"),
        "foreign": Words(EraseError, "{where} is a SQLite database of something else", "move that file away"),
        "newer": Words(EraseError, "{where} {why}", "pip install --upgrade millstream"),
    },
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``subject`` is None once it is done; ``outcome`` is ``hidden``, ``withdrawn`` or ``erased``."""

    id: str
    kind: str
    subject: Subject | None
    digest: str
    mode: Mode
    asked: str
    done: str | None
    outcome: str

    @property
    def wish(self) -> Wish | None:
        """What is to be done, if it is not done yet."""
        return None if self.subject is None else Wish(self.subject, self.mode)


class Rule(msgspec.Struct, frozen=True):
    """What must be known of a topic to tell whose its records are."""

    kind: str
    columns: dict[str, str]
    codec: str
    avro_schema: str
    key: list[str]
    subjects: dict[str, str]


class Register:
    """The requests about one log.

    :raises EraseError: if the file is not there and is not to be made
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._file = Database(path, REGISTER, create=create)
        if create:
            with self._file.write() as db:
                db.execute("INSERT OR IGNORE INTO secret VALUES ('digest', ?)", (secrets.token_bytes(32),))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only process that changes what follows from requests; AlreadyErasing if another is at it."""
        with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AlreadyErasing(
                    f"{self.path}: another process erases or takes a request", hint="wait for its end, then try again"
                ) from error
            yield

    def digest(self, subject: Subject) -> str:
        """By what one can tell later that somebody was here."""
        with self._file.read() as db:
            key: bytes = db.execute("SELECT value FROM secret WHERE name = 'digest'").get
        return hmac.new(key, f"{subject.kind}\0{subject.name}".encode(), hashlib.sha256).hexdigest()

    def add(self, wish: Wish) -> Request:
        """Take a request; one that waits already for the same is given again."""
        digest, kind, name = self.digest(wish.subject), *wish.subject
        with self._file.write() as db:
            query = "kind = ? AND name = ? AND mode = ? AND outcome = 'hidden'"
            found = _requests(db, query, (kind, name, wish.mode))
            if not found:
                db.execute(
                    "INSERT INTO request (id, kind, name, digest, mode, asked, done, outcome) VALUES (?, ?, ?, ?, ?, ?, NULL, 'hidden')",
                    (secrets.token_hex(4), kind, name, digest, wish.mode, _now()),
                )
                found = _requests(db, query, (kind, name, wish.mode))
            return found[0]

    def requests(self) -> list[Request]:
        """All of them, the oldest first."""
        with self._file.read() as db:
            return _requests(db, "true", ())

    def waiting(self) -> list[Request]:
        """Those that are neither erased nor withdrawn."""
        return [each for each in self.requests() if each.outcome == "hidden"]

    def find(self, request: str) -> Request:
        """One that waits; ConfigError if none does under this id."""
        for each in self.requests():
            if each.id == request:
                if each.outcome != "hidden":
                    raise ConfigError(f"request {request} is {each.outcome} already", hint="`millstream erase status`")
                return each
        raise ConfigError(f"no request {request} in {self.path}", hint="`millstream erase status` lists them")

    def settle(self, requests: Sequence[Request], outcome: str) -> None:
        """Say what has become of requests, and forget their names, bytes and all, and the steps that led there."""
        with self._file.write() as db:
            db.execute("PRAGMA secure_delete=ON").fetchall()
            if outcome == "erased":
                db.execute("DELETE FROM step")
            for each in requests:
                db.execute(
                    "UPDATE request SET name = NULL, done = ?, outcome = ? WHERE id = ?", (_now(), outcome, each.id)
                )
        compacted_file(self._file, "register")

    def step(self, name: str) -> bytes | None:
        """What a run that has not ended has kept under a name."""
        with self._file.read() as db:
            found: bytes | None = db.execute("SELECT value FROM step WHERE name = ?", (name,)).get
            return found

    def take_step(self, name: str, value: bytes = b"") -> None:
        """Keep something for a run that goes on later, should this one not end."""
        with self._file.write() as db:
            db.execute("INSERT OR REPLACE INTO step VALUES (?, ?)", (name, value))

    def begin_again(self) -> None:
        """Forget which steps were done, but for what the run began with."""
        with self._file.write() as db:
            db.execute("DELETE FROM step WHERE name <> 'begun'")

    def learn(self, rules: dict[str, list[Rule]]) -> None:
        """Remember how to tell whose the records of topics are."""
        with self._file.write() as db:
            for topic, found in rules.items():
                db.execute("DELETE FROM rule WHERE topic = ?", (topic,))
                rows = {msgspec.json.encode(each).decode() for each in found}
                db.executemany("INSERT INTO rule VALUES (?, ?)", [(topic, row) for row in rows])

    def rules(self, topic: str) -> list[Rule]:
        """What was learned of a topic."""
        with self._file.read() as db:
            rows = db.execute("SELECT source FROM rule WHERE topic = ?", (topic,)).fetchall()
        return [msgspec.json.decode(row, type=Rule) for (row,) in rows]


def _requests(db: Db, where: str, given: tuple[str, ...]) -> list[Request]:
    columns = "id, kind, name, digest, mode, asked, done, outcome"
    rows = db.execute(f"SELECT {columns} FROM request WHERE {where} ORDER BY number", given).fetchall()
    return [
        Request(each, kind, None if name is None else Subject(kind, name), *rest) for each, kind, name, *rest in rows
    ]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
