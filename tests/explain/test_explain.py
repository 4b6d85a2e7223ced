"""An explanation says what the chain does: every kernel in words, state and its end, what is shared, and as a picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args
from xml.etree import ElementTree

import pytest

from millstream import Pipeline, Relation
from millstream.errors import PlanError, UnknownView
from millstream.explain.explain import condition, explain, explain_chain
from millstream.explain.report import Explanation, Step
from millstream.explain.svg import svg
from millstream.frame import rows, span
from millstream.plan import spec as specs
from millstream.plan.build import Chain, Feed, Operator, ViewPlan, build_chain
from millstream.relation import properties
from millstream.relation.nodes import Frame, Look, Node, inputs_of
from millstream.relation.pattern import Search, Variable
from millstream.window import hopping, session, sliding, tumbling

HOUR = 3_600_000_000
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
SALES = SHOP.stream("sales", "buyer long, price double, sold timestamp", time="sold")
USERS = SHOP.table("users", "id long, country string", key="id")
PER_MINUTE = CLICKS.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)", total="sum(amount * 2)")
COUNTED = CLICKS.group_by("user").agg(n="count(*)")
NEAR = CLICKS.join(SALES, on="user = buyer", within=("-5 minutes", "1 hour"))
THEN = CLICKS.join(USERS, on="user = id", as_of="at")
NOW = CLICKS.join(USERS, on="user = id", latest=True)


def same(rows: Any) -> Any:
    return rows


RELATIONS = {
    "plain": CLICKS.where("page = 'a'").select("upper(page) AS p"),
    "table": USERS.where("id > 3"),
    "tumbling": PER_MINUTE,
    "hopping": CLICKS.group_by("page", hopping("at", "5 minutes", "1 minute")).agg(n="count(*)"),
    "session": CLICKS.group_by("user", session("at", "30 minutes")).agg(n="count(*)", pages="collect_list(page)"),
    "sliding": CLICKS.group_by("user", sliding("at", "30 minutes")).agg(n="count(*)"),
    "counted": COUNTED,
    "distinct": CLICKS.select("page").distinct(),
    "ranked": PER_MINUTE.select("page", "window_start", "n * 2 AS m").where("m > 3").top(3, by="m DESC", per="window_start"),
    "best": CLICKS.top(3, by="amount DESC", per="user"),
    "lagged": CLICKS.over("user", order="at").add(prev="lag(amount)"),
    "framed": CLICKS.over("user", order="at", frame=span("1 second")).add(s="sum(amount)"),
    "rows": CLICKS.over("user", order="at", frame=rows(2)).add(s="sum(amount)"),
    "numbered": CLICKS.over("user", order="amount").add(n="row_number()"),
    "once": CLICKS.deduplicate("user"),
    "soon": CLICKS.deduplicate("user", within="10 minutes"),
    "union": CLICKS.select("user", "at").union(SALES.select("buyer AS user", "sold AS at")),
    "exploded": CLICKS.explode("tags", as_="tag"),
    "history": USERS.history(),
    "unpivoted": USERS.unpivot("id", "country", "part", "word"),
    "matched": CLICKS.match("A B+", {"B": "B.amount > A.amount"}, {"n": "count(B.*)"}, partition="user", order="at", within="1 hour"),
    "numbered matches": CLICKS.match("A B+", {"B": "B.amount > A.amount"}, {"n": "MATCH_NUMBER()"}, partition="user", order="at", within="1 hour"),
    "falls": CLICKS.match("A B+", {"B": "amount < PREV(amount)"}, {"n": "B.amount"}, partition="user", order="at", within="1 hour"),
    "matched tables": USERS.match("A B", None, {"c": "B.country"}, order="id"),
    "mapped": CLICKS.map_groups(same, key="user", schema="z long"),
    "batched": CLICKS.map_batches(same, schema="z long"),
    "near": NEAR,
    "then": THEN,
    "now": NOW,
    "tables": COUNTED.join(USERS, on="user = id", how="left"),
    "hops": CLICKS.windowed(hopping("at", "5 minutes", "1 minute")),
    "highest": CLICKS.windowed(tumbling("at", "1 minute")).top(1, by="amount DESC", per="window_end", ties="rank"),
    "numbered in windows": CLICKS.windowed(tumbling("at", "1 minute")).over(["window_start", "page"], order="amount").add(n="row_number()"),
    "counted in windows": CLICKS.windowed(tumbling("at", "1 minute")).group_by("page", "window_start AS s").agg(n="count(*)"),
    "behind": NEAR.group_by("page", tumbling("at", "1 minute")).agg(s="sum(price)"),
}  # fmt: skip
SAMPLES: tuple[specs.Spec, ...] = (
    specs.Changelog(("id",), ("name",)),
    specs.Reduce(("page",), (specs.Measure("n", "count", ()),)),
    specs.Session(("user",), (), "at", HOUR),
    specs.Top(("page",), ("page", "n"), (specs.Order("n", True),), 3),
    specs.Over(("user",), ("user", "at"), (specs.Order("at"),), (Look("n", "count", (), Frame("rows", 2, 0)),)),
    specs.Deduplicate(("id",), ("id", "at"), specs.Horizon("at")),
    specs.Pass(("a",)),
    specs.Pass(("at",), time="at", size=HOUR, every=HOUR // 2),
    specs.Unpivot(("id",), ("_a0", "b"), ("a", "b"), "name", "value"),
    specs.History(("id",), ("country",)),
    specs.Match(("user",), (), (specs.Order("at"),), (Search("falls", Variable("A"), (), ()),)),
    specs.Match(
        (), (), (specs.Order("at"),), (Search("falls", Variable("A"), (), (), within=HOUR),), specs.Horizon("at")
    ),
    specs.Hold(("at",), ("at", "window_end"), "window_end"),
    specs.Batches(("user",), (), same),
    specs.Groups(("user",), ("user",), (), same),
    specs.TableJoin("left", 1, (), ()),
    specs.IntervalJoin("inner", 1, (), (), 0, HOUR),
    specs.AsOfJoin("inner", 1, (), ()),
    specs.LatestJoin("inner", 1, (), ()),
)


def column(name: str, _side: int) -> str:
    return name


def explained(*relations: Relation, emit: Any = "changes") -> Explanation:
    views = [ViewPlan(f"v{i}", each.node, "sqlite:x", emit, ()) for i, each in enumerate(relations)]
    return explain_chain("shop", build_chain(views, buckets=4, to="sqlite:x"))


def whole() -> tuple[Chain, Explanation]:
    views = [ViewPlan(name, each.node, "sqlite:x", "changes", ()) for name, each in RELATIONS.items()]
    chain = build_chain(views, buckets=4, to="sqlite:x")
    return chain, explain_chain("shop", chain)


def kernel(*relations: Relation, emit: Any = "changes") -> Step:
    """The last kernel."""
    return explained(*relations, emit=emit).steps[-1]


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for each in inputs_of(node):
        yield from nodes(each)


# words


@pytest.mark.parametrize("kind", get_args(specs.Spec), ids=lambda kind: kind.__name__)
def test_every_kernel_is_described_in_every_respect(kind: type) -> None:
    found = [sample for sample in SAMPLES if type(sample) is kind]
    assert found, f"{kind.__name__} is new: add a sample here"
    for sample in found:
        for text in (
            sample.title(),
            sample.does(column),
            sample.keeps(column),
            sample.drops(column),
            sample.bounded_by(),
        ):
            assert isinstance(text, str)
            assert text
        assert isinstance(sample.is_bounded(), bool)
        assert ("it grows with" in sample.drops(column)) is not sample.is_bounded()


@pytest.mark.parametrize("name", RELATIONS)
def test_a_view_grows_where_one_of_its_nodes_does_and_its_text_says_how(name: str) -> None:
    found = explained(RELATIONS[name])
    (view,) = found.views
    # As of a time a table is read as its records say it, so what is kept of it is the join's.
    assert bool(view.unbounded or view.growing) is not all(map(properties.is_bounded, nodes(RELATIONS[name].node)))
    assert all(("it grows with" in step.drops) is (step.grows != "none") for step in found.steps)
    assert bool(view.unbounded) is (name in ("numbered", "once", "mapped"))
    assert ("unbounded state: view v0" in str(found)) is bool(view.unbounded)
    assert ("grows with its keys: view v0" in str(found)) is bool(view.growing)


def test_one_row_in_all_does_not_grow_unless_its_values_do() -> None:
    assert kernel(CLICKS.group_by().agg(n="count(*)", best="max(amount)")).drops == "never; it does not grow"
    assert kernel(CLICKS.group_by().agg(n="count(*)")).keeps == "one row in all: count(*)"
    assert kernel(CLICKS.top(3, by="amount")).grows == "none"
    assert kernel(CLICKS.group_by().agg(n="count(distinct user)")).grows == "keys"
    assert kernel(USERS.group_by().agg(n="max(id)")).grows == "keys"
    assert kernel(USERS.top(3, by="id")).grows == "keys"


def test_windows_above_a_join_go_by_their_names_below_it_too() -> None:
    renamed = CLICKS.select("user", "page", "at AS clicked").join(USERS, on="user = id", as_of="clicked")
    late = renamed.windowed(tumbling("clicked", "1 minute")).where("minute(window_end) > 3")
    text = str(explained(late.group_by("page", "window_start").agg(n="count(*)", m="max(window_end)")))
    assert "takes    rows where minute(window_end) > 3" in text
    assert "by page, window_start: n = count(*), m = max(window_end)" in text
    assert "tumbling(at, 1 minute)" in text
    assert "pmod" not in text


@pytest.mark.parametrize(
    ("relation", "does", "keeps", "drops"),
    [
        (
            PER_MINUTE,
            "by page, tumbling(at, 1 minute): n = count(*), total = sum(amount * 2)",
            "one row for each page and window: count(*), sum(amount * 2)",
            "when the mark reaches window_end + 1 minute",
        ),
        (
            CLICKS.group_by("lower(page) AS p").agg(people="count(distinct user)"),
            "by lower(page) AS p: people = count(DISTINCT user)",
            "one row for each p: how many rows it has; and each distinct user, for count(DISTINCT user)",
            "never: it grows with the groups",
        ),
        (
            USERS.group_by("country").agg(last="max(id)"),
            "by country: last = max(id)",
            "one row for each country: how many rows it has; and every id, because rows can be taken back",
            "when a group has no rows; else never: it grows with the groups",
        ),
        (
            RELATIONS["best"],
            "the first 3 by amount DESC of each user",
            "the best 3 rows of each user: nothing is taken back",
            "never: it grows with the groups",
        ),
        (
            RELATIONS["ranked"],
            "the first 3 by n * 2 DESC of each window_start",
            "every row, because rows can be taken back and the next best must be at hand",
            "when the mark is beyond window_start + 2 minutes",
        ),
        (
            RELATIONS["highest"],
            "those of rank up to 1 by amount DESC of each window_end",
            "the rows of rank up to 1 of each window_end: nothing is taken back",
            "when the mark is beyond window_end + 1 minute",
        ),
        (
            RELATIONS["numbered in windows"],
            "each row among rows of equal window_start, page, in the order of amount: n = row_number()",
            "every row of each window_start and page, as long as any of them may change",
            "when the mark is beyond window_start + 2 minutes",
        ),
        (
            RELATIONS["counted in windows"],
            "by page, window_start AS s: n = count(*)",
            "one row for each page and s: count(*)",
            "when the mark is beyond window_start + 2 minutes",
        ),
        (
            RELATIONS["hops"],
            "each row once for each window of hopping(at, 5 minutes, every 1 minute)",
            "nothing",
            "nothing to drop",
        ),
        (
            RELATIONS["session"],
            "by user, session(at, 30 minutes): n = count(*), pages = collect_list(page)",
            "one row for each user and session: count(*); and every page, for collect_list(page)",
            "when the mark is beyond window_end + 1 minute",
        ),
        (
            RELATIONS["framed"],
            "each row among rows of equal user, in the order of at: s = sum(amount) over range 1 second before, 0 seconds after",
            "rows that can still change, and those that they look at",
            "when the mark is beyond at + 1 minute 1 second",
        ),
        (
            RELATIONS["lagged"],
            "each row among rows of equal user, in the order of at: prev = lag(amount, 1)",
            "rows that can still change, and those that they look at, up to 1 row away",
            "when the mark is beyond at + 1 minute, but the last row of each key never: it grows with the keys",
        ),
        (
            RELATIONS["soon"],
            "the first of each user by at, and again when more than 10 minutes after it",
            "the rows of each user that count, for 10 minutes; repeats as long as an earlier row may come",
            "when the mark is beyond at + 11 minutes",
        ),
        (
            NEAR,
            "inner join on user = buyer, sold − at from −5 minutes to 1 hour",
            "rows of both sides until no partner can come any more: the other side's mark tells",
            "the left when the right's mark is beyond at + 1 hour, the right when the left's mark is beyond sold + 6 minutes",
        ),
        (
            NOW,
            "inner join on user = id, with the table as it is when a row comes",
            "every row of the table, and none of the stream: what was answered is not corrected",
            "when a row of the table is taken back; else never: it grows with the table",
        ),
    ],
)  # fmt: skip
def test_a_kernel_says_what_it_does_what_it_keeps_and_until_when(
    relation: Relation, does: str, keeps: str, drops: str
) -> None:
    step = kernel(relation)
    assert (step.does, step.keeps, step.drops) == (does, keeps, drops)


def test_a_final_view_says_when_a_row_appears() -> None:
    assert kernel(PER_MINUTE, emit="final").does.endswith("; a row appears when the mark reaches window_end")
    assert kernel(RELATIONS["soon"], emit="final").does.endswith("; a row appears when the mark is beyond at")
    assert "appears" not in kernel(PER_MINUTE).does
    rows = CLICKS.windowed(tumbling("at", "1 minute"))
    assert kernel(RELATIONS["highest"], emit="final").does.endswith("; a row appears when the mark reaches window_end")
    by_start = kernel(rows.top(1, by="amount", per="window_start"), emit="final")
    assert by_start.does.endswith("; a row appears when the mark reaches window_start + 1 minute")
    waits = kernel(rows, emit="final")
    assert (waits.does, waits.keeps, waits.drops) == (
        "the rows of windows that are over; a row appears when the mark reaches window_end",
        "the rows of windows that are not over yet",
        "when the mark reaches window_end",
    )


def test_a_feed_says_how_it_is_judged_and_what_admission_keeps() -> None:
    pipeline = Pipeline("devices")
    numbered = pipeline.stream("events", "who string, nth long", sequence=("who", "nth"))
    pipeline.view("all_events", numbered)
    (feed,) = explain(pipeline).steps
    assert (feed.stage, feed.keeps, feed.grows) == ("admission", "the highest number of each producer", "keys")
    feed = explained(CLICKS).steps[0]
    assert "web.clicks" in feed.does
    assert (
        feed.marks
        == "each watermark is 10 seconds behind the newest at; later rows are let in and correct, up to 1 minute more"
    )
    assert explained(PER_MINUTE).steps[0].marks == f"{feed.marks}; its mark is the least of them"
    assert (explained(USERS).steps[0].stage, explained(USERS).steps[0].keeps) == ("packing", "nothing")


def test_marks_and_holds_are_told_where_they_matter() -> None:
    assert kernel(NEAR).marks == "takes the marks of the left and the right"
    near = explained(RELATIONS["behind"]).steps[2]
    assert (
        near.marks == "takes the marks of the left and the right and passes on the least, that of the right less 1 hour"
    )
    assert kernel(THEN).marks == "takes the mark of the left"
    assert kernel(COUNTED).marks == ""


def test_expressions_are_told_where_they_run() -> None:
    text = str(explained(RELATIONS["ranked"]))
    assert "takes    amount * 2 (Spark SQL, before the kernels)" in text
    assert "takes    rows where (n * 2) > 3 (compiled, between kernels)" in text
    text = str(explained(NEAR.where("price > amount").select("price * amount AS x")))
    assert "takes    rows where price > amount (Spark SQL, before the sink)" in text
    assert "takes    price * amount AS x (Spark SQL, before the sink)" in text
    text = str(explained(USERS.where("id > 3").where("country = 'de'")))
    assert "takes    rows where id > 3 AND country = 'de'\n" in text  # found out at the feed, looked at here
    assert "takes    id > 3 AND country = 'de' (Spark SQL, before the kernels)" in text
    text = str(explained(THEN.where("country IS NULL OR amount > 1").group_by("page").agg(n="count(*)")))
    assert "takes    rows where country IS NULL OR amount > 1 (compiled, between kernels)" in text
    assert condition("coalesce((a), b)") == "coalesce((a), b)"


def test_a_column_of_an_odd_name_is_not_an_expression() -> None:
    odd = Pipeline("odd").stream("odd", "`unit price` double, at timestamp", time="at")
    for relation in (odd, odd.group_by("`unit price`").agg(n="count(*)")):
        assert "Spark SQL" not in str(explained(relation))


def test_what_is_shared_is_told_once_with_who_shares_it() -> None:
    text = str(explained(PER_MINUTE, PER_MINUTE.where("n > 3"), COUNTED))
    assert text.count("by page, tumbling(at, 1 minute)") == 2
    assert "as in view v0" in text
    assert "shared   with v1\n" in text
    assert "shared   with v1, v2\n" in text
    own = str(explained(COUNTED.join(CLICKS.group_by("user").agg(m="max(amount)"), on="user")))
    assert "stream clicks, as above" in own


def test_a_join_with_the_latest_is_named_as_not_replayable() -> None:
    found = explained(NOW, THEN)
    assert "not replayable: view v0, by join with the latest" in str(found)
    assert [bool(view.not_replayable) for view in found.views] == [True, False]
    assert "not replayable" not in str(found.only("v1"))


def test_the_summary_counts_topics_stages_kernels_and_views() -> None:
    text = str(explained(RELATIONS["ranked"], COUNTED))
    assert text.startswith(
        "pipeline shop: reads 1 topic (web.clicks); 3 stages (admission, stage 1, stage 2); 3 kernels of 4 buckets; 2 views\n"
    )
    assert str(explained(USERS)).startswith(
        "pipeline shop: reads 1 topic (users); 1 stage (stage 1); 1 kernel of 4 buckets; 1 view\n"
    )


def test_the_tree_has_the_sources_above_what_they_flow_into() -> None:
    lines = str(explained(RELATIONS["behind"])).split("\n")
    shown = [re.sub(r":.*", "", line) for line in lines if re.match(r"[ │]*[┌├]─|view", line)]
    assert shown == [
        "      ┌─ stream clicks",
        "      ├─ stream sales",
        "   ┌─ join of streams",
        "┌─ aggregate",
        "view v0",
    ]


def test_one_view_is_explained_alone_and_an_unknown_one_refused() -> None:
    whole_pipeline = explained(PER_MINUTE, NOW)
    found = whole_pipeline.only("v0")
    assert (found.topics, [view.name for view in found.views]) == (("web.clicks",), ["v0"])
    assert [step.title for step in found.steps] == ["stream clicks", "aggregate"]
    assert {arrow.target for arrow in found.arrows} == {found.steps[1].number, found.views[0].number}
    with pytest.raises(UnknownView, match="no view v9 in pipeline shop; there are v0, v1"):
        whole_pipeline.only("v9")


def test_a_pipeline_without_views_is_refused() -> None:
    with pytest.raises(PlanError, match="at least one view"):
        explain(Pipeline("empty"))


def test_a_view_that_is_kept_nowhere_says_so() -> None:
    pipeline = Pipeline("passing", to="sqlite:views.db")
    pipeline.view("v", pipeline.stream("s", "k long"), to="nowhere")
    found = explain(pipeline)
    assert "stored   nowhere: only its changes go on, a row known by topic, partition and offset" in str(found)
    assert "kept nowhere" in svg(found)
    assert "views.db" not in str(found) + svg(found)


def test_late_rows_have_a_view_of_their_own() -> None:
    pipeline = Pipeline("late")
    pipeline.view("v", pipeline.stream("s", "k long, at timestamp", time="at", late="route"))
    found = explain(pipeline)
    assert [view.name for view in found.views] == ["v", "s_late"]
    assert "takes    the rows that came too late, and no others" in str(found)
    assert svg(found).count('class="arrow late"') == 1


def test_there_is_a_step_for_every_feed_and_kernel_and_an_arrow_for_every_port() -> None:
    chain, found = whole()
    makers: list[Feed | Operator] = [*chain.feeds, *chain.operators]
    assert [step.number for step in found.steps] == [each.number for each in makers]
    ports = sorted((each.number, port.target, port.side) for each in makers for port in each.ports)
    assert sorted((arrow.source, arrow.target, arrow.side) for arrow in found.arrows) == ports


def test_no_name_of_ours_reaches_the_reader() -> None:
    text = str(whole()[1])
    assert re.findall(r"(?<![\w.])_[a-z]\d*\b", text) == []
    assert "unix_micros" not in text


# the picture


NS = "{http://www.w3.org/2000/svg}"


def boxes(root: ElementTree.Element) -> dict[int, tuple[float, float, float, float]]:
    """The left, top, right and bottom of every box."""
    found = {}
    for group in root.iter(f"{NS}g"):
        rect = group.find(f"{NS}rect")
        assert rect is not None
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        found[int(group.attrib["id"][1:])] = (x, y, x + width, y + height)
    return found


def test_the_picture_has_a_box_for_every_operator_and_an_arrow_for_every_port() -> None:
    _, found = whole()
    root = ElementTree.fromstring(svg(found))
    numbers = [step.number for step in found.steps] + [view.number for view in found.views]
    assert sorted(boxes(root)) == sorted(numbers)
    drawn = [
        tuple(int(path.attrib[f"data-{name}"]) for name in ("from", "to", "side"))
        for path in root.iter(f"{NS}path")
        if path.attrib["class"].startswith("arrow")
    ]
    assert sorted(drawn) == sorted((arrow.source, arrow.target, arrow.side) for arrow in found.arrows)
    assert root.find(f"{NS}rect[@class='ground']") is not None


def test_boxes_do_not_overlap_and_hold_their_text_and_lie_inside_the_picture() -> None:
    root = ElementTree.fromstring(svg(whole()[1]))
    placed = list(boxes(root).values())
    for i, (left, top, right, bottom) in enumerate(placed):
        assert 0 <= left < right <= float(root.attrib["width"])
        assert 0 <= top < bottom <= float(root.attrib["height"])
        for other in placed[:i]:
            assert right < other[0] or other[2] < left or bottom < other[1] or other[3] < top
    for group in root.iter(f"{NS}g"):
        left, top, right, bottom = boxes(root)[int(group.attrib["id"][1:])]
        for text in group.iter(f"{NS}text"):
            end = float(text.attrib["x"]) + len(text.text or "") * 12 * 0.602
            assert left < float(text.attrib["x"]) < end < right
            assert top < float(text.attrib["y"]) < bottom


def test_an_arrow_starts_and_ends_at_its_boxes_and_runs_through_none() -> None:
    root = ElementTree.fromstring(svg(whole()[1]))
    placed = boxes(root)
    lanes = 0
    for path in root.iter(f"{NS}path"):
        if not path.attrib["class"].startswith("arrow"):
            continue
        source, target = (placed[int(path.attrib[f"data-{name}"])] for name in ("from", "to"))
        numbers = [float(number) for number in re.findall(r"[\d.]+", path.attrib["d"])]
        assert numbers[0] == source[2]
        assert source[1] < numbers[1] < source[3]
        assert numbers[-2] == target[0]
        assert target[1] < numbers[-1] < target[3]
        for x, y, end in re.findall(r"([\d.]+) ([\d.]+)H([\d.]+)", path.attrib["d"]):
            lanes += 1
            for left, top, right, bottom in placed.values():
                assert float(end) < left or right < float(x) or not top < float(y) < bottom
    assert lanes


def test_the_text_of_a_picture_is_escaped_and_long_names_are_broken() -> None:
    name = "x" * 63
    relation = CLICKS.where("page <> '<a> & \"b\" \x01' AND amount < 3").group_by(f"page AS {name}").agg(n="count(*)")
    view = ViewPlan(name, relation.where("n < 3").select(name, "n < 4 AS few").node, "sqlite:x", "changes", ())
    root = ElementTree.fromstring(svg(explain_chain("shop", build_chain([view], buckets=4, to="sqlite:x"))))
    said = " ".join(text for element in root.iter() for text in [element.text or ""])
    assert "page <> '<a> & \"b\" \N{REPLACEMENT CHARACTER}' AND amount < 3" in said
    assert "n < 4 AS few" in said
    assert max(len(text.text or "") for group in root.iter(f"{NS}g") for text in group.iter(f"{NS}text")) <= 40


def test_where_changes_go_is_told_with_how_surely() -> None:
    shop = Pipeline("shop")
    users = shop.table("users", "id long, country string", key="id")
    view = shop.view("people", users)
    shop.sink("find", view, "search:people.db?columns=country")
    shop.sink("lake", view, "delta:lake")
    shop.sink("near", view, "redis://:${env:WORD}@h:1/0?ttl=90m")
    shop.sink("far", view, "opensearch://h:1/people")
    shop.sink("bell", view, print, mode="at_most_once")
    text = str(explain(shop))
    assert "  sends    to search:people.db?columns=country as a text index, exactly once (sink find)\n" in text
    assert "as a Delta table, exactly once (sink lake)" in text
    assert "?ttl=90m as a cache: a row is gone 1 hour 30 minutes after it was written last, exactly once" in text
    assert "as documents, which a repeat does not change, at least once (sink far)" in text
    assert "to print() as changes with ids, at most once (sink bell)" in text


def test_on_kafka_it_says_by_which_times_batches_are_cut() -> None:
    for log, said in (("kafka://localhost:9092", True), ("sqlite:shop.db", False)):
        shop = Pipeline("shop", log=log)
        shop.view("all", shop.stream("clicks", "page string"))
        assert ("message.timestamp.type=CreateTime by the times of its producers" in str(explain(shop))) is said


def test_who_is_told_of_matches_that_may_be_taken_back_is_warned_of() -> None:
    def text(emit: Any, to: Any) -> str:
        shop = Pipeline("shop")
        clicks = shop.stream("clicks", "user long, at timestamp", time="at")
        found = clicks.match(
            "A B+", None, {"id": "MATCH_ID()", "n": "count(*)"}, partition="user", order="at", within="1 hour"
        )
        shop.sink("out", shop.view("v", found.where("n > 1"), emit=emit), to)
        return str(explain(shop))

    warning = "matches may be taken back: view v tells topic:alerts of each as it changes"
    assert warning in text("changes", "topic:alerts")
    assert "view v tells print() of each" in text("changes", print)
    assert "may be taken back" not in text("final", "topic:alerts")
    assert "may be taken back" not in text("changes", "search:found.db?columns=id")
