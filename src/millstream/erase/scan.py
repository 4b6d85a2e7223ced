"""Looking for somebody in every place: what is stored there is decoded, for compressed bytes show nothing.

A place that cannot be decoded is named as that, never passed over. Of a SQLite file its cells are read, and then the bytes of the file and
of its write-ahead log, which hold pages that are free as well.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pyarrow as pa

from millstream.database import Database
from millstream.erase.needles import Needles
from millstream.store.identifier import quote

_LZ4, _ZSTD = b"LZ4Block", b"\x28\xb5\x2f\xfd"
_HEAD = struct.Struct("<8sBiii")  # of a block that lz4-java writes: magic, method, compressed and plain size, checksum
_RAW = 0x10
_PIECE, _OVERLAP = 32 << 20, 4096


@dataclass(frozen=True, slots=True)
class Found:
    """A place, and how often somebody is there; ``odd`` says why nobody can tell."""

    place: str
    count: int
    odd: str = ""


def scan_database(file: Database, label: str, needles: Needles) -> Iterator[Found]:
    """The cells of all tables of a SQLite file, then its bytes and those of its write-ahead log."""
    with file.read() as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
        for table in tables:
            try:
                rows = db.execute(f"SELECT * FROM {quote(table)}")
                count = sum(
                    needles.count(_bytes(cell)) for row in rows for cell in row if isinstance(cell, str | bytes)
                )
            except apsw.Error as error:
                yield Found(f"{label}, table {table}", 0, f"not read: {error}")
                continue
            yield Found(f"{label}, table {table}", count)
    yield Found(f"{label}, pages, the free ones too", _in_file(file.path, needles))
    yield Found(f"{label}, write-ahead log", _in_file(file.path.with_name(f"{file.path.name}-wal"), needles))


def scan_parquet(path: Path, needles: Needles) -> Found:
    """All text and bytes in a Parquet file."""
    import pyarrow.parquet as pq  # slow to load, and rarely needed

    count = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches():
            for column in batch.columns:
                count += sum(needles.count(_bytes(each)) for each in _texts(column.to_pylist()))
    except (pa.ArrowException, OSError) as error:
        return Found(str(path), 0, f"no Parquet: {error}")
    return Found(str(path), count)


def scan_folder(folder: Path, needles: Needles) -> Iterator[Found]:
    """Every file below a folder, by what it is."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        yield scan_file(path, needles)


def scan_file(path: Path, needles: Needles) -> Found:
    """A file: Parquet, zip, what Spark has compressed, or bytes as they are."""
    if path.suffix == ".parquet":
        return scan_parquet(path, needles)
    if path.suffix == ".zip":
        return _scan_zip(path, needles)
    try:
        with path.open("rb") as file:
            head = file.read(len(_LZ4))
        if head == _LZ4 or head.startswith(_ZSTD):
            return Found(str(path), needles.count(unpacked(path.read_bytes())))
    except (ValueError, struct.error, pa.ArrowException) as error:
        return Found(str(path), 0, f"not decompressed: {error}")
    except OSError:
        return Found(str(path), 0)  # it is gone meanwhile
    if path.suffix == ".sst":
        return Found(str(path), 0, "a table of RocksDB, whose blocks are compressed")
    return Found(str(path), _in_file(path, needles))


def unpacked(data: bytes) -> bytes:
    """What Spark has compressed, by lz4-java's blocks or zstd."""
    if data[:4] == _ZSTD:
        with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
            return bytes(stream.read())
    made, at = [], 0
    while at < len(data):
        magic, method, packed, plain, _ = _HEAD.unpack_from(data, at)
        block = data[at + _HEAD.size : at + _HEAD.size + packed]
        if magic != _LZ4 or len(block) != packed or plain < 0:
            raise ValueError("no block of lz4 where one begins")
        is_raw = method & 0xF0 == _RAW
        made.append(block if is_raw else pa.Codec("lz4_raw").decompress(block, plain, asbytes=True) if plain else b"")
        at += _HEAD.size + packed
    return b"".join(made)


def _scan_zip(path: Path, needles: Needles) -> Found:
    count, odd = 0, ""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                count += needles.count(archive.read(name))
                if name.endswith(".sst"):
                    odd = "it has tables of RocksDB, whose blocks are compressed"
    except (zipfile.BadZipFile, OSError) as error:
        odd = f"no zip: {error}"
    return Found(str(path), count, odd)


def _in_file(path: Path, needles: Needles) -> int:
    """How often somebody is in the bytes of a file, which is read piece by piece."""
    if not path.exists() or needles.pattern is None:
        return 0
    count, rest = 0, b""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            data = rest + piece
            count += needles.count(data) - needles.count(rest)
            rest = data[-_OVERLAP:]
    return count


def _texts(values: list[object]) -> Iterator[str | bytes]:
    for each in values:
        if isinstance(each, str | bytes):
            yield each
        elif isinstance(each, list):
            yield from _texts(each)
        elif isinstance(each, dict):
            yield from _texts(list(each.values()))


def _bytes(cell: str | bytes) -> bytes:
    return cell.encode() if isinstance(cell, str) else cell
