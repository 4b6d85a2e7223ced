"""What ``mkdocs.yml`` cannot say: the pages that lie beside docs/ are pages of the site too, and the public names have one.

Nothing of the package is loaded: names are read from what its ``__init__`` imports for types, docstrings by griffe. ``make docs`` runs it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PUBLIC = ("millstream", "millstream.testing")
_DOCTEST = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    for name in BESIDE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text().replace("](docs/", "](")))
    files.append(File.generated(config, "reference/api.md", content=api()))
    files.append(
        File.generated(config, "assets/file_worker.js", content=(ROOT / "tools" / "file_worker.js").read_text())
    )
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links find the pages beside docs/."""
    return re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, BESIDE))})", r"](\1", markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Let nothing be fetched from elsewhere when a page is looked at."""
    return _own(output, "../" * page.url.count("/"))


def on_post_template(output: str, **_: Any) -> str:
    """Nor when there is no such page."""
    return _own(output, "/")


def _own(html: str, root: str) -> str:
    html = html.replace("https://unpkg.com/iframe-worker/shim", f"{root}assets/file_worker.js")
    fetched = re.findall(r"<(?:script|img|iframe)\b[^>]* src=\"?https?:[^\s>]*", html)
    assert not fetched, f"a page would fetch {fetched}"
    return html


def api() -> str:
    """Give the page of docstrings, a heading for every public name."""
    parts = ["# Docstrings", "What `help()` shows. Shorter, and by module: [Python](python.md)."]
    for package in PUBLIC:
        parts.append(f"## {package}")
        parts += [f"::: {package}.{name}" for name in sorted(names(package), key=str.casefold)]
    return "\n\n".join(parts) + "\n"


def names(package: str) -> list[str]:
    """The names that a package gives out, as its ``__init__`` imports them for types."""
    tree = ast.parse((ROOT / "src" / package.replace(".", "/") / "__init__.py").read_text())
    typed = [each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"]
    return [
        alias.name for each in typed for line in each.body if isinstance(line, ast.ImportFrom) for alias in line.names
    ]


class Doctests(Extension):  # type: ignore[misc]
    """Examples in docstrings are code, which Markdown does not know by their ``>>>``."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Fence them."""
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
