"""The scan: it finds somebody in every form and behind every compression, and names what it cannot decode."""

from __future__ import annotations

import base64
import json
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream import Event
from millstream.erase import scan
from millstream.erase.blank import Eraser, Wish, blank_archive
from millstream.erase.form import forms_of
from millstream.erase.needles import Needles, tells
from millstream.erase.pseudonym import Pseudonyms, new_key
from millstream.erase.scan import Found, scan_database, scan_file, unpacked
from millstream.log.archive import Archive
from millstream.log.embedded.engine import SqliteLog
from millstream.relation.nodes import source_of
from tests.erase.test_blank import ANN, click, shop

MAIL = "ann.canary@example.org"
NEEDLES = Needles.of([MAIL, "Zoë Canary", "1234567"])


def lz4(data: bytes) -> bytes:
    """As lz4-java writes it."""
    packed = pa.Codec("lz4_raw").compress(data, asbytes=True)
    end = struct.pack("<8sBiii", b"LZ4Block", 0x16, 0, 0, 0)
    return struct.pack("<8sBiii", b"LZ4Block", 0x26, len(packed), len(data), 0) + packed + end


@pytest.mark.parametrize(
    "data",
    [
        f"x {MAIL} y".encode(),
        json.dumps({"name": "Zoë Canary"}).encode(),
        json.dumps({"name": "Zoë Canary"}, ensure_ascii=False).encode(),
        b'{"id":1234567}',
        MAIL.encode().hex().encode(),
        *(base64.b64encode(b"p" * before + MAIL.encode() + b"q" * after) for before in range(4) for after in range(4)),
        MAIL.encode("utf-16-le"),
    ],
)
def test_every_form_of_a_text_is_found(data: bytes) -> None:
    assert NEEDLES.count(data) >= 1


@pytest.mark.parametrize("data", [b"joann.canary@example.orgs", b'{"id":91234567}', b"12345678", b"", b"Zo Canary"])
def test_what_is_another_name_is_not_found(data: bytes) -> None:
    assert NEEDLES.count(data) == 0


def test_what_says_nothing_is_not_looked_for() -> None:
    assert Needles.of(["7", "ann", "123456", MAIL, "Ann A"], others=["Ann A"]).texts == (MAIL,)
    assert Needles.of(["7"]).count(b"7 7 7") == 0
    assert not tells("")


def test_files_are_decoded_whatever_compresses_them(tmp_path: Path) -> None:
    text = b"ann.canary@ary@example.org" + MAIL.encode()  # which a compressor writes as two places where its parts were
    text = text.replace(MAIL.encode(), b" " + MAIL.encode() + b" ") * 50
    (tmp_path / "1.changelog").write_bytes(lz4(text))
    with pa.output_stream(str(tmp_path / "2.changelog"), compression="zstd") as stream:
        stream.write(text)
    (tmp_path / "plain.json").write_bytes(text)
    pq.write_table(pa.table({"a": [{"b": [MAIL]}], "c": [MAIL.encode()]}), tmp_path / "t.parquet", compression="zstd")
    with zipfile.ZipFile(tmp_path / "3.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", text)
    found = {Path(each.place).name: each.count for each in scan.scan_folder(tmp_path, NEEDLES)}
    assert found == {"1.changelog": 50, "2.changelog": 50, "3.zip": 50, "plain.json": 50, "t.parquet": 2}
    assert MAIL.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("*.changelog"))
    assert unpacked(lz4(text)) == text


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "000012.sst").write_bytes(b"\0" * 100)
    (tmp_path / "1.changelog").write_bytes(b"LZ4Block and then nothing of that kind")
    (tmp_path / "x.parquet").write_bytes(b"no")
    with zipfile.ZipFile(tmp_path / "3.zip", "w") as archive:
        archive.writestr("000012.sst", b"blocks")
    odd = {Path(each.place).name: each.odd for each in scan.scan_folder(tmp_path, NEEDLES)}
    assert "compressed" in odd["000012.sst"]
    assert "compressed" in odd["3.zip"]
    assert odd["1.changelog"].startswith("not decompressed")
    assert odd["x.parquet"].startswith("no Parquet")


def test_a_name_at_the_edge_of_a_piece_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_PIECE", 8192)
    for before in range(8150, 8200, 5):
        path = tmp_path / "large"
        path.write_bytes(b"." * before + MAIL.encode() + b"." * 9000)
        assert scan_file(path, NEEDLES) == Found(str(path), 1)


def test_cells_free_pages_and_the_write_ahead_log_are_looked_at(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        for topic in ("kept", "gone"):
            log.create_topic(topic)
            log.append(topic, [Event(json.dumps({"email": MAIL}).encode())])
        found = {each.place: each.count for each in scan_database(log.store, "log", NEEDLES)}
        assert {place: count for place, count in found.items() if count} == {
            "log, table records_1_0": 1, "log, table records_2_0": 1, "log, write-ahead log": found["log, write-ahead log"],
        }  # fmt: skip
        log.delete_topic("gone")
        with log.store.using():
            log.store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        found = {each.place: each.count for each in scan_database(log.store, "log", NEEDLES) if each.count}
        assert found == {"log, table records_1_0": 1, "log, pages, the free ones too": 2}


def test_archived_records_are_blanked_under_the_names_of_their_files(tmp_path: Path) -> None:
    pipeline = shop()
    eraser = Eraser(
        forms_of([source_of(pipeline.streams["clicks"].node)])["clicks"], (Wish(ANN),), Pseudonyms(new_key())
    )
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("clicks")
        log.append(
            "clicks", [Event(json.dumps(click(user, 1)).encode(), user.encode()) for user in ("ann", "bob", "ann")]
        )
        archive = Archive(tmp_path / "archive", "clicks")
        archive.take(log)
        before, (piece,) = list(archive.read(0, 0, 9)), archive.pieces(0)
        assert blank_archive(archive, 0, eraser) == 2
        assert blank_archive(archive, 0, eraser) == 0
        assert archive.pieces(0) == [piece]
        (after,) = archive.read(0, 0, 9)
        assert after.schema.equals(before[0].schema)
        assert after.slice(1, 1).to_pylist() == before[0].slice(1, 1).to_pylist()
        for name in ("topic", "partition", "offset", "timestamp", "append_time"):
            assert after.column(name).equals(before[0].column(name))
        assert json.loads(after.column("value")[0].as_py()) == {"millstream.erased": True, "at": "2026-01-01T12:00:01Z"}
        assert scan_file(piece.path, Needles.of(["ann@example.org"])).count == 0


def test_a_large_file_that_is_compressed_is_decoded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_PIECE", 16)
    (tmp_path / "1.changelog").write_bytes(lz4(b"ann.canary@ary@example.org " + MAIL.encode()))
    assert scan_file(tmp_path / "1.changelog", NEEDLES).count == 1
