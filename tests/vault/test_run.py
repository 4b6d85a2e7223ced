"""A whole run on Spark: what is sealed is nowhere in plain text, and when its keys are gone no copy of it can be read."""

from __future__ import annotations

import base64
import json
import secrets
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millstream import Archive, Event, Pipeline, Producer, Vault, open_log, run, verify
from millstream.cli import execute
from millstream.errors import SealBroken
from millstream.vault.seal import PREFIX, parse

USERS = 40
CANARIES = [f"canary{user:02d}{secrets.token_hex(8)}" for user in range(USERS)]
"""Nothing in them repeats, so that what only finds repeats, like LZ4, leaves them as they are."""
ORDERS = "user_id long, email sealed, email_pseudonym string, amount double, at timestamp"
CUSTOMERS = "id long, name sealed, city string"


def order(number: int) -> Event:
    user = number % USERS
    at = f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}Z"
    value = {"user_id": user, "email": f"{CANARIES[user]}@example.com", "amount": number, "at": at}
    return Event(json.dumps(value).encode(), key=b"%d" % user)


def customer(user: int) -> Event:
    value = {"id": user, "name": {"first": CANARIES[user], "last": "X"}, "city": "Oslo"}
    return Event(json.dumps(value).encode(), b"%d" % user, datetime(2025, 12, 31, tzinfo=UTC))  # there before any order


def shop_of(folder: Path, *, sealed: bool) -> Pipeline:
    """The pipeline: the newest address of each customer, orders with their customers, both sent on as well."""
    shop = Pipeline(
        "shop", log=f"sqlite:{folder}/log.db", to=f"sqlite:{folder}/views.db", checkpoint=f"{folder}/check", buckets=2
    )
    kind = "sealed" if sealed else "string"
    orders = shop.stream("orders", ORDERS.replace("sealed", kind), time="at")
    customers = shop.table("customers", CUSTOMERS.replace("sealed", kind), key="id")
    key = "email_pseudonym" if sealed else "email"
    newest = orders.group_by(key).agg(mail="max_by(email, at)", total="sum(amount)")
    known = orders.join(customers, on="user_id = id", as_of="at").select(
        "user_id", "email AS sent_to", "name", "amount", "at"
    )
    shop.sink("out", shop.view("newest", newest), "topic:derived")
    shop.sink("files", shop.view("known", known), f"files:{folder}/files")
    return shop


def work(folder: Path, spark: SparkSession, vault: Vault | None) -> Pipeline:
    """Produce, archive, run, run again."""
    folder.mkdir()
    seals = {}
    if vault:
        seals["orders"] = vault.sealing("orders", subject={"user": "user_id"}, personal=["email"], pseudonyms=["email"])
        seals["customers"] = vault.sealing("customers", subject={"user": "id"}, personal=["name"])
    shop = shop_of(folder, sealed=vault is not None)
    with open_log(shop.log) as log:
        for name in ("customers", "orders", "derived"):
            log.create_topic(name, 2)
        with Producer(log, "customers", seal=seals.get("customers")) as producer:
            for user in range(USERS):
                producer.send(customer(user))
        for first in (0, 300):
            with Producer(log, "orders", seal=seals.get("orders")) as producer:
                for number in range(first, first + 300):
                    producer.send(order(number))
            run(shop, spark=spark, once=True)
        for name in ("orders", "customers", "derived"):
            Archive(folder / "archive", name).take(log)
    return shop


def pieces(path: Path) -> Iterator[bytes]:
    """What is in a file: its bytes, and what it packs by a code in which text does not show."""
    yield path.read_bytes()
    if path.suffix == ".parquet":
        yield str(pq.read_table(path).to_pylist()).encode()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            yield from (packed.read(name) for name in packed.namelist())


def places(folder: Path, words: list[str]) -> Counter[str]:
    """In how many files there is one of these words, in text or in base64, by the folder or file below the run's."""
    wanted = [form for word in words for form in _forms(word)]
    found: Counter[str] = Counter()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        if any(word in piece for piece in pieces(path) for word in wanted):
            found[path.relative_to(folder).parts[0].split("-")[0]] += 1
    return found


def _forms(word: str) -> list[bytes]:
    middles = [base64.b64encode(b"x" * shift + word.encode())[4:-4] for shift in range(3)]
    return [word.encode(), *middles]


@pytest.mark.timeout(900)
def test_no_copy_has_it_in_plain_text_and_none_can_be_read_when_the_keys_are_gone(
    spark: SparkSession, vault: Vault, keys: str, master: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    work(tmp_path / "plain", spark, None)
    plain = places(tmp_path / "plain", CANARIES)
    assert {"log.db", "views.db", "check", "archive", "files"} <= plain.keys(), plain  # what looks for it is not blind

    shop = work(tmp_path / "run", spark, vault)
    assert places(tmp_path / "run", CANARIES) == {}
    assert not any(
        word in each.read_bytes() for each in tmp_path.glob("vault.db*") for word in map(str.encode, CANARIES)
    )
    tokens = places(tmp_path / "run", [PREFIX])
    assert {"log.db", "views.db", "archive", "files"} <= tokens.keys(), tokens
    assert verify(shop, spark=spark).equal

    newest, known = shop.views["newest"], shop.views["known"]
    shown = {row["mail"]: row["total"] for row in newest.to_arrow(reveal=vault).to_pylist()}
    totals: Counter[str] = Counter()
    for number in range(600):
        totals[f"{CANARIES[number % USERS]}@example.com"] += number
    assert shown == totals
    named = {row["user_id"]: (row["sent_to"], row["name"]) for row in known.to_arrow(reveal=vault).to_pylist()}
    assert named[7] == (
        f"{CANARIES[7]}@example.com",
        json.dumps({"first": CANARIES[7], "last": "X"}, separators=(",", ":")),
    )
    pseudonym = vault.pseudonym("email", f"{CANARIES[7]}@example.com")
    sealed = newest.get(pseudonym)
    assert sealed is not None
    assert sealed["mail"].startswith(PREFIX)

    copies = sealed_copies(shop, tmp_path / "run")
    assert {"log", "archive", "files", "newest", "known"} == copies.keys()
    assert vault.shred(user=7) == 1
    for place, texts in copies.items():
        assert texts, place
        assert {vault.reveal(text) for text in texts} == {"erased"}, place
    revealed = newest.get(pseudonym, reveal=vault)
    assert revealed is not None
    assert (revealed["mail"], revealed["total"]) == ("erased", sealed["total"])
    others = {row["mail"] for row in newest.to_polars(reveal=vault).to_dicts()}
    assert others == {"erased", *(f"{CANARIES[user]}@example.com" for user in range(USERS) if user != 7)}
    assert verify(shop, spark=spark).equal
    run(shop, spark=spark, once=True)
    settings(tmp_path, vault, master, shop)
    assert (
        execute(
            [
                "--config",
                str(tmp_path / "millstream.toml"),
                "views",
                "show",
                "newest",
                "--reveal",
                "--json",
                "--views",
                shop.to,
            ]
        )
        == 0
    )
    rows = json.loads(capfd.readouterr().out)
    assert {row["mail"] for row in rows} == others


def test_a_token_that_was_moved_is_found_out_by_the_plan_of_the_view(
    spark: SparkSession, vault: Vault, tmp_path: Path
) -> None:
    seal = vault.sealing("orders", subject={"user": "user_id"}, personal=["email", "name"])
    shop = Pipeline(
        "shop",
        log=f"sqlite:{tmp_path}/log.db",
        to=f"sqlite:{tmp_path}/views.db",
        checkpoint=f"{tmp_path}/check",
        buckets=2,
    )
    orders = shop.stream("orders", "user_id long, email sealed, name sealed", key="user_id")
    view = shop.view("mails", orders.group_by("user_id").agg(mail="min_by(email, user_id)", n="count(*)"))
    first = seal.value({"user_id": 1, "email": "ann@example.com", "name": "Ann"})
    second = {**seal.value({"user_id": 2, "email": "bob@example.com", "name": "Bob"})}
    moved = {**second, "email": second["name"]}
    with open_log(shop.log) as log:
        log.create_topic("orders")
        log.append("orders", [Event(json.dumps(each).encode()) for each in (first, moved)])
    run(shop, spark=spark, once=True)
    assert view.get(1, reveal=vault) == {"user_id": 1, "mail": "ann@example.com", "n": 1}
    with pytest.raises(
        SealBroken,
        match=r"view mails, column mail: found a token that was sealed as orders\.name; expected orders\.email",
    ):
        view.get(2, reveal=vault)
    with pytest.raises(SealBroken, match="column mail"):
        view.to_arrow(reveal=vault)
    assert view.get(2)["mail"] == second["name"]  # type: ignore[index]


def sealed_copies(shop: Pipeline, folder: Path) -> dict[str, set[str]]:
    """The tokens that were sealed for user 7, by the kind of place where a copy is."""
    with open_log(shop.log) as log:
        records = {
            name: [
                each
                for partition, bound in log.bounds(name).items()
                for each in log.read(name, partition, 0, bound.end)
            ]
            for name in ("orders", "customers", "derived")
        }
    mine = {
        parse(value["email" if name == "orders" else "name"]).key
        for name in ("orders", "customers")
        for record in records[name]
        if (value := json.loads(record.value or b""))["user_id" if name == "orders" else "id"] == 7
    }
    assert len(mine) == 1

    def texts(value: Any) -> set[str]:
        found = [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else value or []
        if isinstance(value, str):
            return {value} if value.startswith(PREFIX) and parse(value).key in mine else set()
        return set().union(*map(texts, found)) if isinstance(value, dict | list) else set()

    archived = [
        json.loads(row["value"])
        for path in folder.glob("archive/*/*/*.parquet")
        for row in pq.read_table(path).to_pylist()
        if row["value"]
    ]
    return {
        "log": texts([json.loads(each.value) for several in records.values() for each in several if each.value]),
        "archive": texts(archived),
        "files": texts([row for path in folder.glob("files/**/*.parquet") for row in pq.read_table(path).to_pylist()]),
        "newest": texts(shop.views["newest"].to_arrow().to_pylist()),
        "known": texts(shop.views["known"].to_arrow().to_pylist()),
    }


def settings(folder: Path, vault: Vault, master: str, shop: Pipeline) -> None:
    (folder / "millstream.toml").write_text(
        f'log = "{shop.log}"\n[vault]\nkeys = "sqlite:{vault.path}"\nmaster = "{master}"\n'
        '[vault.topics.orders]\nsubject = {user = "user_id"}\npersonal = ["email"]\n'
    )
