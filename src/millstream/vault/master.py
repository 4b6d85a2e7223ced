"""The master key: where it is, as text, and what it does, which is to wrap one key of the vault and nothing else.

Invariant: a master key is read when it is used, and neither kept nor printed; no error says what was read. It is a file's or an environment
variable's text, 32 bytes as base64 or hex, or it never leaves a key management service, which a Python function asks: ``kms:MODULE:NAME``.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal, TypeAlias

from millstream.errors import ConfigError, VaultError
from millstream.secret import REFERENCE, is_reference, resolve
from millstream.vault.cipher import KEY, Cipher, WrongBox

Operation: TypeAlias = Literal["wrap", "unwrap"]
Hook: TypeAlias = Callable[[Operation, bytes, str], bytes]
"""Asks a key management service: what to do, with which bytes, for which vault."""

_KMS = re.compile(r"kms:([A-Za-z_][\w.]*):([A-Za-z_]\w*)")
_EXPECTED = "${env:NAME}, ${file:PATH} or kms:MODULE:FUNCTION"


def check_master(said: str, what: str = "vault.master") -> None:
    """Refuse text that does not say where a master key is; what it is instead is not repeated, for it may be the key itself.

    >>> check_master("${env:SHOP_MASTER_KEY}")
    """
    if not (_KMS.fullmatch(said) or is_reference(said)):
        raise ConfigError(
            f"{what}: expected where the master key is, {_EXPECTED}; found something else" if said else
            f"{what}: expected where the master key is, {_EXPECTED}; found nothing",
            hint='master = "${file:master.key}"; a master key must not stand in the settings',
        )  # fmt: skip


class Master:
    """What wraps the keys of a vault. The text or function that it is made of says where the key is.

    >>> Master("${file:master.key}")
    Master('${file:master.key}')
    """

    def __init__(self, said: str | Hook) -> None:
        if isinstance(said, str):
            check_master(said)
        self._said = said

    def wrap(self, plain: bytes, vault: str) -> bytes:
        """Give bytes that only this master key turns back."""
        hook = self._hook()
        return self._ask(hook, "wrap", plain, vault) if hook else self._cipher().box(plain, vault.encode())

    def unwrap(self, wrapped: bytes, vault: str) -> bytes:
        """Give what was wrapped; WrongBox if by another master key."""
        hook = self._hook()
        return self._ask(hook, "unwrap", wrapped, vault) if hook else self._cipher().open(wrapped, vault.encode())

    def make(self) -> Path:
        """Make the file that it says, with a new key that only its owner may read; never in the place of another file."""
        found = REFERENCE.fullmatch(self._said.strip()) if isinstance(self._said, str) else None
        if found is None or found[1] != "file":
            raise ConfigError(
                "a new master key goes into a file: expected ${file:PATH}", hint='master = "${file:master.key}"'
            )
        path = Path(found[2])
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise VaultError(
                f"{path}: a master key cannot be made there: {error.strerror}",
                hint="use the one that is there, or name another file",
            ) from error
        with os.fdopen(file, "wb") as out:
            out.write(base64.b64encode(secrets.token_bytes(KEY)) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        return path

    def __repr__(self) -> str:
        return f"Master({self._said if callable(self._said) else str(self._said)!r})"

    def _cipher(self) -> Cipher:
        said = str(self._said).strip()
        text = resolve(said)
        for read in (_from_hex, _from_base64):
            if (key := read(text.strip())) is not None and len(key) == KEY:
                return Cipher(key)
        raise VaultError(
            f"{said}: expected a master key of {KEY} bytes as base64 or hex; found {len(text)} characters of something else",
            hint="`openssl rand -base64 32` makes one",
        )

    def _hook(self) -> Hook | None:
        if callable(self._said):
            return self._said
        found = _KMS.fullmatch(self._said)
        if found is None:
            return None
        try:
            hook = getattr(import_module(found[1]), found[2])
        except (ImportError, AttributeError) as error:
            raise VaultError(
                f"vault.master: there is no {found[2]} in {found[1]}: {type(error).__name__}",
                hint="kms:MODULE:FUNCTION names a function of a module that Python finds",
            ) from error
        return hook  # type: ignore[no-any-return]

    def _ask(self, hook: Hook, operation: Operation, data: bytes, vault: str) -> bytes:
        try:
            answer = hook(operation, data, vault)
        except WrongBox:
            raise
        except Exception as error:  # whatever a client of a service raises; its text may hold what was sent
            raise VaultError(
                f"vault.master: the key management service failed to {operation} a key: {type(error).__name__}",
                hint="--debug shows what it said",
            ) from error
        if not isinstance(answer, bytes) or (operation == "unwrap" and len(answer) != KEY):
            raise VaultError(f"vault.master: expected bytes of a key from {operation}; found something else")
        return answer


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return None


def _from_hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None
