"""One folder of this process that nobody else may enter: what Spark spills, its workers' sockets, what Java unpacks, decoders.

It is removed when the process ends. What a process that was killed left behind is removed by the next one: a lock that is held says
that the owner lives.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from millstream.errors import ConfigError, MachineError

_LONGEST = 60
"""Characters of the folder's path: the path of a socket has 107 at most, and Spark adds 43 and the name of a folder."""

_own: tuple[int, Path, int] | None = None  # the process, its folder, the lock


def folder(name: str) -> Path:
    """A folder of this name in the one of this process; both are made if they are not there."""
    global _own
    if _own is None or _own[0] != os.getpid():
        _own = (os.getpid(), *_make())
        atexit.register(remove)
    made = _own[1] / name
    made.mkdir(mode=0o700, exist_ok=True)
    return made


def write(name: str, data: bytes) -> str:
    """Keep data in a file of such a folder, for :func:`check_ours`; its path. The same data is kept once."""
    path = folder(name) / hashlib.sha256(data).hexdigest()
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.rename(file.name, path)  # not durable, as the folder goes with the process
    return str(path)


def remove() -> None:
    """Remove the folder, if it is this process's."""
    global _own
    if _own is not None and _own[0] == os.getpid():
        shutil.rmtree(_own[1], ignore_errors=True)
        os.close(_own[2])
        _own = None


def left_behind() -> list[Path]:
    """The folders of processes that are gone; the next process that makes one removes them."""
    found = []
    for other in sorted(Path(_place()[0]).glob(f"{_place()[1]}*")):
        with suppress(OSError), (other / "lock").open("r+") as lock:
            if other.lstat().st_uid == os.getuid() and not other.is_symlink():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(other)
    return found


def remove_left_behind() -> None:
    """Remove these."""
    for other in left_behind():
        _remove_left(other)


def check_ours(path: str) -> Path:
    """A file that we wrote and nobody else can have changed; ConfigError for any other."""
    found = Path(path)
    with suppress(OSError, ValueError):
        seen, above = found.lstat(), found.parent.lstat()
        if stat.S_ISREG(seen.st_mode) and stat.S_ISDIR(above.st_mode):
            private = not (seen.st_mode & 0o077 or above.st_mode & 0o077)
            if private and seen.st_uid == above.st_uid == os.geteuid():
                return found
    raise ConfigError(
        f"found {path!r}, expected a file that only its owner can read, in a folder that only its owner can enter",
        hint="such options are for pipelines, which write these files themselves",
    )


def _make() -> tuple[Path, int]:
    parent, prefix = _place()
    try:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(made / "lock.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (made / "lock.new").rename(made / "lock")
    except OSError as error:
        raise MachineError(
            f"{parent}: no folder can be made there: {error.strerror}",
            hint="set TMPDIR to a folder that can be written",
        ) from error
    for other in Path(parent).glob(f"{prefix}*"):
        if other != made:
            _remove_left(other)
    return made, lock


def _place() -> tuple[str, str]:
    """In which folder they are, and how their names begin."""
    parent, prefix = tempfile.gettempdir(), f"millstream-{os.getuid()}-"
    if len(parent) + len(prefix) + 8 > _LONGEST and os.access("/tmp", os.W_OK):  # noqa: S108
        parent = "/tmp"  # noqa: S108
    return parent, prefix


def _remove_left(other: Path) -> None:
    """Remove the folder of a process that is gone."""
    with suppress(OSError):
        if other.lstat().st_uid != os.getuid() or other.is_symlink():
            return
        lock = os.open(other / "lock", os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other, ignore_errors=True)
        finally:
            os.close(lock)
