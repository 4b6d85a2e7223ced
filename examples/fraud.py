"""Whoever has a stolen card tries it with small amounts before a large one: alerts from a stream, to a function and to a topic.

`python examples/fraud.py` makes some payments and runs it; by hand: `millstream run examples/fraud.py --log sqlite:LOG`.

An alert is final: it is told when no payment that is still allowed to come can change it, a minute behind the newest one. It is told to
the topic exactly once, and to the function at least once: `id` is the same whenever it is told again, also after a restart or a rebuild.
"""

import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millstream import Change, Event, Pipeline, open_log, run

bank = Pipeline("bank", log="sqlite:bank.db", to="sqlite:bank.views.db")

payments = bank.stream(
    "payments", "card string, amount double, at timestamp", key="card", time="at", delay="1 minute", idle="30 seconds"
)

alerts = bank.view(
    "alerts",
    sql="""
    SELECT id, card, tries, tried, amount, taken
    FROM payments MATCH_RECOGNIZE (
        PARTITION BY card
        ORDER BY at
        MEASURES MATCH_ID() AS id, count(small.amount) AS tries, first(small.at) AS tried,
            large.amount AS amount, large.at AS taken
        ONE ROW PER MATCH
        AFTER MATCH SKIP PAST LAST ROW
        PATTERN (small{2,} large) WITHIN INTERVAL 10 MINUTES
        DEFINE small AS amount < 2, large AS amount >= 500
    ) AS found
    """,
    emit="final",
)


def call(changes: Sequence[Change]) -> None:
    """Tell the holder of the card; here it is printed."""
    for change in changes:
        row = change.row
        print(f"card {row['card']}: {row['tries']} small payments, then {row['amount']:.2f}")


bank.sink("holder", alerts, call)
bank.sink("others", alerts, "topic:alerts")


def pay(log: str) -> None:
    """Three cards: one is stolen, one is used as ever, and the small payments of one are too long ago. One payment comes late."""
    begin = datetime(2026, 1, 1, 12, tzinfo=UTC)
    made = [
        ("a", 0, 1.0),
        ("b", 0, 1.5),
        ("c", 0, 0.5),
        ("c", 1, 0.5),
        ("a", 3, 900.0),
        ("a", 2.5, 1.2),
        ("b", 4, 700.0),
    ]
    with open_log(log, create=True) as opened:
        opened.create_topic("payments", 1)
        for card, minute, amount in [*made, ("c", 12, 800.0), ("a", 20, 30.0)]:
            payment = {"card": card, "amount": amount, "at": (begin + timedelta(minutes=minute)).isoformat()}
            opened.append("payments", [Event(json.dumps(payment).encode(), card.encode())])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-fraud-") as folder:
        bank.log, bank.to = f"sqlite:{Path(folder) / 'bank.db'}", f"sqlite:{Path(folder) / 'bank.views.db'}"
        bank.checkpoint = str(Path(folder) / "bank.checkpoint")
        pay(bank.log)
        run(bank, once=True)
