"""The examples: what their stores decide, and that their views on Spark are what the folds of all events say."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream import run
from millstream.errors import ViewBehind
from millstream.sourcing import Decided, EventStore, Request

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


class World:
    """An example's names, with everything it keeps in a folder of its own."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        self.names: dict[str, Any] = runpy.run_path(str(EXAMPLES / f"{name}.py"))

    def __getattr__(self, name: str) -> Any:
        return self.names[name]

    def execute(self, store: EventStore[Any], requests: list[Request]) -> dict[str, dict[int, int]]:
        """Execute; give the furthest position."""
        found = [answer.position for answer in store.execute_all(requests) if isinstance(answer, Decided)]
        ((topic, _),) = found[0].items()
        return {topic: {0: max(position[topic][0] for position in found)}}


@pytest.mark.parametrize("name", ["cart", "seats", "account"])
def test_an_example_is_short_and_runs(name: str) -> None:
    file = EXAMPLES / f"{name}.py"
    assert len(file.read_text().splitlines()) < 90
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    expected = {"cart": "repeated=True", "seats": "each once", "account": "of which 51 records were read"}
    assert expected[name] in done.stdout


def test_what_is_wanted_over_all_carts_is_the_sum_of_the_carts_and_who_writes_reads_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, turn = World("cart", tmp_path, monkeypatch), random.Random(0)

    def some(count: int) -> list[Request]:
        made: list[Request] = []
        for _ in range(count):
            cart, item = f"c{turn.randrange(9)}", turn.choice(("book", "pen", "ink"))
            remove = turn.random() < 0.3
            made.append(Request(cart, world.Remove(item) if remove else world.Add(item, turn.randrange(4))))
        return [*made, Request("c8", world.CheckOut())]

    def wanted() -> Counter[str]:
        return sum((Counter(world.carts.state(f"c{i}").items) for i in range(9)), Counter[str]())

    position = world.execute(world.carts, some(100))
    run(world.shop, once=True)
    for item in ("book", "pen", "ink"):
        assert world.wanted.get(item, at_least=position, timeout=0)["pieces"] == wanted()[item]
    position = world.execute(world.carts, [Request("new", world.Add("book", 1000)), *some(50)])
    with pytest.raises(ViewBehind, match=r"carts/0 at \d+ of \d+ \(\d+ behind\)"):
        world.wanted.get("book", at_least=position, timeout=0.05)
    running = threading.Thread(target=run, args=(world.shop,), kwargs={"once": True})
    running.start()
    found = world.wanted.get("book", at_least=position, timeout=60)
    running.join()
    assert found["pieces"] == wanted()["book"] + 1000


def test_the_seats_sold_are_those_that_are_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, turn = World("seats", tmp_path, monkeypatch), random.Random(1)
    requests = [
        Request(
            f"show{turn.randrange(3)}",
            world.Cancel(turn.randrange(20))
            if turn.random() < 0.4
            else world.Book((turn.randrange(20), turn.randrange(20)), f"n{i}"),
        )
        for i in range(200)
    ]
    position = world.execute(world.shows, requests)
    run(world.theatre, once=True)
    for each in ("show0", "show1", "show2"):
        assert world.sold.get(each, at_least=position, timeout=0)["seats"] == len(world.shows.state(each).taken)


def test_the_balances_are_those_of_the_folds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, turn = World("account", tmp_path, monkeypatch), random.Random(2)
    kinds = (world.Deposit, world.Withdraw)
    requests = [Request(f"a{turn.randrange(3)}", turn.choice(kinds)(turn.randrange(100))) for _ in range(900)]
    position = world.execute(world.accounts, requests[:600])
    position = world.execute(world.accounts, requests[600:])
    run(world.bank, once=True)
    for each in ("a0", "a1", "a2"):
        loaded = world.accounts.load(each)
        row = world.balances.get(each, at_least=position, timeout=0)
        assert row == {"account": each, "cents": loaded.state.cents, "moves": loaded.version}
        assert loaded.state.cents >= 0
        assert 0 < loaded.kept < loaded.version
