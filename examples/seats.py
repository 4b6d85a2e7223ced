"""Seats of shows, each sold once however many sell at the same time; and how full each show is, as a view.

`python examples/seats.py` lets eight threads sell the same forty seats. Where seats were sold, `millstream run examples/seats.py` keeps the view.
"""

import random
import tempfile
import threading
from dataclasses import dataclass, field

from millstream import Pipeline
from millstream.sourcing import Decided, Decider, EventStore, Rejected


@dataclass(frozen=True)
class Book:
    seats: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class Cancel:
    seat: int


@dataclass(frozen=True)
class Booked:
    seat: int
    name: str


@dataclass(frozen=True)
class Cancelled:
    seat: int


@dataclass(frozen=True)
class Show:
    taken: dict[int, str] = field(default_factory=dict)


def decide(show: Show, command: Book | Cancel) -> list[Booked | Cancelled] | Rejected:
    match command:
        case Book(seats, name):
            if gone := set(seats) & show.taken.keys():
                return Rejected(f"seat {min(gone)} is taken")  # all of them or none
            return [Booked(seat, name) for seat in sorted(set(seats))]
        case Cancel(seat):
            return [Cancelled(seat)] if seat in show.taken else Rejected(f"seat {seat} is free")


def evolve(show: Show, event: Booked | Cancelled) -> Show:
    match event:
        case Booked(seat, name):
            return Show({**show.taken, seat: name})
        case Cancelled(seat):
            return Show({each: name for each, name in show.taken.items() if each != seat})


show = Decider(Show(), decide, evolve, events=Booked | Cancelled, commands=Book | Cancel)
shows = EventStore("sqlite:theatre.db", "shows", show)

theatre = Pipeline("theatre", log="sqlite:theatre.db", to="sqlite:theatre.views.db")
change = "CASE _headers['millstream.type'] WHEN 'Booked' THEN 1 ELSE -1 END AS change"
changes = theatre.stream("shows", "seat int, name string").select("_key AS show", change)
sold = theatre.view("sold", changes.group_by("show").agg(seats="sum(change)"))


def sell(store: EventStore[Show], name: str) -> None:
    """Try for two seats next to each other, again and again."""
    for _ in range(20):
        first = random.randrange(39)
        if isinstance(store.execute("tonight", Book((first, first + 1), name), who=name), Decided):
            print(f"{name} has seats {first} and {first + 1}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, EventStore(f"sqlite:{folder}/theatre.db", "shows", show) as store:
        sellers = [threading.Thread(target=sell, args=(store, f"seller {i}")) for i in range(8)]
        for seller in sellers:
            seller.start()
        for seller in sellers:
            seller.join()
        print(len(store.state("tonight").taken), "of 40 seats are sold, each once")
