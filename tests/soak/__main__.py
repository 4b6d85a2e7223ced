"""``make soak MINUTES=n``: random pipelines under random faults on real servers, until the time is over.

Each round has a seed, which decides the pipeline, the servers, the records and the faults. At its end the views, the counts of
admission and a topic of changes are compared with a plain recomputation from the log. ``--seed`` repeats one round's choices;
when a fault strikes, to the millisecond, is the machine's.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from tests.soak.faults import FAULTS, Fault
from tests.soak.world import World, with_disks_of_its_own


def main() -> int:
    """Soak; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="make soak", description="Random pipelines under random faults.")
    parser.add_argument("--minutes", type=float, default=10, help="how long; the round at hand is finished [10]")
    parser.add_argument("--seed", type=int, help="make the choices of that round, once")
    parser.add_argument("--faults", type=int, default=4, help="faults a round [4]")
    parser.add_argument("--only", help="only faults with that word in their name")
    asked = parser.parse_args()
    with_disks_of_its_own()
    deadline = time.monotonic() + asked.minutes * 60
    done: Counter[str] = Counter()
    rounds = wrong = 0
    while rounds == 0 or (time.monotonic() < deadline and asked.seed is None):
        seed = random.SystemRandom().randrange(1 << 32) if asked.seed is None else asked.seed
        wrong += not soak(seed, [fault for fault in FAULTS if (asked.only or "") in fault.__name__], asked.faults, done)
        rounds += 1
    print(f"\n{rounds} rounds, {sum(done.values())} faults, {wrong} rounds wrong")
    for what, count in done.most_common():
        print(f"  {count:>4} × {what}")
    return 1 if wrong else 0


def soak(seed: int, faults: Sequence[Fault], count: int, done: Counter[str]) -> bool:
    """One round; whether all was right."""
    chance, began = random.Random(seed), time.monotonic()
    world = World(seed)
    print(f"round of seed {seed}: {world.name}", flush=True)
    try:
        with world:
            for fault in chance.choices(faults, k=count):
                print(f"  {fault.__name__.replace('_', ' ')} … ", end="", flush=True)
                done[what := fault(world)] += 1
                print(what, flush=True)
            print(f"  equal: {world.check()}, {time.monotonic() - began:.0f} s", flush=True)
    except Exception:
        print(f"\n  WRONG; `make soak SEED={seed}` makes the same choices; files are in {world.keep()}")
        traceback.print_exc(file=sys.stdout)
        return False
    world.remove()
    return True


if __name__ == "__main__":
    sys.exit(main())
