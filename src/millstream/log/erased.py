"""Erased records: what is left of a record in the log whose subject has been forgotten.

Its place, both of its times and what admission needs of it are left, so that the verdict on every other record stays what it was. The
key is ``millstream.erased.`` and a pseudonym, 32 hex digits. Of values that are JSON the key alone does not tell: they begin with
:data:`VALUE_PREFIXES`, so that whoever reads values in bulk need not look at keys. Nothing else is an erased record.
"""

from __future__ import annotations

import re

PREFIX = b"millstream.erased."
"""How the keys of erased records begin. Users do not append such keys."""
HEADER = "millstream.erased"
"""The header that an erased record has, for readers who are not ours."""
MEMBER = "millstream.erased"
"""The first member of a value that is JSON."""
VALUE_PREFIXES = (b'{"millstream.erased":', b'\0\0\0\0\0{"millstream.erased":')
"""How values that are JSON begin; framed by Confluent's convention they have the schema id 0."""

_KEY = r"millstream\.erased\.[0-9a-f]{32}"
_KEY_BYTES = re.compile(_KEY.encode())
_JSON = ("json", "confluent-json", "debezium")


def is_erased(key: bytes | None, value: bytes | None, codec: str) -> bool:
    """Whether a record of a topic with this codec is an erased one.

    >>> is_erased(b"millstream.erased." + b"0" * 32, b'{"millstream.erased":true}', "json")
    True
    >>> is_erased(b"millstream.erased.7", None, "json")
    False
    """
    if key is None or not key.startswith(PREFIX) or not _KEY_BYTES.fullmatch(key):
        return False
    return value is None or codec not in _JSON or value.startswith(VALUE_PREFIXES)


def erased_key_sql() -> str:
    """Whether the key is that of an erased record, in Spark SQL over ``key``."""
    pattern = "'" + rf"\A{_KEY}\z".replace("\\", "\\\\") + "'"
    return f"startswith(key, cast('{PREFIX.decode()}' AS binary)) AND cast(key AS string) RLIKE {pattern}"


def erased_value_sql(codec: str) -> str:
    """Whether the value may be that of an erased record, in Spark SQL over ``_value``."""
    if codec not in _JSON:
        return "true"
    begins = " OR ".join(f"startswith(_value, X'{each.hex()}')" for each in VALUE_PREFIXES)
    return f"(_value IS NULL OR {begins})"
