"""What checkpoints and views store of a definition stays as it is, byte for byte: its fingerprint, its layout, its kernels."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, get_args

import pytest

from millstream import Pipeline, Relation, pattern
from millstream.frame import rows, span
from millstream.plan import spec as specs
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.plan.state_layout import kernels, layout
from millstream.relation import nodes
from millstream.relation import pattern as patterns
from millstream.relation.fingerprint import STORED, canonical, fingerprint, stored_name
from millstream.relation.nodes import Emit, Node, Place, Window
from millstream.window import hopping, session, sliding, tumbling

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "stored_names.json").read_text())
"""Written once. What is new may be added; what is there is in people's checkpoints."""

SHOP = Pipeline("shop")
CLICKS = SHOP.stream(
    "clicks",
    "user long, page string, amount double, tags array<string>, at timestamp",
    topic="web.clicks",
    time="at",
    delay="10 seconds",
    late="correct",
    lateness="1 minute",
)
SALES = SHOP.stream(
    "sales", "buyer long, price double, sold string", time="CAST(sold AS timestamp) AS at", idle="1 hour"
)
NUMBERED = SHOP.stream("numbered", "device string, number long, value double", sequence=("device", "number"))
USERS = SHOP.table("users", "id long, country string", key="id")
PER_MINUTE = CLICKS.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)", total="sum(amount * 2)")
COUNTED = CLICKS.group_by("user").agg(n="count(*)")
MINUTES = CLICKS.windowed(tumbling("at", "1 minute"))
PAIRS = CLICKS.join(SALES.select("buyer", "price", "at AS sold_at"), on="user = buyer", within=("-5 minutes", "1 hour"))

MATCHED = CLICKS.match(
    "A B*? {- C -} D{2,3}",
    {"B": "amount > PREV(amount, 2)", "D": "D.amount > avg(U.amount) AND page = 'a'"},
    {
        "id": "MATCH_ID()",
        "n": "MATCH_NUMBER()",
        "first": "FIRST(A.at)",
        "last": "FINAL LAST(U.amount, 1)",
        "c": "CLASSIFIER(U)",
    },
    partition="user",
    order="at",
    rows="all",
    skip="to last B",
    within="5 minutes",
    subset={"U": ["A", "B"]},
)
RENAMED = CLICKS.select("user", "page", "at AS clicked")
THEN = RENAMED.join(USERS, on="user = id", as_of="clicked").windowed(tumbling("clicked", "1 minute"))


def same(frame: Any) -> Any:
    return frame


RELATIONS: dict[str, Relation] = {
    "plain": CLICKS.where("page = 'a'").select("upper(page) AS p"),
    "numbered": NUMBERED.where("value > 1").group_by("device").agg(n="count(*)"),
    "table": USERS.where("id > 3"),
    "tumbling": PER_MINUTE,
    "hopping": CLICKS.group_by("page", hopping("at", "5 minutes", "1 minute")).agg(n="count(*)"),
    "session": CLICKS.group_by("user", session("at", "30 minutes")).agg(n="count(*)", pages="collect_list(page)"),
    "sliding": CLICKS.group_by("user", sliding("at", "30 minutes")).agg(n="count(*)"),
    "counted": COUNTED,
    "middle": CLICKS.group_by("user").agg(m="percentile(amount, 0.5)", last="max_by(page, at)"),
    "said": SALES.group_by("buyer", tumbling("at", "1 hour")).agg(s="sum(price)"),
    "ranked": PER_MINUTE.select("page", "window_start", "n * 2 AS m").where("m > 3").top(3, by="m DESC", per="window_start"),
    "lagged": CLICKS.over("user", order="at").add(prev="lag(amount, 2)"),
    "framed": CLICKS.over("user", order="at", frame=span("1 second")).add(s="sum(amount)"),
    "rows": CLICKS.over("user", order="amount", frame=rows(2)).add(s="sum(amount)"),
    "once": CLICKS.deduplicate("user"),
    "soon": CLICKS.deduplicate("user", within="10 minutes"),
    "union": CLICKS.select("user", "at").union(SALES.select("buyer AS user", "at")),
    "exploded": CLICKS.explode("tags", as_="tag").group_by("tag").agg(n="count(*)"),
    "history": USERS.history().where("valid_to IS NULL"),
    "unpivoted": USERS.unpivot("id", ["country", "upper(country) AS upper"], "part", "word").group_by("part").agg(n="count(*)"),
    "matched": MATCHED,
    "sequence": pattern(click=CLICKS, sale=SALES.select("buyer AS user", "price", "at"), on="user").then("click").times(1, 2).followed_by("sale").not_followed_by("click", within="1 hour").near().select(n="count(click.*)", price="sale.price"),
    "several": CLICKS.match_any({"one": {"pattern": "^ A | B", "measures": {"x": "A.amount"}}, "two": {"pattern": "A {,3} B $", "measures": {"x": "sum(amount)"}}}, order="at"),
    "mapped": CLICKS.map_groups(same, key="user", schema="z long"),
    "batched": CLICKS.map_batches(same, schema="page string, at timestamp").group_by("page", tumbling("at", "1 minute")).agg(n="count(*)"),
    "pairs": PAIRS,
    "then": CLICKS.join(USERS, on="user = id", as_of="at"),
    "now": CLICKS.join(USERS, on="user = id", latest=True),
    "tables": COUNTED.join(USERS, on="user = id", how="left"),
    "common": COUNTED.join(USERS.select("id AS user", "country"), on="user"),
    "windows": MINUTES,
    "hops": CLICKS.windowed(hopping("at", "5 minutes", "1 minute")),
    "highest": MINUTES.top(1, by="amount DESC", per="window_end", ties="rank"),
    "ordered": MINUTES.over(["window_start", "page"], order="amount").add(n="row_number()"),
    "windows alone": MINUTES.group_by("window_start").agg(n="count(*)").join(MINUTES.group_by("window_start", "page").agg(m="count(*)"), on="window_start"),
    "windows of a join alone": THEN.group_by("window_start").agg(n="count(*)").join(THEN.group_by("window_start", "page").agg(m="count(*)"), on="window_start"),
    "windows of pairs": PAIRS.windowed(tumbling("at", "1 minute")).where("minute(window_end) > 3").group_by("page", "window_start").agg(n="count(*)"),
}  # fmt: skip


def chain_of(relation: Relation, emit: Emit) -> Chain:
    return build_chain([ViewPlan("v", relation.node, "sqlite:x", emit, ())], buckets=4, to="sqlite:x")


def stored(relation: Relation, emit: Emit) -> dict[str, Any]:
    chain = chain_of(relation, emit)
    return {"fingerprint": fingerprint(relation.node), "layout": layout(chain), "kernels": sorted(kernels(chain))}


def kinds(value: Any) -> set[str]:
    """The names of all that is in a canonical value."""
    if isinstance(value, dict):
        return {value["is"]}.union(*map(kinds, value.values())) if "is" in value else set()
    return set().union(*map(kinds, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("emit", get_args(Emit))
@pytest.mark.parametrize("name", RELATIONS)
def test_what_is_stored_of_a_definition_is_what_it_was(name: str, emit: Emit) -> None:
    assert stored(RELATIONS[name], emit) == GOLDEN["definitions"][f"{name}, {emit}"]


def test_there_is_a_definition_of_every_kind_of_node_and_kernel() -> None:
    found = set().union(*(kinds(canonical(each.node)) for each in RELATIONS.values()))
    assert {kind.tag for kind in (*get_args(Node), *get_args(Window))} <= found
    kernels = {type(each.spec) for name in RELATIONS.values() for each in chain_of(name, "final").operators}
    assert set(get_args(specs.Spec)) <= kernels


# names


def stored_classes(module: ModuleType) -> list[Any]:
    """The classes that a module has for others, where they get into what is stored; a place never does."""
    public = getattr(module, "__all__", None)
    found = [
        each
        for name, each in vars(module).items()
        if isinstance(each, type) and (name in public if public else each.__module__ == module.__name__)
    ]
    return [each for each in found if is_dataclass(each) and each is not Place]


def names(module: ModuleType) -> dict[str, list[str]]:
    """The tags of a module's classes, and what their fields are called where they are stored."""
    return {kind.tag: [stored_name(each) for each in fields(kind) if each.compare] for kind in stored_classes(module)}


@pytest.mark.parametrize("module", [nodes, specs, patterns], ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_class_has_a_tag_of_its_own_and_what_it_is_called_stays(module: ModuleType) -> None:
    found = stored_classes(module)
    assert [each.__name__ for each in found if "tag" not in vars(each)] == []
    assert [tag for tag, times in Counter(each.tag for each in found).items() if times > 1] == []
    here = names(module)
    for tag, there in GOLDEN["names"][module.__name__.rpartition(".")[2]].items():
        assert set(there) <= set(here[tag]), f"{tag} is stored with these names: give the field metadata={{STORED: …}}"


def test_a_class_and_a_field_that_are_renamed_are_stored_as_before() -> None:
    @dataclass(frozen=True, slots=True)
    class Before:
        tag: ClassVar[str] = "Before"
        size: int

    @dataclass(frozen=True, slots=True)
    class After:
        tag: ClassVar[str] = "Before"
        length: int = field(metadata={STORED: "size"})

    assert canonical(After(3)) == canonical(Before(3)) == {"is": "Before", "size": 3}
    assert fingerprint(After(3)) == fingerprint(Before(3))
