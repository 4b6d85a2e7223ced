"""Dual writes drift, a capture does not: an application that writes to its database and to a log, beside one that is captured.

Two workers change the same users. Each commits to the database and then tells the log, as applications do; now and then one dies in between, and
sometimes they tell in another order than they committed. `python examples/capture.py` counts the users that are wrong in the end.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from millstream import Event, open_log

USERS, WORKERS, CHANGES = 50, 2, 300


def application(folder: Path) -> None:
    """What a service does: change a row, and tell others about it."""

    def work(number: int) -> None:
        chance = random.Random(number)
        db = sqlite3.connect(folder / "shop.db", timeout=60, isolation_level=None)
        with open_log(f"sqlite:{folder / 'log.db'}") as log:
            for change in range(CHANGES):
                user, email = chance.randrange(USERS), f"{number}.{change}@example.com"
                db.execute("UPDATE users SET email = ? WHERE id = ?", (email, user))
                if chance.random() < 0.15:
                    continue  # it died here: the database knows, the log never will
                row = {"id": user, "email": email}
                log.append("dual", [Event(json.dumps({"after": row}).encode(), key=str(user).encode())])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def emails(url: str, topic: str) -> dict[int, str]:
    """The users as a topic has them."""
    found: dict[int, str] = {}
    with open_log(url) as log, log.reader(topic) as reader:
        while records := reader.poll():
            for record in records:
                row = json.loads(record.value or b"{}").get("after")
                if row is not None:
                    found[row["id"]] = row["email"]
    return found


def measure(folder: Path) -> dict[str, int]:
    """Let the application run, and count the users that each topic has wrong."""
    url, shop = f"sqlite:{folder / 'log.db'}", folder / "shop.db"
    db = sqlite3.connect(shop)
    db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT)")
    db.executemany("INSERT INTO users VALUES (?, 'new')", [(user,) for user in range(USERS)])
    db.commit()
    db.close()
    with open_log(url) as log:
        log.create_topic("dual")
        log.append(
            "dual", [Event(json.dumps({"after": {"id": user, "email": "new"}}).encode()) for user in range(USERS)]
        )
    command = ["capture", "start", f"sqlite:{shop}", "--table", "users", "--once", "--log", url]
    millstream = [sys.executable, "-c", "from millstream.cli import main; main()", *command]
    subprocess.run(millstream, check=True)
    subprocess.run([sys.executable, __file__, str(folder)], check=True)  # two SQLite libraries do not go together
    subprocess.run(millstream, check=True)
    truth = dict(sqlite3.connect(shop).execute("SELECT id, email FROM users").fetchall())
    found = {"dual writes": emails(url, "dual"), "capture": emails(url, "shop.users")}
    return {way: sum(there.get(user) != email for user, email in truth.items()) for way, there in found.items()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        application(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            for way, wrong in measure(Path(place)).items():
                print(f"{way}: {wrong} of {USERS} users are wrong")
