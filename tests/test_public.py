"""The public names."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
import millstream.testing
from millstream.log import contract


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


METHODS = (
    millstream.Pipeline,
    millstream.Relation,
    millstream.View,
    millstream.Log,
    contract.Reader,
    contract.Consumer,
    contract.Worker,
    millstream.Producer,
    millstream.Vault,
    millstream.testing.Trial,
)
"""What users call methods of; a method is documented where it is promised, not again by each engine."""


def documented() -> Iterator[tuple[str, Any]]:
    """What is public and can be called, with its name: the methods of what is defined and read with, too."""
    for module in (millstream, millstream.window, millstream.frame):
        for name in module.__all__:
            if callable(each := getattr(module, name)):
                yield name, each
    for kind in METHODS:
        for name, each in vars(kind).items():
            if inspect.isfunction(each) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}", each


PUBLIC = dict(documented())
PAGES = [Path(__file__).parent.parent / "README.md", *(Path(__file__).parent.parent / "docs").rglob("*.md")]
RUN = "\n".join(
    block for page in PAGES for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
)

DOCTESTS = "\n".join(
    re.findall(r"^ *(?:>>>|\.\.\.) (.*)", "\n".join(each.__doc__ or "" for each in PUBLIC.values()), re.M)
)


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_says_what_its_parameters_are(name: str) -> None:
    said = PUBLIC[name].__doc__ or ""
    given = [each for each in inspect.signature(PUBLIC[name]).parameters if each != "self"]
    pattern = r"\b{}\b" if "." in name else ":param {}:"  # a method may say it in a sentence
    assert [each for each in given if not re.search(pattern.format(each), said)] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_public_has_an_example_that_runs(name: str) -> None:
    said, (_, dot, method) = PUBLIC[name].__doc__ or "", name.rpartition(".")
    assert ">>> " in said or re.search(rf"{re.escape(dot)}\b{method}\(", RUN + DOCTESTS)


@pytest.mark.parametrize("name", [name for name in PUBLIC if "." not in name])
def test_what_is_public_says_what_it_raises(name: str) -> None:
    said = PUBLIC[name].__doc__ or ""
    assert inspect.isclass(PUBLIC[name]) or re.search(r":raises \w+:|Raises \w+", said)


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_what_has_methods_says_what_they_raise(kind: type) -> None:
    said = "\n".join(each.__doc__ or "" for each in (kind, *vars(kind).values()))
    assert re.search(r":raises \w+:|Raises \w+|\w+ if ", said)


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
