"""The layout of a chain: what lies under which number, so that state is never read by another kernel than wrote it.

State goes by the number of a kernel and by the names of its columns. A definition says what is computed; how it is laid out is the
planner's choice, and another version may choose otherwise. A checkpoint keeps the layout that it was made with, so what a layout
says is frozen: kernels go by their tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.plan.chain import Chain, Operator
from millstream.plan.lineage import Lineage
from millstream.relation.fingerprint import canonical, fingerprint
from millstream.relation.functions import calling


def layout(chain: Chain) -> dict[str, str]:
    """What has state under each number: the admission of a topic, or a kernel with its stage, its key and a digest of the rest."""
    lineage = Lineage(chain)
    found = {str(feed.number): f"the admission of {feed.source.topic}" for feed in chain.feeds if chain.staged(feed)}
    for operator in chain.operators:
        found[str(operator.number)] = _kernel(operator, lineage)
    return found


def difference(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """The first number under which two layouts have something else, in words; nothing if they are equal."""
    for number in sorted(there.keys() | here.keys(), key=int):
        one, other = there.get(number, "nothing"), here.get(number, "nothing")
        if one != other:
            return f"under number {number} there is {one}, and this definition has {other}"
    return ""


def kernels(chain: Chain) -> dict[str, Operator]:
    """Each kernel by a fingerprint of what it computes, which does not depend on where in the chain it is."""
    lineage, prints = Lineage(chain), {feed.number: fingerprint(["feed", feed.source]) for feed in chain.feeds}
    found = {}
    for operator in sorted(chain.operators, key=lambda each: (each.stage, each.number)):
        spec = canonical(operator.spec)
        spec.pop("function", None)
        made = [
            [prints.get(maker.number, ""), port.side, sorted((name, lineage.left(maker, port, here).text) for name, here in port.columns),
             lineage.kept(maker, port.keep) if port.keep else ""]
            for maker, port in lineage.ports_to(operator.number)
        ]  # fmt: skip
        texts = [
            lineage.left(maker, port, here).text
            for maker, port in lineage.ports_to(operator.number)
            for _, here in port.columns
        ]
        texts += [lineage.kept(maker, port.keep) for maker, port in lineage.ports_to(operator.number) if port.keep]
        called = calling(chain.functions, *texts)
        prints[operator.number] = fingerprint([spec, operator.hold, made, *([called] if called else [])])
        found[prints[operator.number]] = operator
    return found


def _kernel(operator: Operator, lineage: Lineage) -> str:
    ports: list[dict[str, Any]] = [
        {
            "from": maker.number,
            "side": port.side,
            "columns": {name: lineage.left(maker, port, here).text for name, here in port.columns},
            "keep": lineage.kept(maker, port.keep) if port.keep else "",
            "spread": port.spread,
            "marks": port.marks,
        }
        for maker, port in lineage.ports_to(operator.number)
    ]
    spec = canonical(operator.spec)
    spec.pop("function", None)  # the user's, whose text is in the definition's fingerprint
    keys = getattr(operator.spec, "keys", ())
    key = ", ".join(keys if isinstance(keys, tuple) else (f"_k{index}" for index in range(keys))) or "nothing"
    digest = fingerprint([spec, operator.hold, ports])
    step = f" with {operator.step}" if operator.step is not None else ""
    return f"{operator.spec.tag} by {key} in stage {operator.stage}{step} ({digest})"
