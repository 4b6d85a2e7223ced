"""``millstream vault``, and sealing and revealing by commands."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream import Vault
from millstream.cli import execute

Run = Callable[..., Any]
SETTINGS = """
[vault]
master = "${file:master.key}"

[vault.topics.orders]
subject = {user = "user_id"}
personal = ["email", "name"]
pseudonyms = ["email"]
"""
ORDERS = [
    {"user_id": 7, "email": "ann-canary@example.com", "name": "Ann Canary", "amount": 5},
    {"user_id": 8, "email": "bob-canary@example.com", "amount": 6},
]
TEXT = "".join(json.dumps(each) + "\n" for each in ORDERS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [each for each in os.environ if each.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(variable)
    (tmp_path / "millstream.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def go(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; give (exit code, stdout, stderr). No master key is ever printed."""

    def go(*arguments: str, text: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code = execute(list(arguments))
        captured = capsys.readouterr()
        for key in Path().glob("*.key"):
            assert key.read_text().strip() not in captured.out + captured.err
        return code, captured.out, captured.err

    return go


@pytest.fixture
def ready(go: Run) -> Run:
    """A vault and a topic with sealed orders."""
    assert go("vault", "init", "--make-master")[0] == 0
    assert go("topics", "create", "orders")[0] == 0
    code, out, err = go("produce", "orders", "--key-field", "user_id", "--json", text=TEXT)
    assert (code, json.loads(out)["records"]) == (0, 2), err
    return go


def consumed(go: Run, *options: str) -> list[dict[str, Any]]:
    code, out, err = go("consume", "orders", "--json", *options)
    assert code == 0, err
    return [json.loads(line)["value"] for line in out.splitlines()]


def test_what_is_declared_is_sealed_without_being_asked_and_revealed_on_demand(ready: Run, folder: Path) -> None:
    sealed = consumed(ready)
    assert all(each["email"].startswith("sealed:1:") for each in sealed)
    assert [each["amount"] for each in sealed] == [5, 6]
    shown = consumed(ready, "--reveal")
    assert [{name: each[name] for name in order} for each, order in zip(shown, ORDERS, strict=True)] == ORDERS
    assert shown[0]["email_pseudonym"] == sealed[0]["email_pseudonym"]
    assert "ann-canary@example.com" in ready("consume", "orders", "--reveal")[1]
    files = [each for each in folder.iterdir() if each.name.startswith(("millstream.db", "vault.db"))]
    assert len(files) >= 2
    assert not any(b"canary" in each.read_bytes().lower() for each in files)


def test_a_shredded_subject_is_erased_and_others_are_not(ready: Run) -> None:
    code, _, err = ready("vault", "shred", "--subject", "user=7")
    assert (code, "Nothing was changed; add --yes" in err) == (2, True)
    code, out, _ = ready("vault", "shred", "--subject", "user=7", "--yes", "--json")
    assert (code, json.loads(out)) == (0, {"subjects": 1, "shredded": 1})
    assert [each["email"] for each in consumed(ready, "--reveal")] == ["erased", "bob-canary@example.com"]
    (row,) = [json.loads(ready("vault", "status", "--json")[1])]
    assert (row["keys"], row["shredded"], row["clean"]) == (1, 1, True)
    assert "there was none" in ready("vault", "shred", "--subject", "user=7", "--yes")[2]
    assert ready("vault", "shred", "--subject", "user", "--yes")[0] == 2


def test_a_rotation_is_done_once_and_the_settings_follow(ready: Run, folder: Path) -> None:
    code, _, err = ready("vault", "rotate", "${file:new.key}", "--make-master")
    assert (code, "wrapped 2 keys anew" in err) == (0, True), err
    code, _, err = ready("consume", "orders", "--reveal")
    assert (code, "was it rotated?" in err) == (1, True)
    code, out, _ = ready("vault", "rotate", "${file:new.key}", "--json")  # cut off behind its end, say
    assert (code, json.loads(out)) == (0, {"rotated": 2, "master": "${file:new.key}"})
    (folder / "millstream.toml").write_text(SETTINGS.replace("master.key", "new.key"))
    assert consumed(ready, "--reveal")[1]["email"] == "bob-canary@example.com"


def test_a_master_key_that_is_written_out_is_refused_and_not_repeated(ready: Run, folder: Path) -> None:
    key = (folder / "master.key").read_text().strip()
    code, _, err = ready("--debug", "vault", "rotate", key)  # `ready` looks whether it is printed
    assert (code, "must not stand in the settings" in err) == (2, True)
    (folder / "millstream.toml").write_text(SETTINGS.replace("${file:master.key}", key))
    for command in (["vault", "status"], ["consume", "orders"], ["topics", "list"]):
        code, _, err = ready("--debug", *command)
        assert (code, "which is not repeated here" in err) == (2, True)
    assert ready("vault", "rotate", "kms:no_such_module:turn")[0] == 2


def test_a_vault_that_is_there_is_not_made_again(ready: Run) -> None:
    code, _, err = ready("vault", "init")
    assert (code, "there is a vault already" in err) == (1, True)
    code, _, err = ready("vault", "init", "--make-master")
    assert (code, "cannot be made there" in err) == (1, True)


def test_what_cannot_be_sealed_stops_before_its_line(ready: Run) -> None:
    bad = json.dumps({"email": "eve-canary@example.com"}) + "\n"
    code, _, err = ready("produce", "orders", text=TEXT + bad)
    assert (code, "line 3: sealed topic orders" in err, "canary" in err) == (1, True, False)
    assert len(consumed(ready)) == 4
    code, out, _ = ready("produce", "orders", "--skip-bad", "--json", text=bad + TEXT + "not JSON\n")
    assert (code, json.loads(out)["records"], json.loads(out)["skipped"]) == (0, 2, 2)


def test_the_keys_of_a_files_lines_are_made_in_few_commits(ready: Run, folder: Path) -> None:
    lines = [json.dumps({"user_id": each, "email": f"{each}@example.com"}) for each in range(2500)]
    (folder / "many.jsonl").write_text("\n".join([*lines[:1200], "not JSON", '{"email": "x"}', *lines[1200:]]))
    with Vault("sqlite:vault.db", master="${file:master.key}") as vault:  # while it is open, its log of commits stays
        code, out, _ = ready("produce", "orders", "--skip-bad", "--json", "--file", "many.jsonl")
        assert (code, json.loads(out)["records"], json.loads(out)["skipped"]) == (0, 2500, 2)
        assert vault.status().keys == 2500
        assert (folder / "vault.db-wal").stat().st_size < 4 << 20  # one commit a key would be 16 MB and more
    assert consumed(ready, "--reveal", "--from", "2", "--max", "3")[2]["email"] == "2@example.com"


def test_a_personal_field_is_a_key_only_by_its_pseudonym(ready: Run) -> None:
    assert ready("produce", "orders", "--key-field", "email", text=TEXT)[0] == 0
    rows = [json.loads(line) for line in ready("consume", "orders", "--from", "2", "--json")[1].splitlines()]
    assert [each["key"] for each in rows] == [each["value"]["email_pseudonym"] for each in rows]
    code, _, err = ready("produce", "orders", "--key-field", "name", text=TEXT)
    assert (code, "name is personal and has no pseudonym" in err) == (2, True)
    code, _, err = ready("produce", "orders", "--time-field", "name", text=TEXT)
    assert (code, "name is personal, and a record's time is not sealed" in err) == (2, True)
    again = json.dumps({"user_id": 9, "login": "eve-canary", "name": "eve-canary"})
    code, _, err = ready("produce", "orders", "--key-field", "login", text=again)
    assert (code, "the record's key is what its field name seals" in err, "canary" in err) == (1, True, False)


def test_a_word_for_or_against_sealing(ready: Run) -> None:
    ready("topics", "create", "clicks")
    code, _, err = ready("produce", "clicks", "--seal", text="{}\n")
    assert (code, "do not say what is personal in topic clicks" in err) == (2, True)
    assert ready("produce", "clicks", text='{"email": "plain"}\n')[0] == 0
    assert ready("produce", "orders", "--no-seal", text='{"email": "plain"}\n')[0] == 0
    assert consumed(ready)[-1] == {"email": "plain"}
    assert ready("produce", "orders", "--format", "text", text="x\n")[0] == 2


def test_without_a_master_key_nothing_is_produced_in_plain_text(go: Run, folder: Path) -> None:
    go("topics", "create", "orders")
    code, _, err = go("produce", "orders", text=TEXT)
    assert (code, "there is no vault" in err) == (1, True), err
    code, _, err = go("vault", "init")
    assert (code, "no such file" in err) == (2, True)
    assert not (folder / "vault.db").exists()
    (folder / "millstream.toml").write_text(SETTINGS.replace('master = "${file:master.key}"', ""))
    code, _, err = go("produce", "orders", text=TEXT)
    assert (code, "do not say where the master key is" in err) == (2, True)
    assert consumed(go) == []


PIPELINE = """
from millstream import Pipeline

shop = Pipeline("shop")
orders = shop.stream("orders", "user_id long, email sealed, name sealed, email_pseudonym string, amount double")
shop.view("customers", orders.group_by("email_pseudonym").agg(who="max_by(email, amount)", total="sum(amount)"))
"""


def test_no_command_shows_the_master_key(ready: Run, folder: Path) -> None:
    (folder / "shop.py").write_text(PIPELINE)
    for arguments in (["explain", "shop.py"], ["explain", "shop.py", "--json"], ["plan", "shop.py"]):
        code, out, _ = ready("--debug", *arguments)
        assert (code, bool(out)) == (0, True)
    ready("--debug", "vault", "rotate", "${env:NOT_THERE}")
    wrong = (folder / "master.key").read_text().strip()[:-4]
    (folder / "short.key").write_text(wrong)
    (folder / "millstream.toml").write_text(SETTINGS.replace("master.key", "short.key"))
    code, out, err = ready("--debug", "vault", "status")
    assert (code, "32 bytes as base64 or hex" in err, wrong in out + err) == (1, True, False)
