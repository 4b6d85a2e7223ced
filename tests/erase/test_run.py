"""Erasing somebody who is in every place: found before, nowhere after; everybody else is as before, whatever happens in between."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from millstream import Event, Pipeline
from millstream.cli import cli
from millstream.erase import audit, scan, survey
from millstream.erase import run as erasing
from millstream.erase.form import Subject
from millstream.erase.register import Register
from millstream.erase.request import register_of, request, sources_outside
from millstream.erase.run import Erased, erase
from millstream.errors import AlreadyErasing, AlreadyRunning, EraseError, NotSupported, StillThere
from millstream.failpoint import armed
from millstream.log.embedded.engine import SqliteLog
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.spark import private_folder
from millstream.store import open_reader, open_writer
from tests.erase.world import MAIL, NAME, USER, define, live, order

ANN = Subject("user", USER)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """The folder of a shop that has lived; tests take copies."""
    folder = tmp_path_factory.mktemp("lived")
    live(folder, spark)
    return folder


@pytest.fixture
def shop(lived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    folder = tmp_path / "shop"
    shutil.copytree(lived, folder)
    with SqliteLog(folder / "log.db") as log:  # the archive lies beside the copy
        settings = log.topic("orders").settings
        log.alter_topic(
            "orders", settings=settings.__class__(retention=settings.retention, archive=str(folder / "archive"))
        )
    left = tmp_path / f"millstream-{os.getuid()}-dead"
    (left / "spark").mkdir(parents=True)
    (left / "lock").touch()
    (left / "spark" / "spilled").write_bytes(MAIL.encode())
    monkeypatch.setattr(private_folder, "_place", lambda: (str(tmp_path), f"millstream-{os.getuid()}-"))
    return define(folder)


def rows(pipeline: Pipeline) -> dict[str, list[dict[str, Any]]]:
    found = {name: view.to_arrow().to_pylist() for name, view in pipeline.views.items()}
    return {name: sorted(each, key=repr) for name, each in found.items()}


def bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".erasures" not in path.name)


def places(done: Erased, folder: Path, when: str) -> set[str]:
    return {each.place.replace(str(folder), "") for each in done.certificate.looked if getattr(each, when)}


def without_ann(before: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """What the views must say: the minute of hers alone is gone, that which she shares has less."""
    minutes = [row for row in before["per_minute"] if row["window_start"].minute not in (0, 6)]
    (shared,) = (row for row in before["per_minute"] if row["window_start"].minute == 0)
    (later,) = (row for row in before["per_minute"] if row["window_start"].minute == 6)
    minutes += [{**shared, "n": 1, "total": 7}] + (
        [{**later, "n": later["n"] - 1, "total": later["total"] - 9}] if later["n"] > 1 else []
    )
    return {
        "per_minute": sorted(minutes, key=repr),
        "per_user": [row for row in before["per_user"] if row["user_id"] != USER],
        "named": [row for row in before["named"] if row["who"] != USER],
    }


def check_erased(shop: Pipeline, before: dict[str, list[dict[str, Any]]], done: Erased, spark: SparkSession) -> None:
    folder = Path(shop.checkpoint).parent
    assert rows(shop) == without_ann(before)
    assert done.certificate.places_after == 0
    left = bytes_below(folder)
    assert all(text.encode() not in left for text in (USER, MAIL, NAME))
    assert verify(shop, spark=spark).equal
    with open_reader(shop.to) as store:
        counted = {row["topic"]: row for row in store.admission("shop").to_pylist()}
        assert [info.name for info in store.views()] == ["named", "per_minute", "per_user"]
    assert (counted["orders"]["erased"], counted["orders"]["late"], counted["orders"]["malformed"]) == (3, 2, 2), (
        "the two that were late by her newest are late still, and none by the time of one that was malformed"
    )
    assert counted["users"]["erased"] == 1
    with Register(register_of(shop.log)) as register:
        assert register.waiting() == []
        assert register.step("begun") is None
    assert MAIL.encode() not in b"".join(path.read_bytes() for path in folder.glob("log.db*") if path.is_file())


def test_somebody_is_found_in_every_place_before_and_in_none_after(shop: Pipeline, spark: SparkSession) -> None:
    folder, before = Path(shop.checkpoint).parent, rows(shop)
    request([shop], ANN)
    done = erase([shop], spark=spark)
    found = places(done, folder, "before")
    assert found >= {
        "topic orders, by its columns", "topic orders.dead, by its columns", "topic users, by its columns",
        "view named, by its columns", "view named~old, by its columns", "view named~next, by its columns",
        "view per_user, by its columns", "log, topic orders/0", "log, topic orders.dead/0", "log, topic users/0",
        "log, pages, the free ones too", "/check.spark.log",
    }  # fmt: skip
    views = f"views sqlite:{folder}/views.db, table "
    tables = {
        each.place.removeprefix(views)
        for each in done.certificate.looked
        if each.before and each.place.startswith(views)
    }
    assert tables >= {"named", "named~old", "named~next", "per_user", "millstream_dead_letters", "millstream_hidden"}
    assert any(place.startswith("/archive/orders/0/") for place in found)
    assert any(place.endswith("spilled") for place in found)
    assert any(place.endswith(".changelog") for place in found), "state is compressed, and looked into"
    assert done.certificate.places_before >= 20
    assert {"who": USER, "name": NAME, "amount": 9} in before["named"], "a join has copied her name"
    check_erased(shop, before, done, spark)
    assert done.path is not None
    said = json.loads(done.path.read_bytes())
    assert said["texts"] == 3
    assert {each["now"] for each in said["odd"]} <= {"removed", "made since"}
    assert any(each["place"].endswith(".sst") and each["now"] == "removed" for each in said["odd"])
    page = done.path.with_suffix(".html").read_text()
    assert "0 after" in page
    for text in (USER, MAIL, NAME):
        assert text not in done.path.read_text() + page
    with SqliteLog(folder / "log.db") as log:
        entries, head = audit.check(log)
    assert [each.what for each in entries] == ["requested", "erased"]
    assert (entries[-1].certificate, head) == (audit.hash_of(done.path.read_bytes()), done.head)
    with pytest.raises(EraseError, match="nobody waits to be erased"):
        erase([shop], spark=spark)
    with SqliteLog(folder / "log.db") as log:
        log.append("orders", [order("bob", 500, 1), order(USER, 501, 1)])
    run(shop, spark=spark, once=True)
    assert any(row["user_id"] == USER for row in rows(shop)["per_user"]), "who comes again is a new customer"


STEPS = [
    "erase.begun", "erase.cleared", "erase.blank.in_transaction", "erase.blank.after_step", "archive.before_rewrite",
    "erase.blanked.done", "rebuild.after_swap", "erase.rebuilt.done", "erase.vacuum.after", "erase.rewritten", "erase.certified",
]  # fmt: skip


OFTEN = ("erase.blank.after_step", "rebuild.after_swap", "erase.rewritten")
"""Those of every run of the tests."""


@pytest.mark.parametrize(
    "step", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.campaign) for each in STEPS]
)
def test_one_that_was_cut_short_goes_on_to_the_same_end(step: str, shop: Pipeline, spark: SparkSession) -> None:
    before = rows(shop)
    request([shop], ANN)
    with armed(step), pytest.raises(RuntimeError, match=f"failpoint {step}"):
        erase([shop], spark=spark)
    done = erase([shop], spark=spark)
    assert done.certificate.places_before >= 20, "what was found before is what the first look found"
    check_erased(shop, before, done, spark)


def no_clear(usual: Callable[..., None], pipeline: Pipeline, version: str) -> None:
    if version != "~old":
        usual(pipeline, version)


@pytest.mark.parametrize(
    "mutant", ["no vacuum of the log", "no vacuum of the views", "the old version is kept", "archives are left"]
)
def test_a_step_left_out_is_noticed_and_nothing_is_certified(
    mutant: str, shop: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    match mutant:
        case "no vacuum of the log":
            monkeypatch.setattr(erasing, "compacted_file", lambda file, what: None)
        case "no vacuum of the views":
            monkeypatch.setattr(erasing, "_rewrite", lambda address: None)
        case "the old version is kept":
            monkeypatch.setattr(erasing, "_clear", partial(no_clear, erasing._clear))
        case "archives are left":
            monkeypatch.setattr(erasing, "blank_archive", lambda *_: 0)
    request([shop], ANN)
    with pytest.raises(StillThere):
        erase([shop], spark=spark)
    with Register(register_of(shop.log)) as register:
        assert [each.subject for each in register.waiting()] == [ANN]


def test_a_scan_that_decompresses_nothing_finds_less(
    shop: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    request([shop], ANN)
    found = erase([shop], spark=spark, dry_run=True).certificate
    monkeypatch.setattr(scan, "unpacked", lambda data: data)
    monkeypatch.setattr(
        survey, "scan_parquet", lambda path, needles: scan.Found(str(path), scan._in_file(path, needles))
    )
    blind = erase([shop], spark=spark, dry_run=True).certificate
    assert blind.places_after < found.places_after


def test_a_dry_run_changes_nothing(shop: Pipeline, spark: SparkSession) -> None:
    folder = Path(shop.checkpoint).parent
    request([shop], ANN)
    before = bytes_below(folder)
    done = erase([shop], dry_run=True)
    assert done.certificate.places_after >= 20
    assert done.path is None
    assert bytes_below(folder) == before
    del spark


def test_what_cannot_be_done_as_a_whole_is_not_begun(shop: Pipeline, spark: SparkSession) -> None:
    request([shop], ANN)
    before = rows(shop)
    with Register(register_of(shop.log)) as register, register.alone(), pytest.raises(AlreadyErasing):
        erase([shop], spark=spark)
    with open_writer(shop.to) as writer:
        writer.claim("shop")
        with pytest.raises(AlreadyRunning):
            erase([shop], spark=spark)
        writer.release()
    other = Pipeline("other", log=shop.log, to=shop.to, checkpoint=str(Path(shop.checkpoint).with_name("other")))
    stream = other.stream("orders", "user_id string", subject={"user": "user_id"})
    other.view("others", stream.group_by().agg(n="count(*)"))
    run(other, spark=spark, once=True)
    with pytest.raises(EraseError, match="pipeline other reads topic orders and was not named"):
        erase([shop], spark=spark)
    other.sink("told", other.views["others"], "topic:told")
    with pytest.raises(NotSupported, match="what its sinks told were sent is not erased"):
        erase([shop, other], spark=spark)
    assert rows(shop) == before
    with Register(register_of(shop.log)) as register:
        assert register.step("begun") is None


def test_a_topic_that_nobody_declares_keeps_the_request_waiting_until_settings_do(
    shop: Pipeline, spark: SparkSession
) -> None:
    folder, before = Path(shop.checkpoint).parent, rows(shop)
    with SqliteLog(folder / "log.db") as log:
        log.create_topic("logins")
        log.append("logins", [Event(json.dumps({"user": USER, "ip": "10.0.0.1"}).encode())])
    request([shop], ANN)
    with pytest.raises(StillThere, match="still found in log, topic logins/0"):
        erase([shop], spark=spark)
    from millstream.config import ErasedTopic

    outside = sources_outside({"logins": ErasedTopic("user string, ip string", {"user": "user"}, ["ip"])})
    done = erase([shop], topics=outside, spark=spark)
    check_erased(shop, before, done, spark)


def test_of_fields_that_are_erased_rows_and_counts_stay(shop: Pipeline, spark: SparkSession) -> None:
    before = rows(shop)
    request([shop], ANN, "fields")
    done = erase([shop], spark=spark)
    after = rows(shop)
    assert after["per_minute"] == before["per_minute"]
    assert sorted(row["n"] for row in after["per_user"]) == sorted(row["n"] for row in before["per_user"])
    (hers,) = (row for row in after["per_user"] if row["user_id"] not in ("bob", "eve"))
    assert hers["mail"] is None
    assert done.certificate.places_after == 0
    left = bytes_below(Path(shop.checkpoint).parent)
    assert all(text.encode() not in left for text in (USER, MAIL, NAME))


def test_the_command_says_where_they_were(shop: Pipeline, spark: SparkSession) -> None:
    folder = Path(shop.checkpoint).parent
    file = folder / "shop.py"
    file.write_text(
        f"from pathlib import Path\nfrom tests.erase.world import define\nshop = define(Path({str(folder)!r}))\n"
    )
    log = ["--log", f"sqlite:{folder}/log.db"]

    def told(*arguments: str) -> Any:
        done = CliRunner().invoke(cli, [*log, *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    told("erase", "request", str(file), "--subject", f"user={USER}")
    assert "topic orders, by its columns" in told("erase", "run", str(file), "--dry-run")
    done = json.loads(told("erase", "run", str(file), "--json"))
    assert (done["before"] >= 20, done["after"]) == (True, 0)
    assert Path(done["path"]).exists()
    status = json.loads(told("erase", "status", "--json"))
    assert [each["outcome"] for each in status["requests"]] == ["erased"]
    assert status["audit"]["hash"] == done["audit"]
    del spark
