"""A vault of its own for each test, and its master key."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import Vault
from millstream.vault.master import Master
from millstream.vault.topic import TopicSeal


def new_master(path: Path) -> str:
    """Make a file with a master key, and say where it is."""
    Master(f"${{file:{path}}}").make()
    return f"${{file:{path}}}"


@pytest.fixture
def master(tmp_path: Path) -> str:
    """Where a master key is."""
    (tmp_path / "master.key").write_text(base64.b64encode(secrets.token_bytes(32)).decode() + "\n")
    return f"${{file:{tmp_path / 'master.key'}}}"


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """The address of a vault."""
    return f"sqlite:{tmp_path / 'vault.db'}"


@pytest.fixture
def vault(keys: str, master: str) -> Iterator[Vault]:
    with Vault(keys, master=master, create=True) as vault:
        yield vault


@pytest.fixture
def orders(vault: Vault) -> TopicSeal:
    """What seals the topic ``orders``."""
    return vault.sealing("orders", subject={"user": "user_id"}, personal=["email", "name"], pseudonyms=["email"])
