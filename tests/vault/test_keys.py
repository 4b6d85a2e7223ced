"""Keys: wrapped by a master key, rotated in one piece, gone when they are deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from millstream import Vault
from millstream.errors import NotAVault, SealBroken, VaultError
from millstream.failpoint import armed
from millstream.vault.keys import Keys, Subject
from millstream.vault.master import Master
from millstream.vault.topic import TopicSeal
from millstream.vault.vault import rotated
from tests.vault.conftest import new_master

ANN = {"user_id": 7, "email": "ann@example.com", "name": "Ann"}


def bytes_of(vault: Path) -> bytes:
    """Everything that the file of a vault has on disk."""
    return b"".join(each.read_bytes() for each in sorted(vault.parent.glob(f"{vault.name}*")))


def wrapped(vault: Path) -> dict[bytes, bytes]:
    """Key ids and wrapped keys, read past the vault."""
    db: Any = apsw.Connection(str(vault), vfs="cksmvfs")
    try:
        rows: list[tuple[bytes, bytes]] = db.execute("SELECT id, wrapped FROM keys").fetchall()
        return dict(rows)
    finally:
        db.close()


def test_a_vault_is_made_once_and_not_by_reading(keys: str, master: str, vault: Vault) -> None:
    with pytest.raises(VaultError, match="there is a vault already"):
        Vault(keys, master=master, create=True)
    with pytest.raises(VaultError, match="there is no vault"):
        Vault(f"{keys}.not", master=master)


def test_a_file_of_something_else_is_left_alone(master: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("not a vault, and longer than the header of a file of SQLite would be" * 3)
    db = apsw.Connection(str(tmp_path / "other.db"))
    db.execute("CREATE TABLE t (a)").fetchall()
    db.close()
    for name in ("note.txt", "other.db"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(NotAVault):
            Vault(f"sqlite:{tmp_path / name}", master=master, create=True)
        assert (tmp_path / name).read_bytes() == before


def test_keys_are_there_after_a_restart(orders: TopicSeal, keys: str, master: str) -> None:
    token = orders.value(ANN)["email"]
    with Vault(keys, master=master) as again:
        assert again.reveal(token) == "ann@example.com"
        assert again.status().keys == 1


def test_the_file_names_nobody(vault: Vault, orders: TopicSeal) -> None:
    orders.value({**ANN, "user_id": "ann-canary-4711"})
    assert vault.path.stat().st_mode & 0o777 == 0o600
    assert b"ann-canary-4711" not in bytes_of(vault.path)


def test_a_deleted_key_is_gone_from_the_file(vault: Vault, orders: TopicSeal) -> None:
    for user in range(50):
        orders.value({**ANN, "user_id": user})
    before = wrapped(vault.path)
    assert len(before) == 50
    assert all(box in bytes_of(vault.path) for box in before.values())
    assert vault.shred(user=7) == 1
    after = wrapped(vault.path)
    (gone,) = before.keys() - after.keys()
    left = bytes_of(vault.path)
    assert before[gone] not in left
    assert before[gone][:16] not in left
    assert all(box in left for box in after.values())
    assert vault.status().clean
    assert vault.shred(user=7) == 0


def test_bytes_that_were_left_behind_before_go_too(vault: Vault, orders: TopicSeal) -> None:
    for user in range(50):
        orders.value({**ANN, "user_id": user})
    before, db = wrapped(vault.path), apsw.Connection(str(vault.path), vfs="cksmvfs")
    gone = min(before)
    db.execute("PRAGMA secure_delete=OFF; DELETE FROM keys WHERE id = ?", (gone,)).fetchall()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    assert before[gone] in bytes_of(vault.path)
    vault.shred(user="nobody")
    assert before[gone] not in bytes_of(vault.path)


def test_what_was_sealed_for_a_deleted_key_is_erased_for_everyone(
    vault: Vault, orders: TopicSeal, keys: str, master: str
) -> None:
    ann, bob = orders.value(ANN), orders.value({**ANN, "user_id": 8, "email": "bob@example.com"})
    with Vault(keys, master=master) as other:  # another process, as far as its file can tell
        assert other.reveal(ann["email"]) == "ann@example.com"
        vault.shred(user="7")
        assert other.reveal(ann["email"]) == "erased"
        assert other.reveal(bob["email"]) == "bob@example.com"
    assert vault.reveal(ann["email"]) == "erased"
    assert orders.reveal(ann) == {**ann, "email": "erased", "name": "erased"}


def test_many_subjects_are_deleted_at_once(vault: Vault, orders: TopicSeal) -> None:
    tokens = [orders.value({**ANN, "user_id": user})["email"] for user in range(10)]
    assert vault.shred(("user", 1), ("user", "2"), ("team", 3), user=4) == 3
    gone = [at for at, each in enumerate(tokens) if vault.reveal(each) == "erased"]
    assert gone == [1, 2, 4]


def test_who_comes_back_has_a_new_key(vault: Vault, orders: TopicSeal) -> None:
    before = orders.value(ANN)["email"]
    vault.shred(user=7)
    after = orders.value(ANN)["email"]
    assert (vault.reveal(before), vault.reveal(after)) == ("erased", "ann@example.com")


def test_a_key_from_after_the_backup_is_lost_and_not_erased(
    orders: TopicSeal, vault: Vault, master: str, tmp_path: Path
) -> None:
    db = apsw.Connection(str(vault.path), vfs="cksmvfs")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    (tmp_path / "backup.db").write_bytes(vault.path.read_bytes())
    token = orders.value(ANN)["email"]
    with (
        Vault(f"sqlite:{tmp_path}/backup.db", master=master) as restored,
        pytest.raises(SealBroken, match="not in the vault, and was not deleted"),
    ):
        restored.reveal(token)


def test_after_a_rotation_only_the_new_master_key_opens(
    vault: Vault, orders: TopicSeal, keys: str, master: str, tmp_path: Path
) -> None:
    records = [orders.value({**ANN, "user_id": user}) for user in range(30)]
    name = vault.pseudonym("email", "ann@example.com")
    before, after = wrapped(vault.path), new_master(tmp_path / "new.key")
    assert vault.rotate(after) == 30
    assert vault.reveal(records[3]["email"]) == "ann@example.com"
    assert orders.value(ANN)["email_pseudonym"] == name == records[3]["email_pseudonym"]
    with pytest.raises(VaultError, match="was it rotated"):
        Vault(keys, master=master)
    with Vault(keys, master=after) as again:
        assert [again.reveal(each["email"]) for each in records] == ["ann@example.com"] * 30
    left = bytes_of(vault.path)
    assert before.keys() == wrapped(vault.path).keys()
    assert not any(box in left for box in before.values())


def test_a_process_that_has_the_old_master_key_seals_nothing_more(
    vault: Vault, orders: TopicSeal, keys: str, tmp_path: Path
) -> None:
    orders.value(ANN)
    with Vault(keys, master=f"${{file:{tmp_path / 'master.key'}}}") as other:
        other.rotate(new_master(tmp_path / "new.key"))
    for user in (7, 8):
        with pytest.raises(VaultError, match="was it rotated"):
            orders.value({**ANN, "user_id": user})
    assert vault.status().keys == 1


def test_a_key_that_is_made_during_a_rotation_is_wrapped_by_the_new_one(
    vault: Vault, keys: str, master: str, tmp_path: Path
) -> None:
    path, after = Path(keys.removeprefix("sqlite:")), new_master(tmp_path / "new.key")
    mine = Keys(path, Master(master))
    known = mine._opened()
    vault.rotate(after)
    assert not mine._read_or_make(known, [Subject("user", "7")])
    assert vault.status().keys == 0


CODE = """
import sys
from millstream.vault.vault import Vault, rotated
keys, before, after, what = sys.argv[1:]
if what == "rotate":
    rotated(keys, before, after)
else:
    with Vault(keys, master=before) as vault:
        vault.shred(user=7)
"""


def killed_at(place: str, *arguments: str) -> None:
    environ = {**os.environ, "MILLSTREAM_FAILPOINT": f"{place}:kill"}
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], env=environ, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("place", ["vault.rotating", "vault.before_commit", "vault.after_commit", "vault.before_scrub"])
def test_a_rotation_that_is_killed_goes_on(
    place: str, vault: Vault, orders: TopicSeal, keys: str, master: str, tmp_path: Path
) -> None:
    records = [orders.value({**ANN, "user_id": user}) for user in range(9)]
    vault.close()
    before, after = wrapped(vault.path), new_master(tmp_path / "new.key")
    killed_at(place, keys, master, after, "rotate")
    with Vault(
        keys, master=after if "scrub" in place or "after" in place else master
    ) as one:  # never something between
        assert [one.reveal(each["email"]) for each in records] == ["ann@example.com"] * 9
    assert rotated(keys, master, after) == 9
    with Vault(keys, master=after) as again:
        assert [again.reveal(each["email"]) for each in records] == ["ann@example.com"] * 9
        assert again.status().clean
    assert not any(box in bytes_of(vault.path) for box in before.values())


@pytest.mark.parametrize("place", ["vault.before_commit", "vault.after_commit", "vault.before_scrub"])
def test_a_deletion_that_is_killed_is_done_again(
    place: str, vault: Vault, orders: TopicSeal, keys: str, master: str
) -> None:
    token = orders.value(ANN)["email"]
    orders.value({**ANN, "user_id": 8})
    vault.close()
    before = wrapped(vault.path)
    killed_at(place, keys, master, master, "shred")
    with Vault(keys, master=master) as again:
        assert again.status().clean == (place == "vault.before_commit")
        again.shred(user=7)
        assert again.reveal(token) == "erased"
        assert again.status().clean
    (gone,) = before.keys() - wrapped(vault.path).keys()
    assert before[gone] not in bytes_of(vault.path)


def test_a_rotation_in_the_middle_of_a_batch_is_seen_before_a_key_is_made(
    vault: Vault, orders: TopicSeal, keys: str, master: str, tmp_path: Path
) -> None:
    orders.value(ANN)
    with vault._keys.at_once():
        with Vault(keys, master=master) as other:
            other.rotate(new_master(tmp_path / "new.key"))
        with pytest.raises(VaultError, match="was it rotated"):
            orders.value({**ANN, "user_id": 8})
    assert vault.status().keys == 1


def test_a_deletion_in_the_middle_of_a_batch_is_seen_by_the_next(
    vault: Vault, orders: TopicSeal, keys: str, master: str
) -> None:
    token = orders.value(ANN)["email"]
    with vault._keys.at_once():
        assert vault.reveal(token) == "ann@example.com"
        with Vault(keys, master=master) as other:
            other.shred(user=7)
        assert vault.reveal(token) == "ann@example.com"
    assert vault.reveal(token) == "erased"


def test_threads_that_need_one_key_make_one(vault: Vault, orders: TopicSeal) -> None:
    begin, made = threading.Barrier(8), list[str]()

    def work() -> None:
        begin.wait()
        made.append(orders.value(ANN)["email"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert vault.status().keys == 1
    assert [vault.reveal(each) for each in made] == ["ann@example.com"] * 8


def test_a_deletion_waits_for_nobody_who_only_seals(vault: Vault, orders: TopicSeal) -> None:
    """A process that reads while the file is written anew holds it up, and that is said."""
    orders.value(ANN)
    db = apsw.Connection(str(vault.path), vfs="cksmvfs")
    db.execute("BEGIN; SELECT count(*) FROM keys").fetchall()
    try:
        vault._keys._file.db.set_busy_timeout(50)
        with pytest.raises(VaultError, match="locked by another process"):
            vault.shred(user=7)
    finally:
        db.close()
    assert not vault.status().clean
    assert vault.shred(user=7) == 0
    assert vault.status().clean


def test_a_vault_does_not_travel_and_shows_no_key(vault: Vault, orders: TopicSeal, tmp_path: Path) -> None:
    import pickle

    text = (tmp_path / "master.key").read_text().strip()
    orders.value(ANN)
    for each in (vault, orders, vault._keys._opened().wrapping):
        assert text not in repr(each)
        with pytest.raises((VaultError, TypeError)):
            pickle.dumps(each)


def test_an_interrupted_commit_leaves_no_key_in_memory_that_is_not_on_disk(vault: Vault, orders: TopicSeal) -> None:
    with armed("vault.before_commit"), pytest.raises(RuntimeError):
        orders.value(ANN)
    assert vault.status().keys == 0
    token = orders.value(ANN)["email"]
    assert vault.status().keys == 1
    assert vault.reveal(token) == "ann@example.com"
