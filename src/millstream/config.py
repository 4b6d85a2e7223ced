"""One :class:`Settings`: what a ``millstream.toml`` says, overridden by the environment, overridden by flags.

Secrets never stand in a file or a variable we read: see :mod:`millstream.secret`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from millstream.errors import ConfigError
from millstream.secret import check_address, check_settings, is_reference, redact, redacted, resolve
from millstream.serve_settings import ServeSettings

__all__ = ["FILE", "ErasedTopic", "Settings", "load", "redact", "resolve"]

FILE = "millstream.toml"
DEFAULT_LOG = "sqlite:millstream.db"


class ErasedTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic that no pipeline reads, for ``millstream erase``: its columns, and whose its records are.

    :param schema: its columns, ``"user string, ip string"``
    :param subject: a kind of subject, and the column that says which
    :param personal: other columns with personal data
    :param codec: how values are written
    :param key: the columns that the records' keys are made of

    >>> ErasedTopic("user string, ip string", {"user": "user"}).codec
    'json'
    """

    schema: str
    subject: dict[str, str]
    personal: list[str] = []
    codec: str = "json"
    key: list[str] = []


class SealedTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose data the records of a topic are, and which of their fields are sealed."""

    subject: dict[str, str]
    personal: list[str]
    pseudonyms: list[str] | dict[str, str] = []


class VaultSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the keys of sealed values are, where their master key is, and what is sealed by topic."""

    keys: str = "sqlite:vault.db"
    master: str = ""
    topics: dict[str, SealedTopic] = {}

    def __repr__(self) -> str:
        master = self.master if is_reference(self.master) or self.master.startswith("kms:") else "***"
        return f"VaultSettings(keys={redacted(self.keys)!r}, master={master!r}, topics={self.topics!r})"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be set; every field has a default that works on one machine."""

    log: str = DEFAULT_LOG
    archive: str = "archive"
    kafka: dict[str, str] = {}
    spark: dict[str, str] = {}
    erase: dict[str, ErasedTopic] = {}
    """Topics that no pipeline reads, by name."""
    serve: ServeSettings = ServeSettings()
    vault: VaultSettings = VaultSettings()

    def __repr__(self) -> str:
        kafka = {name: redact(name, value) for name, value in self.kafka.items()}
        spark = {name: redact(name, value) for name, value in self.spark.items()}
        vault = f", vault={self.vault!r}" if self.vault != VaultSettings() else ""
        return (
            f"Settings(log={redacted(self.log)!r}, archive={self.archive!r}, kafka={kafka!r}, spark={spark!r}{vault})"
        )


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the file (``MILLSTREAM_CONFIG`` or ``./millstream.toml``), then the environment.

    ``MILLSTREAM_LOG`` sets ``log``; ``MILLSTREAM_KAFKA__SASL_USERNAME`` sets ``kafka."sasl.username"``,
    ``MILLSTREAM_SPARK__MASTER`` sets ``spark.master``.
    """
    environ = os.environ if environ is None else environ
    named = path or (Path(environ["MILLSTREAM_CONFIG"]) if environ.get("MILLSTREAM_CONFIG") else None)
    file = named or Path(FILE)
    values: dict[str, object] = {}
    if file.exists():
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: not TOML: {error}") from error
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    elif named:
        raise ConfigError(f"{file}: no such file", hint="looked there because of MILLSTREAM_CONFIG or --config")
    for section, before in (("kafka", ""), ("spark", "spark.")):
        table, variables = values.get(section, {}), f"MILLSTREAM_{section.upper()}__"
        if isinstance(table, dict):
            values[section] = _flatten(table, before) | {
                before + name.removeprefix(variables).lower().replace("_", "."): value
                for name, value in environ.items()
                if name.startswith(variables)
            }
    vault = values.setdefault("vault", {})
    for name in ("keys", "master"):
        if isinstance(vault, dict) and (value := environ.get(f"MILLSTREAM_VAULT__{name.upper()}")):
            vault[name] = value
    for name in ("log", "archive"):
        if value := environ.get(f"MILLSTREAM_{name.upper()}"):
            values[name] = value
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{file}: {error}", hint=f"known settings: {', '.join(Settings.__struct_fields__)}"
        ) from error
    check_settings(settings.kafka, "kafka.")
    check_settings(settings.spark)
    check_address("log", settings.log)
    check_address("vault.keys", settings.vault.keys)
    if settings.vault.master and not (is_reference(settings.vault.master) or settings.vault.master.startswith("kms:")):
        raise ConfigError(
            "vault.master: expected where the master key is; found something else, which is not repeated here",
            hint='master = "${env:NAME}", "${file:PATH}" or "kms:MODULE:FUNCTION"',
        )
    return settings


def _flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Undo TOML's nesting: ``sasl.username = "x"`` is one Kafka setting, not a table."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = (
                str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else value
            )
    return flat
