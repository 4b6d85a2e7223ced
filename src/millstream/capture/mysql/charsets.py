"""Character sets: text in the binary log has that of its column, and a collation's number says which.

The numbers are read from the server, because each knows collations that the other has not. Text that cannot be read exactly is an
error, never a replacement character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.errors import CaptureError

BINARY = 63
"""The collation of bytes."""

_CODECS = {
    "armscii8": None, "ascii": "ascii", "big5": "big5hkscs", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "cp932": "cp932", "eucjpms": "euc_jp", "euckr": "cp949", "gb18030": "gb18030",
    "gb2312": "gb2312", "gbk": "gbk", "greek": "iso8859_7", "hebrew": "iso8859_8", "koi8r": "koi8_r", "koi8u": "koi8_u",
    "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "macce": "mac_latin2", "macroman": "mac_roman",
    "sjis": "shift_jis", "tis620": "tis_620", "ucs2": "utf-16-be", "ujis": "euc_jp", "utf16": "utf-16-be", "utf16le": "utf-16-le",
    "utf32": "utf-32-be", "utf8": "utf-8", "utf8mb3": "utf-8", "utf8mb4": "utf-8",
}  # fmt: skip
# latin1 of MySQL is Windows' cp1252, with control characters where that has nothing.
_LATIN1 = {
    byte: bytes([byte]).decode("cp1252") for byte in range(0x80, 0xA0) if byte not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
}


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set, and of how many bytes a character is at most."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Charsets:
    """The character sets of a server, by the numbers of their collations."""

    by_collation: Mapping[int, Charset]
    by_name: Mapping[str, Charset]

    def of(self, collation: int) -> Charset:
        """The character set of a collation."""
        if collation not in self.by_collation:
            raise CaptureError(f"the binary log has text in collation {collation}, which the server does not know")
        return self.by_collation[collation]


def read_charsets(ask: Callable[[str], list[tuple[Any, ...]]], mariadb: bool) -> Charsets:
    """The character sets that the server has. In MariaDB a collation has a number for each character set that it goes with."""
    names = {name: Charset(name, int(size)) for name, size in ask("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS")}  # fmt: skip
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if mariadb else "COLLATIONS"
    rows = ask(f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table} WHERE ID IS NOT NULL")
    return Charsets({int(number): names[name] for number, name in rows if name in names}, names)


def decoder(charset: str, what: str) -> Callable[[bytes], str]:
    """How bytes of a character set become text; CaptureError for one that Python does not have."""
    if charset == "latin1":
        return lambda found: found.decode("latin-1").translate(_LATIN1)
    codec = _CODECS.get(charset)
    if codec is None:
        raise CaptureError(
            f"{what}: found text in the character set {charset}, which cannot be read",
            hint="ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4, and a new snapshot",
        )
    return lambda found: found.decode(codec)
