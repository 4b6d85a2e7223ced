"""The example of fraud: an alert once, to a function and to a topic, over a restart."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream import load_pipeline, run
from millstream.event import Event
from millstream.log import open_log

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "fraud.py"
STOLEN = "card a: 2 small payments, then 900.00"


def told(log: str) -> list[dict[str, Any]]:
    """What the topic of alerts has."""
    with open_log(log) as opened:
        records = [record for each in opened.bounds("alerts") for record in opened.read("alerts", each, 0, 1 << 62)]
    return [json.loads(record.value or b"null") for record in records]


def paid(log: str, card: str, minute: int, amount: float) -> None:
    at = datetime(2026, 1, 1, 13, minute, tzinfo=UTC).isoformat()
    with open_log(log) as opened:
        opened.append(
            "payments", [Event(json.dumps({"card": card, "amount": amount, "at": at}).encode(), card.encode())]
        )


def test_a_stolen_card_is_told_once_to_everybody(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 80
    monkeypatch.chdir(tmp_path)
    bank = load_pipeline(EXAMPLE)
    call: Any = bank.sinks["holder"].to
    call.__globals__["pay"](bank.log)
    run(bank, spark=spark, once=True)
    assert capsys.readouterr().out.splitlines() == [STOLEN]
    (alert,) = told(bank.log)
    assert (alert["card"], alert["tries"], alert["amount"]) == ("a", 2, 900.0)
    assert (alert["tried"][11:16], alert["taken"][11:16]) == ("12:00", "12:03")

    for minute, amount in enumerate((0.1, 0.2, 0.3, 5_000.0)):
        paid(bank.log, "b", minute, amount)
    run(bank, spark=spark, once=True)
    assert capsys.readouterr().out == "", "a payment may still come before the large one"
    paid(bank.log, "c", 5, 20.0)
    run(bank, spark=spark, once=True)
    assert capsys.readouterr().out.splitlines() == ["card b: 3 small payments, then 5000.00"]
    assert [each["card"] for each in told(bank.log)] == ["a", "b"]
    assert len({each["id"] for each in told(bank.log)}) == 2
