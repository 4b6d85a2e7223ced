"""A bank account that is never overdrawn, with snapshots, and the balance of each account as a view.

`python examples/account.py` moves some money and looks back. Where money was moved, `millstream run examples/account.py` keeps the view, and
`millstream events diff examples/account.py ann 0 3` shows what three events changed.
"""

import tempfile
from dataclasses import dataclass

from millstream import Pipeline
from millstream.sourcing import Decider, EventStore, Rejected, StoreSettings


@dataclass(frozen=True)
class Deposit:
    cents: int


@dataclass(frozen=True)
class Withdraw:
    cents: int


@dataclass(frozen=True)
class Deposited:
    cents: int


@dataclass(frozen=True)
class Withdrawn:
    cents: int


@dataclass(frozen=True)
class Account:
    cents: int = 0


def decide(account: Account, command: Deposit | Withdraw) -> list[Deposited | Withdrawn] | Rejected:
    match command:
        case Deposit(cents) | Withdraw(cents) if cents <= 0:
            return Rejected("an amount is above zero")
        case Deposit(cents):
            return [Deposited(cents)]
        case Withdraw(cents):
            return [Withdrawn(cents)] if cents <= account.cents else Rejected(f"there are {account.cents} cents")


def evolve(account: Account, event: Deposited | Withdrawn) -> Account:
    match event:
        case Deposited(cents):
            return Account(account.cents + cents)
        case Withdrawn(cents):
            return Account(account.cents - cents)


account = Decider(Account(), decide, evolve, events=Deposited | Withdrawn, commands=Deposit | Withdraw)
settings = StoreSettings(snapshot_every=100)
accounts = EventStore("sqlite:bank.db", "accounts", account, settings)

bank = Pipeline("bank", log="sqlite:bank.db", to="sqlite:bank.views.db")
change = "CASE _headers['millstream.type'] WHEN 'Deposited' THEN cents ELSE -cents END AS change"
changes = bank.stream("accounts", "cents bigint").select("_key AS account", change)
balances = bank.view("balances", changes.group_by("account").agg(cents="sum(change)", moves="count(*)"))


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        EventStore(f"sqlite:{folder}/bank.db", "accounts", account, settings) as store,
    ):
        for i in range(1, 251):
            store.execute("ann", Deposit(i), who="salary")
        print(store.execute("ann", Withdraw(99_999), who="till"))
        loaded = store.load("ann")
        print(f"{loaded.version} events, {loaded.state}, of which {loaded.read} records were read")
        print("after the tenth:", store.state("ann", version=10), "- what if it had not been:", end=" ")
        print(store.what_if("ann", without=[10]).differences)
