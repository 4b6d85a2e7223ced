"""The certificate: what was removed where, what was found before and after, and what nobody could look into; as JSON, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import msgspec

from millstream.durable import replace_file
from millstream.erase.register import Request
from millstream.erase.scan import Found
from millstream.printable import printable

_STYLE = "body{font:15px/1.5 sans-serif;max-width:60em;margin:3em auto;padding:0 1em}td,th{text-align:left;padding:.1em 1em .1em 0;vertical-align:top}"


class Removed(msgspec.Struct, frozen=True):
    """What became of a place."""

    place: str
    what: str


class Looked(msgspec.Struct, frozen=True):
    """How often somebody was in a place before and after."""

    place: str
    before: int
    after: int


class Odd(msgspec.Struct, frozen=True):
    """A place that could not be decoded, and what became of it: ``removed``, ``still there``, or ``made since`` from what is left."""

    place: str
    why: str
    now: str


class Certificate(msgspec.Struct, frozen=True):
    """An erasure, without anything of those who were erased. Subjects are digests under the register's key."""

    log: str
    begun: str
    ended: str
    requests: tuple[tuple[str, str, str, str], ...]
    """Id, kind, digest and mode of each."""
    removed: tuple[Removed, ...]
    texts: int
    """How many texts of theirs were looked for."""
    looked: tuple[Looked, ...]
    odd: tuple[Odd, ...]
    not_covered: tuple[str, ...]

    @property
    def places_before(self) -> int:
        """In how many places they were found."""
        return sum(each.before > 0 for each in self.looked)

    @property
    def places_after(self) -> int:
        """In how many they are still."""
        return sum(each.after > 0 for each in self.looked)

    @property
    def summary(self) -> str:
        """The outcome in a line."""
        unread = sum(each.now == "still there" for each in self.odd)
        told = f"found in {self.places_before} places before, {self.places_after} after"
        return told + (f"; {unread} that cannot be decoded are still there" if unread else "")


def certify(
    log: str,
    begun: str,
    requests: Sequence[Request],
    removed: Sequence[Removed],
    texts: int,
    before: Sequence[Found],
    after: Sequence[Found],
    not_covered: Sequence[str],
) -> Certificate:
    """Put together what two looks at all places have seen."""
    first, then = ({each.place: each for each in found} for found in (before, after))
    places = dict.fromkeys((*first, *then))
    looked = [Looked(p, first[p].count if p in first else 0, then[p].count if p in then else 0) for p in places]
    odd = [
        Odd(p, found.odd, "removed" if p not in then else "still there" if p in first else "made since")
        for p in places
        if (found := then.get(p) or first[p]).odd
    ]
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    said = tuple((each.id, each.kind, each.digest, each.mode) for each in requests)
    return Certificate(log, begun, ended, said, tuple(removed), texts, tuple(looked), tuple(odd), tuple(not_covered))


def write(certificate: Certificate, folder: Path) -> tuple[Path, bytes]:
    """Write both forms into a folder; give the path of the JSON, and its bytes, whose hash goes into the audit log."""
    folder.mkdir(mode=0o700, exist_ok=True)
    name = f"{certificate.ended.replace(':', '')[:17]}Z-{certificate.requests[0][0]}"
    data = msgspec.json.format(msgspec.json.encode(certificate), indent=1)
    replace_file(folder / f"{name}.html", page(certificate).encode())
    replace_file(folder / f"{name}.json", data)
    return folder / f"{name}.json", data


def page(certificate: Certificate) -> str:
    """The certificate for people."""
    requests = [(*each,) for each in certificate.requests]
    removed = [(each.place, each.what) for each in certificate.removed]
    looked = [
        (each.place, str(each.before), str(each.after)) for each in certificate.looked if each.before or each.after
    ]
    odd = [(each.place, each.why, each.now) for each in certificate.odd]
    return (
        f"<!doctype html><meta charset=utf-8><title>Certificate of erasure</title><style>{_STYLE}</style>"
        f"<h1>Certificate of erasure</h1><p>{_text(certificate.log)}, {certificate.begun} to {certificate.ended}.</p>"
        f"<p><b>{_text(certificate.summary)}.</b> {certificate.texts} texts were looked for in {len(certificate.looked)} places.</p>"
        + _table("Requests", ("Request", "Kind", "Subject, as a digest", "Mode"), requests)
        + _table("Removed", ("Where", "What"), removed)
        + _table("Found", ("Where", "Before", "After"), looked)
        + _table("Not decoded", ("Where", "Why", "Now"), odd)
        + _table("Not covered", ("What",), [(each,) for each in certificate.not_covered])
    )


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{title}</h2><table><tr>{head}</tr>{body}</table>"


def _text(text: str) -> str:
    return escape(printable(text))
