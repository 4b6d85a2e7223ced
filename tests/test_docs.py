"""The documentation is true: every block of it runs, every link leads somewhere, every list is complete.

In each page the blocks run in order, in one temporary folder. ``python`` blocks share one namespace; a ``text`` block
right after one is what it prints. ``console`` blocks are shell commands after ``$``, with what they print below; ``…``
stands for anything. A ``sql`` block that begins with ``-- NAME.sql`` is that file, and a ``toml`` block with ``# NAME.toml``. ``sh`` blocks are for people only: they install things or run for minutes. Addresses are changed on
the way: ``localhost:9092`` becomes the broker of this run, ``shop@localhost/shop`` its PostgreSQL server, and a relative ``sqlite:`` path in Python an absolute one,
because all pages share a Spark whose own folder is not theirs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from millstream import errors
from millstream.config import Settings
from millstream.log import open_log

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUNNABLE = [page for page in PAGES if re.search(r"^```(python|console)", page.read_text(), re.MULTILINE)]

_BLOCK = re.compile(r"(?:<!-- test: skip \((?P<skip>[^)]+)\) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_FOR_PEOPLE = re.compile(r"(make|pip|uv|git|python3? -m pip|millstream (bench|doctor)|export|source|cd|#)\b|#")
_MACHINE_PATH = re.compile(r"/(work|farm|root|home)/")
_INDEX_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven|maven\.org|registry\.npmjs|anaconda\.org|crates\.io|--(extra-)?index-url"
)


class Block(NamedTuple):
    """One fenced block of a page."""

    kind: str
    text: str
    line: int
    skip: str | None


def blocks(page: Path) -> list[Block]:
    whole = page.read_text()
    return [
        Block(found["kind"], found["text"], whole.count("\n", 0, found.start("text")) + 1, found["skip"])
        for found in _BLOCK.finditer(whole)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def shows(expected: str, printed: str) -> list[str]:
    """The expected lines that were not printed; blanks count as one, ``…`` is anything."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    missing = []
    for line in filter(None, (" ".join(line.split()) for line in expected.splitlines())):
        pattern = ".*".join(map(re.escape, line.split("…")))
        if not any(re.fullmatch(pattern, each) for each in lines):
            missing.append(line)
    return missing


def run_console(text: str, folder: Path) -> list[str]:
    """Run the commands of a block in one shell; give what went wrong."""
    commands: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], ""))
        elif commands and commands[-1][0].endswith("\\"):
            commands[-1] = (f"{commands[-1][0]}\n{line}", "")
        else:
            commands[-1] = (commands[-1][0], f"{commands[-1][1]}{line}\n")
    script = "set -eo pipefail\n" + "".join(f"printf '\\036'\n{command}\n" for command, _ in commands)
    settings = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    settings |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed, _ = shell.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    parts = printed.split("\x1e")[1:]
    if shell.returncode != 0:
        return [f"`{commands[len(parts) - 1][0]}` left with {shell.returncode}:\n{parts[-1]}"]
    return [
        f"`{command}` did not print\n    {line}\n  but\n{part}"
        for (command, expected), part in zip(commands, parts, strict=True)
        for line in shows(expected, part)
    ]


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [block for block in blocks(page) if block.skip is None]
    if any(block.kind == "python" for block in found):
        request.getfixturevalue("spark")  # a page that wants a session, said or not, is given this one
    if any("kafka://" in block.text for block in found):  # as for its reader: nobody has made these topics before
        with open_log(request.getfixturevalue("kafka").url) as log:
            for topic in {each.name for each in log.topics()} & {
                name for block in found for name in re.findall(r'"([\w.-]+)"', block.text)
            }:
                log.delete_topic(topic)
    namespace: dict[str, object] = {"__name__": "__page__"}
    printed: str | None = None
    for block in found:
        text = block.text
        if block.kind in ("python", "console") and "localhost:9092" in text:
            text = text.replace("localhost:9092", request.getfixturevalue("kafka").bootstrap)
        if block.kind in ("python", "console") and "shop@localhost/shop" in text:
            server = request.getfixturevalue("postgres").address.removeprefix("postgresql://")
            text = text.replace("shop@localhost/shop", server)
        if block.kind == "python":
            text = re.sub(r'(["\'])sqlite:(?=\w)', rf"\1sqlite:{tmp_path}/", text)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile("\n" * (block.line - 1) + text, str(page), "exec", dont_inherit=True), namespace)
            printed = output.getvalue()
        elif block.kind == "text" and printed is not None:
            assert shows(block.text, printed) == [], f"{name_of(page)}:{block.line}: printed was\n{printed}"
        elif named := re.match(r"(?:--|#) (\w+\.(?:sql|toml))\n", text) if block.kind in ("sql", "toml") else None:
            (tmp_path / named[1]).write_text(text)
        elif block.kind == "console":
            wrong = run_console(text, tmp_path)
            assert not wrong, f"{name_of(page)}:{block.line}: " + "\n".join(wrong)
        if block.kind != "python":
            printed = None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_that_do_not_run_are_few_and_say_why(page: Path) -> None:
    for block in blocks(page):
        assert block.kind, f"{name_of(page)}:{block.line}: a block without a kind"
        assert block.kind not in ("py", "bash", "shell"), f"{name_of(page)}:{block.line}: write python, console or sh"
        if block.kind == "sh":
            for line in filter(None, block.text.splitlines()):
                assert _FOR_PEOPLE.match(line), f"{name_of(page)}:{block.line}: {line!r} could run: make it console"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)}: no {target}"
        if anchor:
            assert anchor in anchors(there), f"{name_of(page)}: no heading for {target}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_no_file_names_a_package_index_or_a_folder_of_one_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        if not (ROOT / name).exists():
            continue
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if _MACHINE_PATH.search(line) or _INDEX_HOST.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []
    assert [lock.name for lock in ROOT.glob("*.lock") if "://" in lock.read_text()] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = re.findall(r"^ +- [\w ./-]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = [page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")]
    made = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "reference/api.md"]  # by tools/pages.py
    assert sorted(pages) == sorted([*written, *made])


# the reference


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("cli_reference", ROOT / "tools" / "cli_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()
COMMANDS = dict(TOOL.commands(TOOL.cli))


def test_the_cli_reference_is_fresh() -> None:
    assert TOOL.PAGE.read_text() == TOOL.render(), "run `make docs`"


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_help_and_an_example(path: str) -> None:
    command = COMMANDS[path].command
    assert command.help
    if not isinstance(command, click.Group):
        assert re.search(rf"Examples?:\n(.*\n)*?.*{path}\b", command.help), f"{path}: no example in its help"
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{path}: {option.opts} has no help"


def test_the_errors_page_is_complete() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/errors.md").read_text(), re.MULTILINE)
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert sorted(listed) == sorted(kinds)


def test_the_configuration_page_names_every_setting_and_variable() -> None:
    page = (ROOT / "docs/reference/configuration.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    variables = set(re.findall(r"MILLSTREAM_[A-Z]+(?:_[A-Z]+)*", source)) - {"MILLSTREAM_KAFKA", "MILLSTREAM_COMPLETE"}
    assert {
        name for name in variables | {f"`{field}`" for field in Settings.__struct_fields__} if name not in page
    } == set()


def reference() -> dict[str, list[str]]:
    """Module → the names that the Python reference lists under it."""
    parts = re.split(r"^## `(millstream[\w.]*)`$", (ROOT / "docs/reference/python.md").read_text(), flags=re.MULTILINE)
    return {
        module: re.findall(r"^\| `(\w+)[^`]*` \|", body, re.MULTILINE)
        for module, body in zip(parts[1::2], parts[2::2], strict=True)
    }


@pytest.mark.parametrize("module", reference())
def test_the_python_reference_lists_what_is_public(module: str) -> None:
    loaded = import_module(module)
    public = {
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == loaded.__name__
    }
    public |= set(getattr(loaded, "__all__", ()))
    listed = reference()[module]
    assert public - set(listed) == set()
    assert [name for name in listed if not hasattr(loaded, name)] == []
