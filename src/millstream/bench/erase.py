"""The measurement of erasure: how long it takes to blank somebody's records in a log, and to write its file anew."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from millstream.bench import Result
from millstream.erase.blank import Eraser, Wish, blank_topic, compacted_file
from millstream.erase.form import Subject, forms_of
from millstream.erase.pseudonym import Pseudonyms, new_key
from millstream.erase.request import sources_in
from millstream.event import Event
from millstream.log.embedded.engine import SqliteLog
from millstream.pipeline import Pipeline

_USERS, _BATCH, _RECORDS = 1000, 10_000, 1_000_000


def measure(folder: Path, scale: float) -> Result:
    """``erase``: seconds per million records of a topic in which every thousandth is to go, without what views take to be computed anew.

    The baseline is reading all of its records once.
    """
    records = max(_BATCH, int(_RECORDS * scale))
    pipeline = Pipeline("bench", to="sqlite:views.db")
    pipeline.stream(
        "orders",
        "user_id string, email string, n long, at timestamp",
        time="at",
        subject={"user": "user_id"},
        personal="email",
    )
    with SqliteLog(folder / "log.db") as log:
        log.create_topic("orders", 4)
        for first in range(0, records, _BATCH):
            log.append("orders", [_order(number) for number in range(first, first + _BATCH)])
        began = time.perf_counter()
        for partition, bound in log.bounds("orders").items():
            for offset in range(0, bound.end, _BATCH):
                log.read("orders", partition, offset, _BATCH)
        read = time.perf_counter() - began
        eraser = Eraser(
            forms_of(sources_in([pipeline]))["orders"], (Wish(Subject("user", "user-7")),), Pseudonyms(new_key())
        )
        began = time.perf_counter()
        blanked = blank_topic(log, "orders", eraser)
        compacted_file(log.store, "log")
        seconds = time.perf_counter() - began
    millions = records / 1_000_000
    note = f"{blanked} of {records} records blanked, and the file written anew; views come on top, at the speed of a rebuild"
    return Result("erase", seconds / millions, "s per million records", "reading them once", read / millions, note)


def _order(number: int) -> Event:
    user = f"user-{number % _USERS}"
    row = {"user_id": user, "email": f"{user}@example.org", "n": number, "at": "2026-01-31T12:00:00Z"}
    return Event(msgspec.json.encode(row), user.encode())
