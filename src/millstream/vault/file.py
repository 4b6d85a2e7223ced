"""The SQLite file of a vault: its tables, what its troubles are called, and deleting so that the bytes are gone.

Invariants: nothing in it is readable without the master key but ids, times and counts; a subject stands there as an HMAC. What was
deleted is overwritten in place, and the file and its write-ahead log are written anew behind it.
"""

from __future__ import annotations

from pathlib import Path

from millstream.database import Database, Db, Form, Words
from millstream.errors import NotAVault, VaultError

_SCHEMA = """
CREATE TABLE vault (
    one INTEGER PRIMARY KEY CHECK (one = 1), id BLOB NOT NULL, wrapping BLOB NOT NULL, root BLOB NOT NULL, rotated INTEGER,
    changes INTEGER NOT NULL, scrubbed INTEGER NOT NULL
) STRICT;
CREATE TABLE keys (id BLOB PRIMARY KEY, subject BLOB NOT NULL UNIQUE, wrapped BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE shredded (id BLOB PRIMARY KEY, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""

FORM = Form(
    "vault",
    0x4D494C4B,  # "MILK"
    1,
    _SCHEMA,
    {
        "missing": Words(VaultError, "{where}: there is no vault", "`millstream vault init` makes one"),
        "closed": Words(VaultError, "{where}: the vault is closed{why}", "open it again"),
        "full": Words(VaultError, "{where}: no room on the disk; no key was made or deleted", "free some space"),
        "refused": Words(VaultError, "{where}: {why}; nothing was written"),
        "large": Words(VaultError, "{where}: more than SQLite can hold in one value ({why})"),
        "corrupt": Words(
            VaultError,
            "{where}: the stored bytes are not what was written ({why}); nothing was changed",
            "put the newest backup of the vault in its place",
        ),
        "failed": Words(VaultError, "{where}: {why}; whether the last change was kept is unknown", "check the disk and try again"),
        "busy": Words(VaultError, "{where}: locked by another process for {why}", "look for a process that holds it, and try again"),
        "shut": Words(VaultError, "{where}: the vault cannot be opened: {why}", "check the permissions of the file"),
        "read-only": Words(VaultError, "{where}: the vault cannot be written: {why}", "check the permissions of its folder"),
        "unmade": Words(VaultError, "{where}: no vault can be made there: {why}", "check that the folder is there"),
        "no database": Words(NotAVault, "{where} is not a vault, nor a file of SQLite", "name another path"),
        "foreign": Words(NotAVault, "{where} is a SQLite database of something else", "name another path"),
        "newer": Words(NotAVault, "{where} {why}", "pip install --upgrade millstream"),
    },
)  # fmt: skip


class VaultFile(Database):
    """The file of a vault."""

    def __init__(self, path: Path, *, create: bool) -> None:
        super().__init__(path, FORM, create=create)

    def connect(self) -> Db:
        """A new connection; what it deletes is overwritten, and what it sorts is kept in memory."""
        db = super().connect()
        with self.errors():
            db.execute("PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY").fetchall()
        return db

    def scrub(self) -> None:
        """Write the file anew without what was deleted, and empty its write-ahead log; VaultError while another process reads."""
        with self.using():
            (changes,) = self.db.execute("SELECT changes FROM vault").fetchone()
            self.db.execute("VACUUM").fetchall()
            busy, *_ = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise self.trouble("busy", "30 s")
        with self.write() as db:
            db.execute("UPDATE vault SET scrubbed = max(scrubbed, ?)", (changes,))  # not of one that came meanwhile
