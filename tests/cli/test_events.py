"""``millstream events`` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.cli import execute
from millstream.event import Event
from millstream.load import load_store
from millstream.log import open_log
from tests.sourcing.models import Deposit, Withdraw

Go = Callable[..., tuple[int, str, str]]
BANK = """
from millstream.sourcing import EventStore, StoreSettings
from tests.sourcing.models import ACCOUNT, SHOW
accounts = EventStore("sqlite:bank.db", "accounts", ACCOUNT, StoreSettings(snapshot_every=2))
"""


@pytest.fixture
def go(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Go:
    """Run a command line; give (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "bank.py").write_text(BANK)
    with load_store("bank.py") as store:
        store.execute("ann", Deposit(10), key="k1", who="till")
        store.execute("ann", Withdraw(2, times=2))

    def go(*arguments: str) -> tuple[int, str, str]:
        code = execute(["events", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return go


def test_history_is_shown_and_told(go: Go) -> None:
    code, out, _ = go("history", "bank.py", "ann")
    assert code == 0
    assert 'Withdrawn {"amount":2,"note":"1"}' in out
    assert out.splitlines()[0].split() == ["VERSION", "TIME", "EVENT", "COMMAND", "WHO", "KEY"]
    code, out, _ = go("history", "bank.py:accounts", "ann", "--max", "1", "--json")
    (row,) = json.loads(out)
    assert row.pop("time").startswith("20")
    assert (code, row) == (
        0,
        {"version": 1, "type": "Deposited", "event": {"amount": 10}, "command": "Deposit", "who": "till", "key": "k1"},
    )
    code, out, err = go("history", "bank.py", "nobody")
    assert (code, out, err) == (0, "", "no events of nobody\n")


def test_differences_are_shown_and_told(go: Go) -> None:
    code, out, _ = go("diff", "bank.py", "ann", "1", "3", "--json")
    assert code == 0
    assert json.loads(out)[0] == {"field": "balance", "before": 10, "after": 6}
    _, out, _ = go("diff", "bank.py", "ann", "1", "2")
    assert [line.split() for line in out.splitlines()] == [
        ["FIELD", "BEFORE", "AFTER"],
        ["balance", "10", "8"],
        ["notes[0]", "null", '"0"'],
    ]
    code, _, err = go("diff", "bank.py", "ann", "1", "9")
    assert code == 1
    assert "accounts ann has no version 9; it is at 3" in err


def test_the_check_leaves_with_one_when_something_is_wrong(go: Go, tmp_path: Path) -> None:
    assert go("check", "bank.py")[:2] == (0, "3 events of 1 aggregates read, 0 snapshots compared; no problems\n")
    with open_log(f"sqlite:{tmp_path}/bank.db") as log:
        log.append("accounts", [Event(b"{}", b"bob")] * 101)
    code, out, _ = go("check", "bank.py", "--json")
    assert (code, json.loads(out)["found"], len(json.loads(out)["problems"])) == (1, 202, 100)
    code, out, _ = go("check", "bank.py")
    assert code == 1
    assert "202 problems" in out
    assert "… and 102 more" in out


def test_a_file_without_a_store_or_with_two_is_refused(go: Go, tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n")
    (tmp_path / "two.py").write_text(BANK + 'shows = EventStore("sqlite:bank.db", "shows", SHOW)\n')
    for file, said in (
        ("none.py", "expected one event store; found none"),
        ("two.py", "expected one event store; found accounts, shows"),
        ("two.py:carts", "no event store carts; there are accounts, shows"),
        ("gone.py", "there is no such file"),
    ):
        code, _, err = go("check", file)
        assert code == 1
        assert said in " ".join(err.split())
    code, _, err = go("check", "two.py:shows")
    assert code == 1
    assert "no topic shows" in err
