"""What a power cut may leave of the files of a process: what it synced for sure, and any part of what it did not.

The process runs under ``strace``, which tells every write, every sync and every name that comes or goes, in their order; so what is
left at any moment can be put together afterwards. Names of files count as synced with their folder.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.mounted import missing

ROOT = Path(__file__).parent.parent
_CALLS = "openat,write,pwrite64,fsync,fdatasync,ftruncate,unlink"
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_PART = re.compile(r"^(\d+) +(.*?)(?: <unfinished \.\.\.>)?$")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>")


@dataclass
class File:
    """A file: its bytes as they were when it was last synced, and what was written since."""

    synced: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)
    """Where and what; nothing where the file was cut off."""

    def sync(self) -> None:
        """Put on disk what was written."""
        self.synced, self.since = self.holding(self.since), []

    def holding(self, written: list[tuple[int, bytes | None]]) -> bytes:
        """Its bytes if so much of what was written reaches the disk."""
        content = bytearray(self.synced)
        for at, data in written:
            if data is None:
                del content[at:]
                content.extend(bytes(max(0, at - len(content))))
            else:
                content.extend(bytes(max(0, at - len(content))))
                content[at : at + len(data)] = data
        return bytes(content)

    def left(self, chance: random.Random) -> bytes:
        """Its bytes after a power cut: with nothing, all or some of what was not synced."""
        share = chance.choice((0.0, 0.5, 1.0))
        return self.holding([each for each in self.since if chance.random() < share])


@dataclass
class Disk:
    """A folder as the process sees it, and the names in it that a power cut leaves."""

    folder: Path
    names: dict[str, File]
    synced: dict[str, File]

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """The files that are there, all of them synced."""
        names = {each.name: File(each.read_bytes()) for each in folder.iterdir()}
        return cls(folder, names, dict(names))

    def take(self, call: str, arguments: list[str], gave: int) -> None:
        """Take in one call of the system, if it is about these files. Those that processes share as memory are made anew by whoever comes."""
        path, syncs = _path(arguments[0] if call != "openat" else arguments[1]), call in ("fsync", "fdatasync")
        if path == self.folder and syncs:
            self.synced = dict(self.names)
        if path.parent != self.folder or path.name.endswith("-shm"):
            return
        name = path.name
        if call == "openat":
            if "O_CREAT" in arguments[2]:
                self.names.setdefault(name, File())
        elif call == "unlink":
            self.names.pop(name, None)
        elif syncs:
            self.names[name].sync()
        elif call == "ftruncate":
            self.names[name].since.append((int(arguments[1]), None))
        elif call == "pwrite64":
            self.names[name].since.append((int(arguments[3]), _bytes(arguments[1])[:gave]))
        else:
            raise AssertionError(f"{call} of {path}: where that writes is not followed")

    def leave(self, folder: Path, chance: random.Random) -> None:
        """Put into another folder what a power cut now leaves."""
        folder.mkdir()
        for name in {**self.synced, **self.names}:
            if (file := chance.choice((self.synced, self.names)).get(name)) is not None:
                (folder / name).write_bytes(file.left(chance))


def power_cuts(code: str, folder: Path, told: Path) -> Iterator[tuple[Disk, str]]:
    """Run a program over a folder; give the disk before and after every sync, with what the program had told in a file by then.

    The program gets the folder and the file; what it tells it must write there at once.
    """
    if not shutil.which("strace"):
        missing("no strace")
    disk, said, trace = Disk.of(folder), "", told.with_suffix(".trace")
    wrapper = [
        "strace",
        "-f",
        "-qq",
        "--seccomp-bpf",
        "-y",
        "-xx",
        "-s",
        str(1 << 20),
        "-e",
        f"trace={_CALLS}",
        "-o",
        str(trace),
    ]
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", code, folder, told], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for call, arguments, gave in calls(trace):
        if call == "write" and _path(arguments[0]) == told:
            said += _bytes(arguments[1]).decode()
        elif call != "write" and gave >= 0:
            if call in ("fsync", "fdatasync") and _path(arguments[0]).is_relative_to(folder):
                yield disk, said
            disk.take(call, arguments, gave)
    yield disk, said


def calls(trace: Path) -> Iterator[tuple[str, list[str], int]]:
    """The calls that strace saw, in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        process, text = _PART.match(line).groups()  # type: ignore[union-attr]
        if line.endswith("<unfinished ...>"):
            begun[process] = text
            continue
        if _RESUMED.match(text):
            text = begun.pop(process) + _RESUMED.sub("", text)
        if found := _CALL.match(text):
            yield found[1], found[2].split(", "), int(found[3])


def _path(text: str) -> Path:
    """A path in an argument: in quotes, or behind the number of an open file."""
    quoted = re.search(r'["<]([^">]*)[">]', text)
    return Path(_unescaped(quoted[1]).decode() if quoted else text)


def _bytes(text: str) -> bytes:
    assert text.startswith('"'), text
    assert text.endswith('"'), "a string was cut off"
    return _unescaped(text[1:-1])


def _unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()
