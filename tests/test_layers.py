"""Data flows one way and so do imports: a module imports only from what lies before it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"

LAYERS = (
    "version", "printable", "errors", "event", "failpoint", "durable", "codec", "secret", "config", "address", "fork", "database", "log",
    "plan", "sql", "kernel", "sink", "outlet", "notebook", "view", "pipeline", "sql.statement", "load", "spark",
    "runtime", "testing", "bench", "doctor", "shell", "cli",
)  # fmt: skip
LOG = (
    "contract", "partitioner", "heartbeat", "clock", "store", "batch", "sequence", "group", "queue", "clean", "archive", "reader", "sqlite", "scan",
    "kafka_client", "kafka_write", "kafka", "kafka_read", "kafka_scan", "kafka_sizes", "kafka_share", "producer", "lag",
)  # fmt: skip
PURE = LAYERS[: LAYERS.index("spark")]


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


def layer(module: str) -> int:
    """Where a module stands; the package itself, which shows the public names, stands just before the command."""
    if module == "millstream":
        return len(LAYERS) - 1
    name = module.removeprefix("millstream.")
    return LAYERS.index(name if name in LAYERS else name.split(".")[0])


def test_every_module_has_a_layer() -> None:
    assert {name.split(".")[1] for name in MINE} <= set(LAYERS)
    assert {name.split(".")[2] for name in MINE if name.startswith("millstream.log.")} == set(LOG)


@pytest.mark.parametrize("module", MINE)
def test_a_module_imports_only_from_earlier_layers(module: str) -> None:
    wrong = [
        found.imported
        for found in imports(module)
        if found.imported.split(".")[0] == "millstream" and layer(found.imported) > layer(module)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", [name for name in MINE if name.startswith("millstream.log.")])
def test_a_module_of_the_log_loads_only_earlier_ones(module: str) -> None:
    here = LOG.index(module.split(".")[2])
    loaded = {found.imported for found in imports(module) if found.at_load}
    inner = {name.split(".")[2] for name in loaded if name.startswith("millstream.log.")}
    assert sorted(name for name in inner if LOG.index(name) > here) == []


@pytest.mark.parametrize("module", [name for name in MINE if name.split(".")[1] in PURE])
def test_what_lies_before_spark_does_not_name_it(module: str) -> None:
    assert [found.imported for found in imports(module) if found.imported.split(".")[0] == "pyspark"] == []


def test_loading_the_whole_log_does_not_load_spark() -> None:
    names = [name for name in MINE if name.split(".")[1] in PURE]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nassert 'pyspark' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_architecture_page_lists_every_module_in_order() -> None:
    rows = re.findall(r"^\| `([\w/]+)\.py` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    listed = [row.replace("/", ".").removesuffix(".__init__") for row in rows]
    assert sorted(listed) == sorted(name for name, path in MODULES.items() if path.read_text().strip())
    layers = [layer(name) for name in listed if name.startswith("millstream.")]
    assert layers == sorted(layers)
    inner = [LOG.index(name.split(".")[2]) for name in listed if name.startswith("millstream.log.")]
    assert inner == sorted(inner)
