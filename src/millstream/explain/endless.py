"""Views of which a kernel keeps something of every event for ever are refused, in words that say what lets go of it."""

from __future__ import annotations

from millstream.errors import PlanError
from millstream.explain.wording import Wording
from millstream.plan.chain import Chain
from millstream.plan.growth import growth


def refuse_endless(view: str, chain: Chain) -> None:
    """Refuse a view of which a kernel keeps something of every event for ever; ``chain`` is of this view alone."""
    wording, grows = Wording(chain), growth(chain)
    for operator in chain.operators:
        if grows[operator.number] == "events":
            spec, say = operator.spec, wording.say(operator)
            raise PlanError(
                f"view {view}: {spec.title()} ({spec.does(say)}) keeps something of every event for ever: "
                f"{spec.keeps(say)}",
                hint=f"{spec.bounded_by()}; or say that it may grow without end: view(…, unbounded=True)",
            )
