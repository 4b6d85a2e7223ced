"""Other systems on Nexmark: what can be said without them, and, marked ``peers``, every query on each over a small folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from millstream.bench.nexmark.data import auction_of, fill, read_folder, write_folder
from millstream.bench.nexmark.oracle import QUESTIONS, Oracle
from millstream.bench.nexmark.peers import QUERIES, Outcome, answer_of, close_peers, layout, run_peer
from millstream.bench.nexmark.peers.layout import Input, aged, dealt, fill_closed, written_iso
from millstream.bench.nexmark.peers.on_flink import cause, statements, summed
from millstream.bench.nexmark.peers.on_spark import question
from millstream.bench.nexmark.queries import PATTERNS
from millstream.testing import KafkaBroker

VALUES = {"EVENTS": "'connector' = 'filesystem'", "SIDE": "file:///side", "TIME": "TIMESTAMP(3)", "STANDARD": "SQL"}
REFUSED = {"flink": set(), "flink_heap": set(), "spark": {"q4", "q6", "q9", "q15", "q16", "q18", "q19", *PATTERNS}}
WRONG = {"flink": {"q12", "cep1", "cep2"}, "flink_heap": {"q12", "cep1", "cep2"}, "spark": set()}


def lines(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


# without them


def test_every_question_is_put_to_every_peer() -> None:
    assert set(QUERIES) == set(QUESTIONS)
    for query in QUERIES:
        *views, asked = statements(query, VALUES)
        assert asked.startswith("SELECT")
        assert all(view.startswith("CREATE ") for view in views)
        assert "SELECT" in question(query).text
    assert [each.split("(")[0].split(" AS")[0].strip() for each in statements("prelude", VALUES)] == [
        "CREATE TABLE events",
        "CREATE TEMPORARY VIEW person",
        "CREATE TEMPORARY VIEW auction",
        "CREATE TEMPORARY VIEW bid",
    ]


def test_the_head_of_a_query_says_how_spark_runs_it() -> None:
    found = question("q12")
    assert (found.mode, found.key, found.closing) == ("update", ("bidder", "_window"), False)
    assert (question("q5").mode, question("q5").key, question("q5").closing) == ("append", (), True)


def test_few_events_are_one_file_for_flink(tmp_path: Path) -> None:
    made = write_folder(tmp_path / "made", 3_000)
    assert lines(dealt(made, tmp_path / "dealt")) == lines(made)
    assert len(list((tmp_path / "dealt").iterdir())) == 1


def test_many_events_are_a_file_for_each_reader_of_flink_in_their_order(tmp_path: Path) -> None:
    made = write_folder(tmp_path / "made", 40_000)
    given = lines(made)
    dealt(made, tmp_path / "dealt")
    files = [path.read_bytes().splitlines() for path in sorted((tmp_path / "dealt").iterdir())]
    place = {line: number for number, line in enumerate(given)}
    assert sorted(line for file in files for line in file) == sorted(given)
    assert [len(file) for file in files] == [20_000, 20_000]
    for file in files:
        places = [place[line] for line in file]
        assert places == sorted(places)


def test_bids_of_an_auction_are_one_readers_in_their_order(tmp_path: Path) -> None:
    made = write_folder(tmp_path / "made", 40_000)
    dealt(made, tmp_path / "dealt", by_auction=True)
    files = [path.read_bytes().splitlines() for path in sorted((tmp_path / "dealt").iterdir())]
    assert len(files) == 2
    assert sorted(line for file in files for line in file) == sorted(lines(made))
    auctions = [{auction_of(line) for line in file} - {None} for file in files]
    assert auctions[0].isdisjoint(auctions[1])
    assert min(map(len, auctions)) > 500
    place = {line: number for number, line in enumerate(lines(made))}
    assert all(places == sorted(places) for places in ([place[line] for line in file] for file in files))


def test_files_for_spark_are_as_old_as_their_names_say(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for name in ("b", "c", "a"):  # by age another order than by name
        (given / f"{name}.jsonl").write_text(f'{{"name":"{name}"}}\n')
    aged(given, tmp_path / "aged")
    files = sorted((tmp_path / "aged").glob("*/*.jsonl"), key=lambda path: path.stat().st_mtime)
    assert [json.loads(path.read_text())["name"] for path in files[:-1]] == ["a", "b", "c"]
    assert files[-1].parent.name == "closing"


@pytest.mark.parametrize(("time", "iso"), [("2026-01-01 00:00:00.000", False), ("2026-01-01T00:00:00.000Z", True)])
def test_flink_is_told_how_times_are_written(time: str, iso: bool, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"event_type": 3, "dateTime": time}) + "\n")
    assert written_iso(tmp_path) is iso


def test_the_sum_of_changes_is_what_is_left(tmp_path: Path) -> None:
    def change(op: str, row: list[int]) -> str:
        return json.dumps(
            {"before": None, "after": None, "op": op, "before" if op == "d" else "after": dict(enumerate(row))}
        )

    (tmp_path / "0").write_text("\n".join([change("c", [1, 2]), change("d", [1, 2]), change("c", [1, 3])]) + "\n")
    (tmp_path / "1").write_text("\n".join([change("c", [7, 7]), change("c", [7, 7])]) + "\n")
    assert sorted(summed(tmp_path)) == [[1, 3], [7, 7], [7, 7]]


def test_the_innermost_reason_of_java_is_told() -> None:
    error = "An error occurred while calling o1.x.\n: a.B: outer\n\tat x\nCaused by: a.C: inner\n\tat y\nCaused by: a.D: why: so\n\tat z"
    assert cause(error) == "why: so"


def test_a_rate_is_events_by_seconds() -> None:
    assert Outcome("flink", "q0", 1_000, 0.5).rate == 2_000
    assert Outcome("spark", "q4", 1_000, reason="refused: …").rate is None


def test_no_query_lies_there_unasked() -> None:
    folder = Path(layout.__file__).parent
    assert {path.stem for path in (folder / "spark").iterdir()} == set(QUERIES)
    assert {path.stem for path in (folder / "flink").iterdir()} == {*QUERIES, "prelude"}


@pytest.mark.parametrize("written", ["plain", "iso"])
def test_polars_answers_as_expected(written: str, tmp_path: Path) -> None:
    folder = plain = write_folder(tmp_path / "plain", 5_000, seed=3)
    if written == "iso":
        folder = in_iso(plain, tmp_path / "iso")
    asked = {query: answer_of("polars", query, Input(folder)) for query in QUERIES}
    with Oracle(plain) as oracle:
        wrong = {query: oracle.compare(query, answer) for query, answer in asked.items() if not isinstance(answer, str)}
    assert {query for query, answer in asked.items() if isinstance(answer, str)} == {"q10", "q12", *PATTERNS}
    assert {query: why for query, why in wrong.items() if why} == {}
    assert (run_peer("polars", "q5", Input(folder), 5_000, Input(folder)).rate or 0) > 100
    assert run_peer("polars", "q12", Input(folder), 5_000, Input(folder)).rate is None


def in_iso(plain: Path, folder: Path) -> Path:
    """The same events, their times written with a T and a Z."""
    folder.mkdir()
    text = b"\n".join(lines(plain)).decode()
    (folder / "events.jsonl").write_text(re.sub(r'"(\d{4}-\d\d-\d\d) ([\d:.]+)"', r'"\1T\2Z"', text) + "\n")
    return folder


# with them


@pytest.mark.peers
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("log", ["files", "kafka"])
@pytest.mark.parametrize("system", REFUSED)
def test_a_peer_answers_as_expected(system: str, log: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = write_folder(tmp_path / "events", 20_000, seed=3)
    given = Input(folder)
    if log == "kafka":
        broker: KafkaBroker = request.getfixturevalue("kafka")
        given = Input(folder, broker.bootstrap, f"events-{system}")
        fill(broker.url, read_folder(folder), topic=given.topic, by_auction=True)
        fill_closed(broker.url, given)
    refused, wrong = {}, {}
    try:
        with Oracle(folder) as oracle:
            for query in QUERIES:
                answer = answer_of(system, query, given)
                if isinstance(answer, str):
                    refused[query] = answer
                elif why := oracle.compare(query, answer):
                    wrong[query] = why
        outcome = run_peer(system, "q0", given, 20_000, given)
        cannot = run_peer(system, "q9", given, 20_000, given)
    finally:
        close_peers()
    assert set(refused) == REFUSED[system], refused
    assert set(wrong) == WRONG[system], wrong
    assert outcome.rate is not None
    assert outcome.rate > 100
    assert (cannot.rate is None) == ("q9" in REFUSED[system])


@pytest.mark.peers
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("system", ["flink", "spark"])
def test_times_with_a_t_and_a_z_are_read(system: str, tmp_path: Path) -> None:
    plain = write_folder(tmp_path / "plain", 3_000, seed=3)
    iso = in_iso(plain, tmp_path / "iso")
    try:
        with Oracle(plain) as oracle:
            for query in ("q0", "q5", "q9", "q10") if system == "flink" else ("q0", "q5", "q10"):
                answer = answer_of(system, query, Input(iso))
                assert not isinstance(answer, str), answer
                assert oracle.compare(query, answer) == ""
    finally:
        close_peers()
