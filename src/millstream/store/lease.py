"""Who may write: a lease with a time to live, held by a process that can be recognised.

Invariant: a lease is called dead only if its time has run out, or if its process is seen not to exist any more on this very
machine; so a restart after ``kill -9`` need not wait, and a process that is merely stopped keeps its lease until it runs out.
A lease of elsewhere that ends later than one from now would was given under a clock that has been set back since: it is dead.
The fence, not the lease, is what keeps a zombie from writing; the lease only keeps two from fighting.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.errors import AlreadyRunning, MillstreamError, TakenOver

TTL = 15_000_000
"""Microseconds a lease lives without renewal."""
RENEWAL = 5.0
"""Seconds between renewals."""
_PROC = Path("/proc")


def now() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds leases. ``machine`` is equal only where process ids mean the same."""

    host: str
    machine: str
    pid: int
    started: int | None
    owner: str

    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine since it was started."""
        return bool(self.machine) and self.machine == _machine()

    def gone(self) -> bool:
        """Whether the process is known not to exist any more; when in doubt it exists."""
        if not self.is_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is someone else's, so it exists
        state, started = _stat(self.pid)
        if state in ("Z", "X"):  # dead, only its parent has not asked yet
            return True
        return None not in (started, self.started) and started != self.started


def this_process(owner: str) -> Holder:
    """The calling process; ``owner`` distinguishes two stores in one process."""
    return Holder(socket.gethostname(), _machine(), os.getpid(), _stat(os.getpid())[1], owner)


def refuse_if_live(pipeline: str, holder: Holder, since: str, expires: int, at: int) -> None:
    """Raise AlreadyRunning unless the lease is dead at the time ``at``."""
    if expires > at and not holder.gone() and (expires <= at + TTL or holder.is_here()):
        raise AlreadyRunning(
            f"pipeline {pipeline!r} is already running on {holder.host}, process {holder.pid}, since {since} UTC",
            hint="stop it, or start with --takeover: the other then writes nothing more",
        )


def taken_over(pipeline: str, found: int | None, expected: int) -> TakenOver:
    """The error for one whose fence is not the stored one."""
    stored = "no claim is stored" if found is None else f"the stored fence is {found}"
    return TakenOver(
        f"pipeline {pipeline!r} has been taken over: {stored}, ours is {expected}; nothing was written",
        hint="this process should end; the other goes on from the same ledger",
    )


class Keeper:
    """Renews a lease in the background for as long as the block lasts.

    If the lease is lost, ``lost`` is called once with the error, from the keeper's thread, and renewing ends. Any other
    failure is tried again at the next turn: whether we may write is decided by the fence, in every commit.
    """

    def __init__(
        self,
        renew: Callable[[], None],
        *,
        every: float = RENEWAL,
        lost: Callable[[TakenOver], None] | None = None,
    ) -> None:
        self._renew, self._every, self._lost = renew, every, lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-lease", daemon=True)
        self.error: MillstreamError | None = None
        """What the last renewal failed with; None if it went well."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._renew()
                self.error = None
            except TakenOver as error:
                self.error = error
                if self._lost:
                    self._lost(error)
                return
            except MillstreamError as error:
                self.error = error


def _machine() -> str:
    """The boot of the kernel and the namespace of process ids; empty where the system does not tell."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.name}"


def _stat(pid: int) -> tuple[str, int | None]:
    """State and start time (ticks since boot) of a process, if the system tells."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return "", None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    return fields[0], int(fields[19])
