"""The keys of a vault: one for each subject, 256 random bits, wrapped by a key that the master key wraps.

Invariants: a key is on disk before anything is sealed with it; no key is there unwrapped; a key that was deleted is gone from the file, and only
that it was there is remembered, by an id that says nothing. What other processes delete or rotate is seen by the next use: no key is
remembered over a deletion or a rotation.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millstream.database import Db
from millstream.errors import VaultError
from millstream.failpoint import failpoint
from millstream.vault.cipher import KEY, Cipher, WrongBox
from millstream.vault.file import VaultFile
from millstream.vault.master import Master

ID = 16
VAULT_ID = 8
_REMEMBERED = 100_000
"""Keys that are kept unwrapped in memory, at most."""


class Subject(NamedTuple):
    """Whose data it is: ``Subject("user", "123")``."""

    kind: str
    value: str

    def __str__(self) -> str:
        return f"{self.kind}={self.value}"


class Key(NamedTuple):
    """A subject's key, and the id under which tokens name it."""

    id: bytes
    cipher: Cipher


class Shredded(Exception):
    """A key that was deleted."""


class Missing(Exception):
    """A key that is not there and was not deleted."""


@dataclass(frozen=True, slots=True)
class Status:
    """What is in a vault.

    :param vault: its id, which its tokens hold
    :param keys: how many subjects have a key
    :param shredded: how many keys were deleted
    :param clean: whether bytes of deleted keys are gone from the file; if not, a deletion was cut off
    """

    vault: str
    keys: int
    shredded: int
    clean: bool


class _Open:
    """What is known of the file as it was: the key that wraps, the root of names, and keys that were used."""

    def __init__(self, seen: tuple[Db, int], changes: int, wrapped: bytes, wrapping: Cipher, root: bytes) -> None:
        self.seen, self.changes = seen, changes
        self.wrapped, self.wrapping, self.root = wrapped, wrapping, root
        self.by_subject: dict[Subject, Key] = {}
        self.by_id: dict[bytes, Cipher] = {}


class Keys:
    """The keys of one vault; thread-safe."""

    def __init__(self, path: Path, master: Master, *, create: bool = False) -> None:
        self._master, self._local = master, threading.local()
        first = self._first() if create else None  # before there is a file: the master key may not be where it should
        self._file = VaultFile(path, create=create)
        if first:
            self._fill(first)
        with self._file.read() as db:
            row = db.execute("SELECT id FROM vault").fetchone()
        if row is None:
            raise self._file.trouble("missing", where=str(path))
        self.id: bytes = row[0]
        self._opened()

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    def close(self) -> None:
        """Close the file and forget the keys."""
        self._file.close()
        self._local = threading.local()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Look once whether another process has deleted or rotated keys, for all that this thread does in the block."""
        self._opened()
        local, before = self._local, getattr(self._local, "looked", False)
        local.looked = True
        try:
            yield
        finally:
            local.looked = before

    def of(self, subjects: Iterable[Subject]) -> dict[Subject, Key]:
        """The keys of subjects; made for those that have none, all of them in one transaction."""
        wanted = dict.fromkeys(subjects)
        known = self._opened()
        while missing := [each for each in wanted if each not in known.by_subject]:
            if len(known.by_subject) > _REMEMBERED:
                self._forget()
            elif self._read_or_make(known, missing):
                break
            else:
                self._forget()
            known = self._opened()
        return {each: known.by_subject[each] for each in wanted}

    def id_of(self, subject: Subject) -> bytes | None:
        """Under which id a subject has its key; None if it has none."""
        known = self._opened()
        if subject in known.by_subject:
            return known.by_subject[subject].id
        with self._file.read() as db:
            row = db.execute("SELECT id FROM keys WHERE subject = ?", (_hidden(known.root, subject),)).fetchone()
        return row[0] if row else None

    def cipher(self, key: bytes) -> Cipher:
        """The key with an id; Shredded if it was deleted, Missing if it never was here."""
        known = self._opened()
        if key not in known.by_id:
            with self._file.read() as db:
                row = db.execute("SELECT wrapped FROM keys WHERE id = ?", (key,)).fetchone()
                gone = row is None and db.execute("SELECT 1 FROM shredded WHERE id = ?", (key,)).fetchone()
            if row is None:
                raise Shredded if gone else Missing
            if len(known.by_id) > _REMEMBERED:
                known.by_id.clear()
            known.by_id[key] = Cipher(self._unwrapped(known.wrapping, row[0], key))
        return known.by_id[key]

    def root(self, use: str) -> bytes:
        """A secret of the vault for one use; it outlives rotations."""
        return hmac.digest(self._opened().root, use.encode(), "sha256")

    def shred(self, subjects: Iterable[Subject]) -> int:
        """Delete the keys of subjects, and their bytes from the file; how many there were. Cut off, it is to be done again."""
        known, now, gone = self._opened(), time.time_ns() // 1_000_000, 0
        with self._file.write() as db:
            for each in subjects:
                for (key,) in db.execute(
                    "DELETE FROM keys WHERE subject = ? RETURNING id", (_hidden(known.root, each),)
                ).fetchall():
                    db.execute("INSERT INTO shredded VALUES (?, ?)", (key, now))
                    gone += 1
            db.execute("UPDATE vault SET changes = changes + 1")
        self._forget()
        failpoint("vault.before_scrub")
        self._file.scrub()
        return gone

    def rotate(self, master: Master) -> int:
        """Wrap every key anew, under a new key that another master key wraps, in one transaction; how many there are."""
        known = self._opened()
        fresh = secrets.token_bytes(KEY)
        wrapping, wrapped = Cipher(fresh), master.wrap(fresh, self.id.hex())
        with self._file.write() as db:
            if not self._is_current(db, known):
                raise VaultError(
                    f"{self.path}: another process has rotated the master key meanwhile",
                    hint="look which one is right, and rotate again",
                )
            rows = db.execute("SELECT id, wrapped FROM keys").fetchall()
            for done, (key, box) in enumerate(rows):
                if done == len(rows) // 2:
                    failpoint("vault.rotating")
                again = wrapping.box(self._unwrapped(known.wrapping, box, key), self._bound(key))
                db.execute("UPDATE keys SET wrapped = ? WHERE id = ?", (again, key))
            (box,) = db.execute("SELECT root FROM vault").fetchone()
            root = wrapping.box(self._unwrapped(known.wrapping, box, b"root"), self._bound(b"root"))
            now = time.time_ns() // 1_000_000
            db.execute(
                "UPDATE vault SET wrapping = ?, root = ?, rotated = ?, changes = changes + 1", (wrapped, root, now)
            )
        self._master = master
        self._forget()
        failpoint("vault.before_scrub")
        self._file.scrub()
        return len(rows)

    def status(self) -> Status:
        """What is in it."""
        with self._file.read() as db:
            (keys,) = db.execute("SELECT count(*) FROM keys").fetchone()
            (shredded,) = db.execute("SELECT count(*) FROM shredded").fetchone()
            (clean,) = db.execute("SELECT changes = scrubbed FROM vault").fetchone()
        return Status(self.id.hex(), keys, shredded, bool(clean))

    def _first(self) -> tuple[bytes, bytes, bytes]:
        """What a new vault begins with: its id, the key that wraps, the root of names."""
        vault, fresh = secrets.token_bytes(VAULT_ID), secrets.token_bytes(KEY)
        root = Cipher(fresh).box(secrets.token_bytes(KEY), vault + b"root")
        return vault, self._master.wrap(fresh, vault.hex()), root

    def _fill(self, first: tuple[bytes, bytes, bytes]) -> None:
        """Make the first keys of a new file; VaultError if another vault is there."""
        with self._file.write() as db:
            if db.execute("SELECT 1 FROM vault").fetchone():
                raise VaultError(f"{self.path}: there is a vault already", hint="`millstream vault status`")
            db.execute("INSERT INTO vault VALUES (1, ?, ?, ?, NULL, 0, 0)", first)

    def _opened(self) -> _Open:
        """What this thread knows of the file, unless another connection has changed it since."""
        known: _Open | None = getattr(self._local, "known", None)
        if known is not None and getattr(self._local, "looked", False):
            return known
        with self._file.using():
            db = self._file.db
            seen = db, db.execute("PRAGMA data_version").fetchone()[0]  # a number that only this connection understands
        if known is not None and known.seen == seen:
            return known
        with self._file.read() as db:
            wrapped, root, changes = db.execute("SELECT wrapping, root, changes FROM vault").fetchone()
        if known is not None and known.changes == changes:  # keys were made, none deleted
            known.seen = seen
            return known
        try:
            wrapping = Cipher(self._master.unwrap(wrapped, self.id.hex()))
        except WrongBox:
            raise VaultError(
                f"{self.path}: the master key is not the one by which its keys are wrapped",
                hint="was it rotated? name the new one as master in [vault] of millstream.toml",
            ) from None
        known = self._local.known = _Open(seen, changes, wrapped, wrapping, self._unwrapped(wrapping, root, b"root"))
        return known

    def _read_or_make(self, known: _Open, subjects: list[Subject]) -> bool:
        """Fill in the keys of subjects; False, and nothing made, if the keys were rotated meanwhile."""
        names = {_hidden(known.root, each): each for each in subjects}
        found: dict[bytes, tuple[bytes, bytes]] = {}
        with self._file.read() as db:
            for name in names:
                if row := db.execute("SELECT id, wrapped FROM keys WHERE subject = ?", (name,)).fetchone():
                    found[name] = row
        if len(found) < len(names):
            with self._file.write() as db:
                if not self._is_current(db, known):
                    return False
                for name in names.keys() - found.keys():
                    key = secrets.token_bytes(ID)
                    box = known.wrapping.box(secrets.token_bytes(KEY), self._bound(key))
                    db.execute("INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT (subject) DO NOTHING", (key, name, box))
                    found[name] = db.execute("SELECT id, wrapped FROM keys WHERE subject = ?", (name,)).fetchone()
        for name, (key, box) in found.items():
            cipher = known.by_id[key] = Cipher(self._unwrapped(known.wrapping, box, key))
            known.by_subject[names[name]] = Key(key, cipher)
        return True

    def _is_current(self, db: Db, known: _Open) -> bool:
        """Whether keys are still wrapped as they were."""
        return bool(db.execute("SELECT wrapping FROM vault").fetchone()[0] == known.wrapped)

    def _bound(self, key: bytes) -> bytes:
        return self.id + key

    def _unwrapped(self, wrapping: Cipher, box: bytes, key: bytes) -> bytes:
        try:
            return wrapping.open(box, self._bound(key))
        except WrongBox:
            raise VaultError(
                f"{self.path}: a key in it is not what was written",
                hint="put the newest backup of the vault in its place",
            ) from None

    def _forget(self) -> None:
        self._local = threading.local()


def _hidden(root: bytes, subject: Subject) -> bytes:
    """What stands for a subject in the file."""
    return hmac.digest(root, f"subject\0{subject.kind}\0{subject.value}".encode(), "sha256")
