"""What is a secret, where it may stand, and what may be printed: one answer for every door.

Invariant: settings and addresses hold no secret, only where to find one, ``${env:NAME}`` or ``${file:PATH}``. So what was accepted
may be printed and stored; a reference is resolved at the last moment, and what comes out is never printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from millstream.errors import ConfigError

REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
NAMES = (
    "password|passwd|passphrase|secret|jaas|private|token$|credentials?$|api[._-]?key|account[._-]key|ssl[._]key[._]pem"
    r"|(?:^|[._-])key$|keystore[._]key|(?:^|[._-])sas(?:[._-]|$)|service[._-]account[._-]json$|user[._-]?info$|authorization$"
)
"""Names of settings and options that hold secrets; Java reads it as Python does."""

_NAME = re.compile(NAMES, re.IGNORECASE)
_KIND = re.compile(r"[._-](?:location|path|file|type|provider|class|enabled?)$", re.IGNORECASE)
"""How names end that only sound so: they say where a secret is, or of which kind."""
_STRONG = re.compile("password|passphrase|secret|jaas", re.IGNORECASE)
_SAID = re.compile(r"([\w.-]+)\s*=\s*([^\s&;,]+)")
_WORD = re.compile(r"//[^/@\s]*?:([^/@\s]+)@")


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    >>> is_secret("sasl.password"), is_secret("fs.azure.account.key.shop.dfs.core.windows.net"), is_secret("ssl.key.location")
    (True, True, False)
    """
    return bool(_STRONG.search(name) or (_NAME.search(name) and not _KIND.search(name)))


def is_reference(value: str) -> bool:
    """Whether a value is nothing but a reference."""
    return REFERENCE.fullmatch(value.strip()) is not None


def check_setting(name: str, value: str, what: str = "the settings", write: str = "") -> None:
    """Refuse a secret that is written out: by the name of its setting, or by what its value says (``-Dpassword=…``, ``//me:…@``)."""
    plain = REFERENCE.sub("${}", value)
    inside = any(is_secret(said) and found.strip("\"'") != "${}" for said, found in _SAID.findall(plain))
    known = any(found != "${}" for found in _WORD.findall(plain))
    if (is_secret(name) and not is_reference(value)) or inside or known:
        raise ConfigError(
            f"{name}: a secret must not stand in {what}",
            hint=f'write {write or name} = "${{env:NAME}}" or "${{file:PATH}}"',
        )


def check_settings(settings: Mapping[str, str], before: str = "", what: str = "the settings") -> None:
    """Refuse settings with a secret among them."""
    for name, value in settings.items():
        check_setting(f"{before}{name}", str(value), what, f'{before}"{name}"' if before else name)


def check_address(what: str, address: str, hint: str = "") -> None:
    """Refuse an address with a secret in it."""
    plain = REFERENCE.sub("${}", address)
    place, _, query = plain.partition("?")
    named = [name for name, found in _SAID.findall(query) if is_secret(name) and found != "${}"]
    who, at, _ = place.partition("//")[2].rpartition("@")
    _, colon, word = who.partition(":")
    if named or (at and colon and word not in ("", "${}")):
        raise ConfigError(
            f"{what}: found a secret in the address {redacted(address)}" + (f" ({named[0]})" if named else ""),
            hint=hint or "write ${env:NAME} or ${file:PATH} in its place",
        )


def redacted(address: str) -> str:
    """What may be printed of an address that was not accepted.

    >>> redacted("postgres://me:secret@host/db?password=secret")
    'postgres:…@host/db?…'
    """
    place, mark, _ = re.sub(r"^([A-Za-z][\w+.-]*:|).*@", r"\1…@", address, flags=re.DOTALL).partition("?")
    return place + ("?…" if mark else "")


def redact(name: str, value: str) -> str:
    """What may be printed of a setting."""
    try:
        check_setting(name, value)
    except ConfigError:
        return "***"
    return "***" if is_secret(name) else value


def quoted(address: str) -> str:
    """An address whose references are percent-encoded: they may hold what has a meaning in it, such as a slash."""
    return REFERENCE.sub(lambda found: quote(found.group(), safe=""), address)


def resolve(value: str, environ: Mapping[str, str] | None = None) -> str:
    """Replace every ``${env:X}`` and ``${file:PATH}`` in a setting; the result may be secret, so never print it.

    >>> resolve("${env:WHO}", {"WHO": "me"})
    'me'
    """
    environ = os.environ if environ is None else environ

    def lookup(match: re.Match[str]) -> str:
        kind, name = match.groups()
        try:
            return environ[name] if kind == "env" else Path(name).read_text(encoding="utf-8").rstrip("\n")
        except (KeyError, OSError) as error:
            what = "environment variable" if kind == "env" else "file"
            raise ConfigError(
                f"{match.group()}: no such {what}", hint=f"set it, or change the setting that names {name}"
            ) from error
        except ValueError:  # the error itself holds the bytes, so it must not travel along
            raise ConfigError(f"{match.group()}: not UTF-8 text") from None

    return REFERENCE.sub(lookup, value)
