"""Views of which a kernel keeps something of every event for ever are refused, in words that say what lets go of it."""

from __future__ import annotations

from millstream.errors import PlanError
from millstream.explain import describe, retention
from millstream.explain.wording import Wording
from millstream.plan import spec as specs
from millstream.plan.chain import Chain
from millstream.plan.growth import growth


def refuse_endless(view: str, chain: Chain) -> None:
    """Refuse a view of which a kernel keeps something of every event for ever; ``chain`` is of this view alone."""
    wording, grows = Wording(chain), growth(chain)
    for operator in chain.operators:
        if grows[operator.number] == "events":
            spec, say = operator.spec, wording.say(operator)
            raise PlanError(
                f"view {view}: {describe.title(spec)} ({describe.does(spec, say)}) keeps something of every event for ever: "
                f"{retention.keeps(spec, say)}",
                hint=f"{_bound(spec)}; or say that it may grow without end: view(…, unbounded=True)",
            )


def _bound(spec: specs.Spec) -> str:
    match spec:
        case specs.Deduplicate():
            return 'within="1 day" lets go of it'
        case specs.Over():
            return 'an order by the event time and a frame of a certain length let go of it: frame=frame.span("1 day")'
        case specs.TableJoin():
            return (
                'two streams can be joined within="1 hour", a stream and a table as_of= its time or latest=True; '
                "or aggregate the stream before"
            )
        case specs.LatestJoin():
            return "aggregate the stream before, or join it within= or as_of="
        case _:
            return 'windows let go of it: group_by(window.tumbling("at", "1 day"), …) before, or as one of its keys'
