"""One :class:`Settings`: what a ``millstream.toml`` says, overridden by the environment, overridden by flags.

Secrets never stand in a file or a variable we read: a setting names where the secret is, ``${env:NAME}`` or
``${file:PATH}``, and is resolved at the last moment. An inline password is refused, and no secret is ever printed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from millstream.errors import ConfigError

FILE = "millstream.toml"
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")
_SECRET_NAME = re.compile(
    r"password|secret|passphrase|jaas|private|token$|ssl\.key\.pem|ssl\.keystore\.key", re.IGNORECASE
)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be set; every field has a default that works on one machine."""

    log: str = "sqlite:millstream.db"
    archive: str = "archive"
    kafka: dict[str, str] = {}
    spark: dict[str, str] = {}

    def __repr__(self) -> str:
        kafka = {name: redact(name, value) for name, value in self.kafka.items()}
        spark = {name: redact(name, value) for name, value in self.spark.items()}
        return f"Settings(log={self.log!r}, archive={self.archive!r}, kafka={kafka!r}, spark={spark!r})"


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
            values = tomllib.loads(file.read_text())
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
    for name in ("log", "archive"):
        if value := environ.get(f"MILLSTREAM_{name.upper()}"):
            values[name] = value
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{file}: {error}", hint=f"known settings: {', '.join(Settings.__struct_fields__)}"
        ) from error
    secret = [
        *((f"kafka.{name}", f'kafka."{name}"', value) for name, value in settings.kafka.items()),
        *((name, name, value) for name, value in settings.spark.items()),
    ]
    for name, written, value in secret:
        if _SECRET_NAME.search(name) and not _REFERENCE.fullmatch(value.strip()):
            raise ConfigError(
                f"{name}: a secret must not stand in the settings",
                hint=f'write {written} = "${{env:NAME}}" or "${{file:PATH}}"',
            )
    return settings


def resolve(value: str, environ: Mapping[str, str] | None = None) -> str:
    """Replace every ``${env:X}`` and ``${file:PATH}`` in a setting; the result may be secret, so never print it.

    >>> resolve("${env:WHO}", {"WHO": "me"})
    'me'
    """
    environ = os.environ if environ is None else environ

    def lookup(match: re.Match[str]) -> str:
        kind, name = match.groups()
        try:
            return environ[name] if kind == "env" else Path(name).read_text().rstrip("\n")
        except (KeyError, OSError) as error:
            what = "environment variable" if kind == "env" else "file"
            raise ConfigError(
                f"{match.group()}: no such {what}", hint=f"set it, or change the setting that names {name}"
            ) from error
        except ValueError:  # the error itself holds the bytes, so it must not travel along
            raise ConfigError(f"{match.group()}: not UTF-8 text") from None

    return _REFERENCE.sub(lookup, value)


def redact(name: str, value: str) -> str:
    """What may be printed of a setting."""
    return "***" if _SECRET_NAME.search(name) else value


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
