"""Records that come as Arrow: the same chunks as from plain lists, whatever their keys and values are."""

from __future__ import annotations

import base64
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Pipeline
from millstream.decode.decoder import Decoder, Records
from millstream.errors import ConfigError
from millstream.kernel.admission.gate import Admission
from millstream.runtime.setup import chain_of
from millstream.spark.fast_path import RAW, rows_of, shorten_batch, to_file
from millstream.spark.source import MillstreamSource

KEYS = st.none() | st.sampled_from(
    [b"k", b"7", b"\xff", b"", b"millstream.heartbeat", b"millstream.heartbeat.1", b"millstream.heartbeat.x"]
)
VALUES = st.sampled_from(
    [None, b'{"n": 1}', b"{}", b'{"n": 1,', b'"n": 2}', b'{"n": 5}{"n": 6}', b"", b"\n", b'{"n": "x"}', b"a\0b"]
) | st.just(b'{"time":1,"pipeline":"p"}')


def decoder(*select: str, key: str | None = None) -> Decoder:
    pipeline = Pipeline("p", log="sqlite:never.db")
    define = pipeline.stream if key is None else partial(pipeline.table, key=key)
    pipeline.view("out", define("events", "n bigint").select(*select))
    chain = chain_of(pipeline)
    return Decoder(Admission(chain), utc=True)


@pytest.mark.parametrize("key", [None, "n"])
@pytest.mark.parametrize("select", [("n",), ("n", "_key AS k")])
@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(KEYS, VALUES) | st.just((b"k", b'{"n": 7}')), min_size=1, max_size=6),
    skip=st.integers(0, 2),
)
def test_a_batch_is_packed_as_lists_are(
    select: tuple[str, ...], key: str | None, rows: list[tuple[Any, Any]], skip: int
) -> None:
    made = decoder(*select, key=key)
    padded = [(b"k", b"{}")] * skip + rows
    offsets = np.arange(len(padded)) - skip
    columns = [*zip(*padded, strict=True), ["events"] * len(padded), [0] * len(padded), offsets, offsets, offsets]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, RAW.values(), strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, list(RAW)).slice(skip)
    keys, values = zip(*rows, strict=True)
    chunks, left = made.pack("events", 0, Records(offsets[skip:], offsets[skip:], offsets[skip:], keys, values))
    found = pa.Table.from_batches(shorten_batch(made, batch))
    raw = found.filter(pa.compute.is_valid(found["offset"]))
    assert raw["offset"].to_pylist() == np.flatnonzero(left).tolist()
    assert raw["value"].to_pylist() == [values[place] for place in np.flatnonzero(left)]
    expected = [row for each in rows_of(made, chunks) for row in each.to_pylist()]
    assert found.filter(pa.compute.is_null(found["offset"])).to_pylist() == expected


class Bomb:
    """What runs a command as soon as it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_nothing_that_others_may_have_written_is_unpickled(tmp_path: Path) -> None:
    """Anybody who may write SQL may set an option."""
    trace, data = tmp_path / "ran", pickle.dumps(Bomb(tmp_path / "ran"))
    closed, opened = tmp_path / "closed", tmp_path / "opened"
    closed.mkdir(mode=0o700)
    opened.mkdir(mode=0o755)
    for path, mode in [(closed / "readable", 0o644), (closed / "writable", 0o620), (opened / "private", 0o600)]:
        path.write_bytes(data)
        path.chmod(mode)
    (closed / "aim").write_bytes(data)
    (closed / "aim").chmod(0o600)
    (closed / "link").symlink_to(closed / "aim")
    others = closed / "others"
    others.write_bytes(data)
    others.chmod(0o600)
    found = [
        base64.b64encode(data).decode(),
        *map(str, (*closed.glob("*able"), opened / "private", closed / "link", closed / "no")),
    ]
    if os.geteuid() == 0:
        os.chown(others, 12345, 12345)
        found.append(str(others))
    for option in found:
        source = MillstreamSource({"log": "sqlite:never.db", "subscribe": "t", "decoder": option})
        with pytest.raises(ConfigError, match="only its owner can read"):
            source.reader(None)  # type: ignore[arg-type]
        assert not trace.exists()


def test_a_decoder_goes_by_a_file_of_ours() -> None:
    reader: Any = MillstreamSource(
        {"log": "sqlite:never.db", "subscribe": "t", "decoder": to_file(decoder("n"))}
    ).reader(None)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(reader)).files.decoder.admission.chain == decoder("n").admission.chain
