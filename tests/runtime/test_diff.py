"""What a changed definition would do, and stores that do not belong together; without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from millstream.errors import CheckpointMismatch
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.runtime.checkpoint import newest_entry, open_checkpoint
from millstream.runtime.diff import Gap, change_of
from millstream.runtime.setup import chain_of
from millstream.store import Entry
from millstream.window import tumbling


def shop(
    folder: Path, *, size: str = "1 minute", names: tuple[str, ...] = ("pages", "users"), name: str = "shop"
) -> Pipeline:
    made = Pipeline(name, log=f"sqlite:{folder / 'log.db'}", checkpoint=str(folder / "check"))
    clicks = made.stream("clicks", "user long, page string, at timestamp", time="at")
    views = {
        "pages": clicks.group_by("page", tumbling("at", size)).agg(n="count(*)"),
        "users": clicks.group_by("user").agg(n="count(*)"),
        "late": clicks.where("user > 3").group_by("page").agg(n="count(*)"),
    }
    for each in names:
        made.view(each, views[each])
    return made


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A folder in which the first definition has begun to run."""
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("clicks", 2)
        log.append("clicks", [Event(b"{}", key=b"%d" % number) for number in range(10)])
    first = shop(tmp_path)
    open_checkpoint(tmp_path / "check", first, chain_of(first), {"clicks": {0: 0, 1: 0}}, None, 2)
    return tmp_path


def test_nothing_changes_for_the_same_definition_in_another_order(ran: Path) -> None:
    for names in (("pages", "users"), ("users", "pages")):
        change = change_of(shop(ran, names=names))
        assert change.views == {"pages": "same", "users": "same"}
        assert (change.rebuild, change.made, len(change.kept), change.records) == (False, (), 2, 10)


def test_a_changed_view_is_told_and_the_state_of_the_other_stays_valid(ran: Path) -> None:
    change = change_of(shop(ran, size="2 minutes"))
    assert change.views == {"pages": "changed", "users": "same"}
    assert change.rebuild
    assert [("user" in text, "2 minutes" in text) for text in (*change.kept, *change.made)] == [
        (True, False),
        (False, True),
    ]


def test_new_and_removed_views_are_told(ran: Path) -> None:
    change = change_of(shop(ran, names=("late", "users")))
    assert change.views == {"late": "new", "pages": "removed", "users": "same"}
    assert change.rebuild
    assert (len(change.kept), len(change.made)) == (1, 1)


def test_before_the_first_run_everything_is_new_and_no_rebuild_is_needed(tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path / 'log.db'}") as log:
        log.create_topic("clicks", 1)
    change = change_of(shop(tmp_path))
    assert (change.began, change.rebuild, set(change.views.values())) == (False, False, {"new"})


def test_records_that_a_rebuild_would_lack_are_told(ran: Path) -> None:
    changed = shop(ran, size="2 minutes")
    kept = (ran / "check" / "millstream.json").read_bytes()
    (ran / "check" / "millstream.json").write_bytes(kept.replace(b'"0":0', b'"0":-5'))
    assert change_of(changed).gaps == (Gap("clicks", 0, -5, 0),)


def test_the_checkpoint_of_another_pipeline_is_refused(ran: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="is of pipeline shop"):
        change_of(shop(ran, name="other"))


def entry(checkpoint: str, batch: int) -> Entry:
    return Entry(checkpoint, batch, 1, {}, {}, {}, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("lasts", "newest"),
    [
        ([None, None], None),
        ([("c", 4), ("c", 4)], 4),
        ([("c", 4), ("c", 3)], 4),
        ([("c", 0), None], 0),  # killed between the two commits of the first batch
    ],
)
def test_stores_of_one_run_are_at_most_a_batch_apart(lasts: list[tuple[str, int] | None], newest: int | None) -> None:
    found = newest_entry("shop", {str(at): entry(*each) if each else None for at, each in enumerate(lasts)})
    assert (found.batch if found else None) == newest


@pytest.mark.parametrize("lasts", [[("c", 4), None], [("c", 4), ("d", 4)], [("c", 4), ("c", 2)]])
def test_stores_that_are_not_of_one_run_are_refused(lasts: list[tuple[str, int] | None]) -> None:
    with pytest.raises(CheckpointMismatch, match="do not belong together: 0 at batch 4, 1 at") as caught:
        newest_entry("shop", {str(at): entry(*each) if each else None for at, each in enumerate(lasts)})
    assert "--rebuild" in caught.value.hint
