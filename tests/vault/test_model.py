"""A vault against a model: whatever is sealed, deleted, rotated and opened again, in whatever order, by two processes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream import Vault
from millstream.vault.master import Master
from millstream.vault.topic import TopicSeal

users = st.integers(0, 3)
values = st.text("aé\0", max_size=3) | st.integers(0, 3)


class VaultMachine(RuleBasedStateMachine):
    """Two handles of one file take turns; the model is a list of what was sealed and whether its key was deleted since."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.number = 0
        self.master = self.new_master()
        self.handles = [Vault(self.keys, master=self.master, create=True), Vault(self.keys, master=self.master)]
        self.sealed: list[tuple[str, int, Any]] = []
        self.gone: set[str] = set()
        self.names: dict[Any, str] = {}

    def teardown(self) -> None:
        for each in getattr(self, "handles", []):
            each.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def keys(self) -> str:
        return f"sqlite:{self.folder / 'vault.db'}"

    def new_master(self) -> str:
        self.number += 1
        said = f"${{file:{self.folder / f'{self.number}.key'}}}"
        Master(said).make()
        return said

    def seal(self, at: int) -> TopicSeal:
        return self.handles[at].sealing("t", subject={"user": "id"}, personal=["v"], pseudonyms=["v"])

    @rule(at=st.integers(0, 1), user=users, value=values)
    def write(self, at: int, user: int, value: Any) -> None:
        made = self.seal(at).value({"id": user, "v": value})
        self.sealed.append((made["v"], user, value))
        assert self.names.setdefault(value, made["v_pseudonym"]) == made["v_pseudonym"]

    @rule(at=st.integers(0, 1), user=users)
    def shred(self, at: int, user: int) -> None:
        lives = any(whose == user and token not in self.gone for token, whose, _ in self.sealed)
        assert self.handles[at].shred(user=user) == int(lives)
        self.gone |= {token for token, whose, _ in self.sealed if whose == user}

    @rule(at=st.integers(0, 1))
    def rotate(self, at: int) -> None:
        self.master = self.new_master()
        self.handles[at].rotate(self.master)
        self.reopen(1 - at)

    @rule(at=st.integers(0, 1))
    def reopen(self, at: int) -> None:
        self.handles[at].close()
        self.handles[at] = Vault(self.keys, master=self.master)

    @invariant()
    def everyone_reads_what_was_sealed_and_not_deleted(self) -> None:
        for token, _, value in getattr(self, "sealed", []):
            for each in self.handles:
                assert each.reveal(token) == ("erased" if token in self.gone else value)

    @invariant()
    def pseudonyms_tell_values_apart(self) -> None:
        names = getattr(self, "names", {})
        assert len(set(names.values())) == len(names)


VaultMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestVault = VaultMachine.TestCase
