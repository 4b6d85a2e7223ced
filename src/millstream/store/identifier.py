"""Names of tables and columns as SQL, which is the same on both engines."""

from __future__ import annotations

from millstream.errors import ViewError


def quote(name: str) -> str:
    """An identifier as SQL, whatever it holds.

    >>> quote('say "hi"')
    '"say ""hi""\"'
    """
    if "\0" in name:
        raise ViewError(f"a name must not hold a NUL: {name!r}")
    return '"' + name.replace('"', '""') + '"'
