"""Data flows one way and so do imports: a module imports only from what lies before it.

The order is the table of docs/architecture.md, so that there is one. What a module loads when it is loaded must stand above it there;
what it imports inside functions, or for types alone, may stand anywhere in its own room or above. A room is a folder of the package.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"


class Import(NamedTuple):
    """One import: from which module, of which, and whether it happens when the module is loaded."""

    importer: str
    imported: str
    at_load: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SRC.rglob("*.py"))}
MINE = sorted(name for name in MODULES if name.startswith("millstream."))
ROWS = [
    row.replace("/", ".").removesuffix(".__init__")
    for row in re.findall(r"^\| `([\w/]+)\.py` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
]
RANK = {name: rank for rank, name in enumerate(ROWS)}


def room_of(module: str) -> str:
    """The folder below the package in which a module stands, or the module itself."""
    return module.split(".")[1] if "." in module else module


PURE = [name for name in MINE if RANK.get(name, 0) < RANK["millstream.spark"]]


def imports(module: str) -> Iterator[Import]:
    """Every import of a module, those inside functions and under TYPE_CHECKING marked as such."""

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(module, alias.name, at_load) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}: imports are absolute"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    yield Import(module, whole if whole in MODULES else str(child.module), at_load)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from walk(child, at_load and not inside and not typing_only)

    return walk(ast.parse(MODULES[module].read_text()), True)


def is_above(found: Import) -> bool:
    """Whether an import goes upwards in the table. A package's own page and its modules may load each other."""
    importer, imported = found.importer, found.imported
    if imported != "millstream" and (f"{importer}.".startswith(f"{imported}.") or imported.startswith(f"{importer}.")):
        return True
    return RANK[imported] < RANK[importer] or (not found.at_load and room_of(imported) == room_of(importer))


def test_the_architecture_page_lists_every_module_once() -> None:
    assert sorted(ROWS) == sorted(name for name, path in MODULES.items() if path.read_text().strip())


@pytest.mark.parametrize("module", MINE)
def test_a_module_imports_only_from_above(module: str) -> None:
    inner = [found for found in imports(module) if found.imported.split(".")[0] == "millstream"]
    assert [found.imported for found in inner if not is_above(found)] == []


def test_the_rooms_of_the_kernel_stand_one_after_the_other() -> None:
    rooms = [room for room, _ in groupby(name.split(".")[2] for name in ROWS if name.startswith("millstream.kernel."))]
    assert len(rooms) == len(set(rooms))


def test_an_import_from_below_is_noticed() -> None:
    low, high = "millstream.kernel.host", "millstream.kernel.kernel"
    assert is_above(Import(low, high, True))
    assert not is_above(Import(high, low, True))
    assert is_above(Import(high, low, False))
    assert not is_above(Import(low, "millstream.spark.session", False))
    assert not is_above(Import(low, "millstream", True))


def test_only_an_address_knows_the_engines_of_the_stores() -> None:
    rooms = ("millstream.store.sqlite", "millstream.store.postgres")
    for module in (name for name in MINE if name.startswith("millstream.store.")):
        others = tuple(room for room in rooms if not module.startswith(room))
        assert [found.imported for found in imports(module) if found.imported.startswith(others)] == []


@pytest.mark.parametrize("module", PURE)
def test_what_lies_before_spark_does_not_name_it(module: str) -> None:
    assert [found.imported for found in imports(module) if found.imported.split(".")[0] == "pyspark"] == []


def test_loading_the_whole_log_does_not_load_spark() -> None:
    code = f"import sys\nfor name in {PURE!r}: __import__(name)\nassert 'pyspark' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_files_that_contributing_names_exist() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \|$", page, re.MULTILINE)
    assert len(table) >= 20
    assert [path for path in table if not (SRC / "millstream" / path).exists()] == []
    text = re.findall(r"`((?:src/millstream/|tests/)?\w+/[\w/]+\.py)`", page)
    assert [p for p in text if not (ROOT / p).exists() and not (SRC / "millstream" / p).exists()] == []
