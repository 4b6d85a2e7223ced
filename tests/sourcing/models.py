"""Aggregates of the tests: a bank account that is never overdrawn, and a show whose seats are sold once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from millstream.sourcing import Decider, Rejected


@dataclass(frozen=True)
class Deposited:
    amount: int


@dataclass(frozen=True)
class Withdrawn:
    amount: int
    note: str = ""


@dataclass(frozen=True)
class Deposit:
    amount: int


@dataclass(frozen=True)
class Withdraw:
    amount: int
    times: int = 1


@dataclass(frozen=True)
class Account:
    balance: int = 0
    notes: tuple[str, ...] = ()


def decide(state: Account, command: Deposit | Withdraw) -> Iterable[Deposited | Withdrawn] | Rejected:
    match command:
        case Deposit(amount) if amount < 0:
            raise ValueError("a deposit below zero")
        case Deposit(amount):
            return [Deposited(amount)] if amount else []
        case Withdraw(amount, times):
            if state.balance < amount * times:
                return Rejected(f"there are only {state.balance}")
            return (Withdrawn(amount, f"{i}") for i in range(times))


def evolve(state: Account, event: Deposited | Withdrawn) -> Account:
    match event:
        case Deposited(amount):
            return replace(state, balance=state.balance + amount)
        case Withdrawn(amount, note):
            return replace(state, balance=state.balance - amount, notes=(*state.notes[-2:], note))


ACCOUNT: Decider[Account] = Decider(
    Account(), decide, evolve, events=Deposited | Withdrawn, commands=Deposit | Withdraw
)


@dataclass(frozen=True)
class Booked:
    seat: int
    by: str


@dataclass(frozen=True)
class Freed:
    seat: int


@dataclass(frozen=True)
class Book:
    seats: tuple[int, ...]
    by: str


@dataclass(frozen=True)
class Free:
    seat: int


@dataclass(frozen=True)
class Show:
    taken: dict[int, str] = field(default_factory=dict)


def sell(state: Show, command: Book | Free) -> Iterable[Booked | Freed] | Rejected:
    match command:
        case Book(seats, by):
            if gone := sorted(set(seats) & state.taken.keys()):
                return Rejected(f"seat {gone[0]} is taken")
            return [Booked(seat, by) for seat in sorted(set(seats))]
        case Free(seat):
            return [Freed(seat)] if seat in state.taken else Rejected(f"seat {seat} is free")


def seated(state: Show, event: Booked | Freed) -> Show:
    match event:
        case Booked(seat, by):
            return Show({**state.taken, seat: by})
        case Freed(seat):
            return Show({each: by for each, by in state.taken.items() if each != seat})


SHOW: Decider[Show] = Decider(Show(), sell, seated, events=Booked | Freed, commands=Book | Free)
