"""A checkpoint that was moved, or restored from a backup elsewhere: Spark notes in it where it lies, so the notes are put right."""

from __future__ import annotations

import re
from pathlib import Path

from millstream.durable import replace_file

_NOTED = re.compile(r'file:([^"]*?)(/state/\d+/_stateSchema/)')


def settle(folder: Path) -> None:
    """Let a checkpoint say that it lies where it lies; one that does is left alone."""
    for path in folder.glob("state/*/_metadata/v2/[0-9]*"):
        noted = path.read_text(encoding="utf-8")
        right = _NOTED.sub(lambda found: f"file:{folder}{found[2]}", noted)
        if right != noted:
            # Hadoop's checksum is of the old text; a file without one is taken as it is.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            replace_file(path, right.encode())
