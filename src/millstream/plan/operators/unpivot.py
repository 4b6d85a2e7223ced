"""`unpivot`: rows that pass, each once for each of several columns. Nothing is kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millstream.plan.operators.contract import Laid, Names, StatelessSpec
from millstream.plan.operators.wording import Say, listed
from millstream.relation import nodes


@dataclass(frozen=True, slots=True)
class Unpivot(StatelessSpec):
    """Each row once for each column of ``values``: ``ids``, the column's label as ``variable``, what it holds as ``value``."""

    tag: ClassVar[str] = "Unpivot"
    ids: tuple[str, ...]
    values: tuple[str, ...]
    labels: tuple[str, ...]
    variable: str
    value: str
    retract: bool = True

    def title(self) -> str:
        return "unpivot"

    def does(self, say: Say) -> str:
        shown = [say(name, 0) for name in self.values]
        named = [
            text if text == label else f"{text} AS {label}" for text, label in zip(shown, self.labels, strict=True)
        ]
        return f"each row once for each of {listed(named)}: its name as {self.variable}, its value as {self.value}"


def lay(node: nodes.Unpivot) -> Laid:
    """Say how rows are repeated for each of several columns."""
    ids, names = tuple(each.name for each in node.ids), Names()
    values = tuple(names.name(each.expression) for each in node.values)
    labels = tuple(each.name for each in node.values)
    wanted = {each.name: each.expression for each in node.ids} | names.wanted
    spec = Unpivot(ids, values, labels, node.variable, node.value)
    return Laid(spec, wanted, ids[:1], bool(node.settled()))
