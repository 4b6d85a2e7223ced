"""An application: a process that writes a file with Python's own SQLite, one statement a line, and says what came of it."""

from __future__ import annotations

import json
import sqlite3
import sys
from base64 import b64decode
from typing import Any


def main(path: str) -> None:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    for line in sys.stdin:
        said: dict[str, Any] = json.loads(line)
        values = [b64decode(each["blob"]) if isinstance(each, dict) else each for each in said["values"]]
        try:
            rows = [
                [each.hex() if isinstance(each, bytes) else each for each in row]
                for row in connection.execute(said["sql"], values)
            ]
            answer: dict[str, Any] = {"rows": rows}
        except (sqlite3.Error, sqlite3.Warning) as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
