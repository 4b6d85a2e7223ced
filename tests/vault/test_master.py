"""The master key: where it may be, and that nobody is ever shown it."""

from __future__ import annotations

import base64
import secrets
import sys
from pathlib import Path

import pytest

from millstream import Vault, config
from millstream.errors import ConfigError, MachineError, VaultError
from millstream.vault.master import Master, Operation
from tests.vault.conftest import new_master

ANN = {"user_id": 7, "email": "ann@example.com", "name": "Ann"}


@pytest.mark.parametrize("form", ["base64", "url", "hex"])
def test_a_master_key_is_base64_or_hex(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = secrets.token_bytes(32)
    text = {"base64": base64.b64encode(key), "url": base64.urlsafe_b64encode(key), "hex": key.hex().encode()}[form]
    monkeypatch.setenv("SHOP_MASTER", f"{text.decode()}\n")
    with Vault(f"sqlite:{tmp_path}/v.db", master="${env:SHOP_MASTER}", create=True) as vault:
        assert vault.status().keys == 0


@pytest.mark.parametrize("text", ["", "secret-word", base64.b64encode(bytes(31)).decode(), "00" * 33])
def test_what_is_no_master_key_is_refused_and_not_repeated(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_MASTER", text)
    with pytest.raises(VaultError, match="32 bytes as base64 or hex") as caught:
        Vault(f"sqlite:{tmp_path}/v.db", master="${env:SHOP_MASTER}", create=True)
    assert not text or text not in str(caught.value)
    assert not (tmp_path / "v.db").exists()


def test_a_master_key_must_not_stand_where_it_is_named(tmp_path: Path) -> None:
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    with pytest.raises(ConfigError, match="where the master key is") as caught:
        Vault(f"sqlite:{tmp_path}/v.db", master=key, create=True)
    assert key not in str(caught.value)


def test_a_new_master_key_is_for_its_owner_and_replaces_none(tmp_path: Path) -> None:
    new_master(tmp_path / "m.key")
    assert (tmp_path / "m.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(VaultError, match="cannot be made"):
        new_master(tmp_path / "m.key")


def test_another_master_key_does_not_open_a_vault(vault: Vault, keys: str, tmp_path: Path) -> None:
    other = new_master(tmp_path / "other.key")
    with pytest.raises(VaultError, match="not the one by which its keys are wrapped"):
        Vault(keys, master=other)


def test_a_master_key_in_a_service_never_leaves_it(keys: str, tmp_path: Path) -> None:
    inside = Master(new_master(tmp_path / "inside.key"))
    asked: list[tuple[Operation, str]] = []

    def service(operation: Operation, data: bytes, vault: str) -> bytes:
        asked.append((operation, vault))
        return (inside.wrap if operation == "wrap" else inside.unwrap)(data, vault)

    with Vault(keys, master=service, create=True) as vault:
        seal = vault.sealing("orders", subject={"user": "user_id"}, personal=["email"])
        tokens = [seal.value({**ANN, "user_id": each})["email"] for each in range(20)]
        assert [vault.reveal(each) for each in tokens] == ["ann@example.com"] * 20
    assert [each for each, _ in asked] == ["wrap", "unwrap"]
    assert len({each for _, each in asked}) == 1


def test_a_service_is_named_by_reference(keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_kms.py").write_text(
        "def turn(operation, data, vault):\n    return bytes(255 - each for each in data)\n"
        "def fail(operation, data, vault):\n    raise OSError('canary-of-the-service')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Vault(keys, master="kms:shop_kms:turn", create=True) as vault:
        assert vault.status().keys == 0
    with pytest.raises(VaultError, match="failed to unwrap a key: OSError") as caught:
        Vault(keys, master="kms:shop_kms:fail")
    assert "canary" not in str(caught.value)
    with pytest.raises(VaultError, match="there is no absent in shop_kms"):
        Vault(keys, master="kms:shop_kms:absent")


@pytest.fixture
def canary(tmp_path: Path) -> tuple[str, Path]:
    path = tmp_path / "canary.key"
    new_master(path)
    return path.read_text().strip(), path


def test_settings_never_show_a_master_key(canary: tuple[str, Path], tmp_path: Path) -> None:
    text, path = canary
    (tmp_path / "right.toml").write_text(f'[vault]\nmaster = "${{file:{path}}}"\n')
    loaded = config.load(tmp_path / "right.toml", {})
    assert str(path) in repr(loaded)
    (tmp_path / "wrong.toml").write_text(f'[vault]\nmaster = "{text}"\n')
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "wrong.toml", {})
    wrong = config.Settings(vault=config.VaultSettings(master=text))
    assert "***" in repr(wrong)
    for shown in (repr(loaded), str(caught.value), repr(caught.value.__context__), repr(wrong), f"{wrong}"):
        assert text not in shown


def test_without_its_extra_it_says_what_to_install(
    keys: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MachineError, match="a vault needs cryptography") as caught:
        Vault(keys, master=master, create=True)
    assert "millstream[vault]" in caught.value.hint
    assert not (tmp_path / "vault.db").exists()
