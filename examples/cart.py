"""A shopping cart whose state is the fold of its events, and what is wanted over all carts as a view.

`python examples/cart.py` fills a cart. Where commands have been executed, `millstream run examples/cart.py` keeps the view, and
`millstream events history examples/cart.py ann` shows who did what.
"""

import tempfile
from dataclasses import dataclass, field

from millstream import Pipeline
from millstream.sourcing import Decider, EventStore, Rejected


@dataclass(frozen=True)
class Add:
    item: str
    pieces: int = 1


@dataclass(frozen=True)
class Remove:
    item: str


@dataclass(frozen=True)
class CheckOut: ...


@dataclass(frozen=True)
class Added:
    item: str
    pieces: int


@dataclass(frozen=True)
class Removed:
    item: str
    pieces: int


@dataclass(frozen=True)
class CheckedOut: ...


@dataclass(frozen=True)
class Cart:
    items: dict[str, int] = field(default_factory=dict)
    open: bool = True


def decide(cart: Cart, command: Add | Remove | CheckOut) -> list[Added | Removed | CheckedOut] | Rejected:
    match command:
        case _ if not cart.open:
            return Rejected("the cart is checked out")
        case Add(item, pieces):
            return [Added(item, pieces)] if pieces > 0 else Rejected("nothing to add")
        case Remove(item):
            return [Removed(item, cart.items[item])] if item in cart.items else Rejected(f"there is no {item}")
        case CheckOut():
            return [CheckedOut()] if cart.items else Rejected("the cart is empty")


def evolve(cart: Cart, event: Added | Removed | CheckedOut) -> Cart:
    match event:
        case Added(item, pieces):
            return Cart({**cart.items, item: cart.items.get(item, 0) + pieces})
        case Removed(item, _):
            return Cart({each: pieces for each, pieces in cart.items.items() if each != item})
        case CheckedOut():
            return Cart(cart.items, open=False)


cart = Decider(Cart(), decide, evolve, events=Added | Removed | CheckedOut, commands=Add | Remove | CheckOut)
carts = EventStore("sqlite:shop.db", "carts", cart)

shop = Pipeline("shop", log="sqlite:shop.db", to="sqlite:shop.views.db")
change = "CASE _headers['millstream.type'] WHEN 'Added' THEN pieces WHEN 'Removed' THEN -pieces END AS pieces"
changes = shop.stream("carts", "item string, pieces int").select("item", change).where("pieces IS NOT NULL")
wanted = shop.view("wanted", changes.group_by("item").agg(pieces="sum(pieces)"))

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, EventStore(f"sqlite:{folder}/shop.db", "carts", cart) as store:
        for _ in range(2):  # sent twice, counted once
            print(store.execute("ann", Add("book", 2), key="order-1"))
        print(store.execute("ann", CheckOut()), store.execute("ann", Add("pen")), store.state("ann"), sep="\n")
