"""What a test needs beyond this process, found by itself, so that ``make unit`` can leave it out.

A test needs what its fixtures give, and what is named in its own code, in that of its fixtures and of what they call in ``tests/``.
Where that does not tell, ``NEEDS`` does. A test without a mark that starts a process all the same fails.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

FIXTURES = {
    "spark": "spark",
    "kafka": "kafka",
    "secured_kafka": "kafka",
    "postgres": "postgres",
    "own_postgres": "postgres",
    "mariadb": "mariadb",
    "own_mariadb": "mariadb",
}
NAMES = {
    "KafkaBroker": "kafka",
    "KafkaCluster": "kafka",
    "MariaDbServer": "mariadb",
    "PostgresServer": "postgres",
    "RedisServer": "redis",
    "mounted": "process",
    "spark_session": "spark",
    "subprocess": "process",
}
NEEDS = {  # a folder, a file or a test of a file, below tests/
    "bench/test_capture.py": "process",
    "capture/sqlite": "process",
    "capture/test_example.py": "process",
    "cli/test_cli.py::test_a_shell_gets_its_completion": "process",
    "cli/test_cli.py::test_doctor_looks_and_says_what_is_wrong": "process",
    "cli/test_cli.py::test_doctor_says_what_can_be_done_about_the_folder_at_hand": "process",
    "cli/test_cli.py::test_no_secret_is_ever_printed": "process",
    "runtime": "spark",
    "spark": "spark",
}
LONG = {  # what computes for seconds, or asks the disk for a thousand files
    "kernel/aggregates/test_sketches.py::test_a_batch_that_runs_again_leaves_the_same_state",
    "kernel/aggregates/test_sketches.py::test_sessions_that_merge_have_one_sketch",
    "kernel/aggregates/test_sketches.py::test_windows_hold_what_came_in_them_and_are_forgotten",
    "kernel/aggregates/test_time_windows.py::test_what_comes_after_windows_keeps_no_more_than_those_that_are_open",
    "kernel/aggregates/test_time_windows.py::test_whole_chains_are_what_all_rows_give",
    "kernel/operators/test_aggregate.py::test_an_endless_stream_of_windows_keeps_no_more_state_as_it_goes_on",
    "kernel/operators/test_deduplicate.py::test_repeats_are_those_among_all_rows_whatever_the_batches",
    "kernel/operators/test_interval_join.py::test_an_endless_join_keeps_no_more_state_as_it_goes_on",
    "kernel/operators/test_interval_join.py::test_late_partners_that_are_allowed_amend",
    "kernel/operators/test_join.py::test_streams_of_one_topic_are_joined_row_by_row_for_ever",
    "kernel/operators/test_over.py::test_an_endless_stream_keeps_no_more_state_as_it_goes_on",
    "kernel/operators/test_over.py::test_rows_by_time_are_right_though_the_old_ones_are_forgotten",
    "kernel/operators/test_session.py::test_an_endless_stream_of_sessions_keeps_no_more_state_as_it_goes_on",
    "kernel/operators/test_session.py::test_sessions_are_those_of_all_rows_whatever_the_batches",
    "kernel/test_final.py::test_the_first_of_a_window_appear_when_it_is_over",
    "kernel/test_gate.py::test_heartbeats_raise_the_watermark_alike_there_and_where_batches_are_cut_otherwise",
    "kernel/test_gate.py::test_records_are_judged_alike_where_they_are_read_and_in_a_stage",
    "kernel/test_late_table.py",
    "kernel/test_mutants.py",
    "kernel/test_plan_mutants.py",
    "kernel/test_plans.py",
    "kernel/test_window_mutants.py",
    "log/embedded/test_scan.py",
    "log/test_model.py",
    "plan/test_fuse.py::test_a_join_runs_beside_its_sides",
    "plan/test_fuse.py::test_joins_that_share_their_sides_are_the_same_in_every_batch",
    "plan/test_fuse.py::test_views_are_the_same_in_every_batch",
    "plan/test_pushdown.py::test_views_are_the_same_wherever_conditions_are_computed",
    "sink/test_files.py::test_many_rows_at_once",
    "sql/test_answers.py::test_a_random_query_answers_what_duckdb_answers",
    "sql/test_answers.py::test_rows_with_their_windows_answer_what_duckdb_answers",
    "store/test_model.py",
    "vault/test_model.py",
}
MARKS = {"peers", *FIXTURES.values(), *NAMES.values(), *NEEDS.values()}
_TESTS = Path(__file__).parent


def needs_of(item: pytest.Item) -> set[str]:
    """Give the marks of a test."""
    if not isinstance(item, pytest.Function):
        return set()
    place = item.path.relative_to(_TESTS).as_posix()
    places = (f"{place}::{item.originalname}", place, *map(str, Path(place).parents))
    needs = {NEEDS[each] for each in places if each in NEEDS} | {"long" for each in places if each in LONG}
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    fixtures = item._fixtureinfo
    named = {*fixtures.names_closure, *(value for value in parameters if isinstance(value, str))}
    needs |= {FIXTURES[name] for name in named if name in FIXTURES}
    used = [found[-1].func for found in fixtures.name2fixturedefs.values()]
    seen: set[CodeType] = set()
    for function in (item.function, *used):
        for code in _codes(function, seen):
            needs |= {NAMES[name] for name in code.co_names if name in NAMES}
            if "getfixturevalue" in code.co_names and not parameters:  # else the parameter says which
                needs |= {FIXTURES[name] for name in code.co_consts if isinstance(name, str) and name in FIXTURES}
    return needs


def _codes(called: Any, seen: set[CodeType]) -> Iterator[CodeType]:
    """The code of a function of ours, and of all that it calls in ``tests/``."""
    called = inspect.unwrap(called) if callable(called) else called
    if not str(getattr(called, "__module__", "")).startswith("tests."):
        return
    if inspect.isclass(called):
        for each in vars(called).values():
            yield from _codes(each, seen)
    elif (code := getattr(called, "__code__", None)) is not None:
        waiting = [code]
        while waiting:
            code = waiting.pop()
            if code in seen:
                continue
            seen.add(code)
            yield code
            waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
            for name in code.co_names:
                yield from _codes(called.__globals__.get(name), seen)


_running: list[str] = []


@contextmanager
def no_process(item: pytest.Item) -> Iterator[None]:
    """Refuse the start of a process by a test that has no mark; threads that servers have left behind may."""
    if not any(item.get_closest_marker(mark) for mark in MARKS):
        _running.append(item.nodeid)
    try:
        yield
    finally:
        _running.clear()


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _running and threading.current_thread() is threading.main_thread():
        raise AssertionError(f"{_running[0]} starts {arguments[0]!s}: say what it needs in tests/marks.py")


sys.addaudithook(_refuse)
