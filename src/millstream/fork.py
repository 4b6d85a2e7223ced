"""SQLite connections must not cross a fork: what a process believes to hold of POSIX locks, its child does not hold.

A child that inherits an open file, even if it opens a connection of its own, appears to others not to be there; the
parent then takes itself for the last one, removes the write-ahead log on closing, and the child writes into nowhere. So
a fork waits until no thread is inside a transaction and closes every connection first; both sides open new ones when
they next need one. Forking from inside a transaction is not supported. ``subprocess`` does not come by here.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

_changed = threading.Condition()
_users = 0
_forking = False
_own = threading.local()


class Holder(Protocol):
    """Whoever has connections open."""

    def let_go(self) -> None:
        """Close them; they are opened again when needed."""
        ...


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()


class InUse:
    """Held around every use of a connection; it only ever waits for a fork. Not to be nested."""

    def __enter__(self) -> None:
        global _users
        with _changed:
            while _forking:
                _changed.wait()
            _users += 1
        _own.users = getattr(_own, "users", 0) + 1

    def __exit__(self, *_: object) -> None:
        global _users
        _own.users -= 1
        with _changed:
            _users -= 1
            if _forking:
                _changed.notify_all()


def watch(holder: Holder) -> None:
    """Have ``holder`` let go before every fork, for as long as it lives."""
    with _changed:
        _holders.add(holder)


def _before() -> None:
    global _forking
    _changed.acquire()
    while _forking:  # another thread's fork
        _changed.wait()
    _forking = True
    own = getattr(_own, "users", 0)
    while _users > own:
        _changed.wait()
    if not own:
        for holder in list(_holders):
            holder.let_go()


def _after() -> None:
    global _forking
    _forking = False
    _changed.notify_all()
    _changed.release()


def _after_in_child() -> None:
    global _changed, _forking, _users
    _changed, _forking, _users = threading.Condition(), False, getattr(_own, "users", 0)


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
