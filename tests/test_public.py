"""The public names."""

from __future__ import annotations

import subprocess
import sys

import millstream
import millstream.testing


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert sorted(millstream.__all__) == list(millstream.__all__)
    for name in millstream.__all__:
        assert getattr(millstream, name) is not None


def test_completion_shows_the_public_names() -> None:
    assert dir(millstream) == sorted([*millstream.__all__, "frame", "window"])
    assert dir(millstream.testing) == millstream.testing.__all__


def test_importing_all_of_it_hides_nothing_of_sparks_functions() -> None:
    from pyspark.sql import functions

    assert set(millstream.__all__) & set(dir(functions)) - {"__version__"} == set()
    assert millstream.window.tumbling("at", "1 minute").size.total_seconds() == 60
    assert millstream.frame.rows(2).before == 2


def test_spark_is_not_loaded_until_it_is_needed() -> None:
    code = "import sys, millstream; assert 'pyspark' not in sys.modules; millstream.read_batch; assert 'pyspark' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_loads_nothing_heavy_and_defining_no_spark() -> None:
    code = """
import sys, millstream
heavy = {"pyspark", "pyarrow", "polars", "pandas", "sqlglot"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
shop = millstream.Pipeline("shop")
clicks = shop.stream("clicks", "page string, at timestamp", time="at")
shop.view("per_minute", clicks.group_by(millstream.window.tumbling("at", "1 minute")).agg(n="count(*)"))
assert heavy & set(sys.modules) == {"sqlglot", "polars", "pyarrow"}, heavy & set(sys.modules)  # types are checked
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
