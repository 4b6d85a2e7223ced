"""Where rows live: one 32-bit hash per row over its key columns.

The result is frozen: state on disk is placed by it, so it may never change. ``tests/kernel/state/test_hash.py`` pins it for
every type. Equal values hash equally whatever carries them: the width of an integer, the unit of a time, the scale of a
decimal, 32- or 64-bit offsets, views, dictionaries, slices and chunks do not matter. An integer and an equal double are
different values, and so are a string and a list; the caller casts the two sides of a join to one type first.

Every value becomes a 64-bit word, and a row folds the words of its columns in their order::

    integer, boolean, date (days), time (µs)   the int64
    double                                     its bits; one zero and one NaN
    decimal                                    mantissa and exponent without trailing zeros
    string, binary                             its bytes, eight at a time; BLAKE2b when longer than 128
    list                                       as the bytes of its elements' words
    struct                                     its fields' words, in order
    map                                        the sum of its entries' words, so their order does not matter
    null                                       a constant
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from millstream.errors import PlanError

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# Arbitrary odd numbers. They only keep the kinds of values apart.
_ROW = np.uint64(0x8C5F1A3B7D92E64F)
_NULL = np.uint64(0xD1B54A32D192ED03)
_BYTES = np.uint64(0xA24BAED4963EE407)
_LENGTH = np.uint64(0x9FB21C651E98DF25)
_MAP = np.uint64(0xE7037ED1A0B428DB)
_DECIMAL = np.uint64(0x589965CC75374CC3)

_LONG = 128  # bytes; a longer value would make all rows wait for its words one by one
_BLOCK = 16_384  # rows
_KEEP = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # masks that keep the first n bytes of a word
_PER_DAY = 86_400_000  # milliseconds
_TO_MICROSECONDS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


def hash_columns(
    columns: Sequence[pl.Series | pa.Array | pa.ChunkedArray], rows: int | None = None
) -> npt.NDArray[np.uint32]:
    """Hash each row over the columns, in their order.

    ``rows`` is needed only when there are no columns: every row then hashes to zero. All 32 bits are well mixed, so a
    caller may take a bucket from some of them and a segment from others.

    >>> hash_columns([pl.Series([1, 2], dtype=pl.Int32)]).tolist() == hash_columns([pa.array([1, 2])]).tolist()
    True
    >>> hash_columns([], rows=2).tolist()
    [0, 0]
    """
    lengths = {len(column) for column in columns} | ({rows} if rows is not None else set())
    if len(lengths) != 1:
        raise ValueError(f"columns of one length are needed, found lengths {sorted(lengths)}")
    if not columns:
        return np.zeros(lengths.pop(), np.uint32)
    return _halved(_fold([_words_of_column(column) for column in columns]))


def hash_after(
    columns: Sequence[pl.Series], numbers: npt.NDArray[np.uint32], last: pl.Series
) -> npt.NDArray[np.uint32]:
    """Hash each row over the columns and one more, where many rows have the same columns: ``numbers`` says which of them.

    >>> hash_after([pl.Series(["a", "b"])], np.array([1, 0], np.uint32), pl.Series([7, 8])).tolist() == hash_columns(
    ...     [pl.Series(["b", "a"]), pl.Series([7, 8])]
    ... ).tolist()
    True
    """
    folded = _fold([_words_of_column(column) for column in columns])[numbers]
    folded += _words_of_column(last)
    return _halved(_mix(folded))


def hash_words(column: pl.Series) -> Words:
    """Hash each value to 64 bits: equal values equally, and different ones as good as never.

    >>> int(hash_words(pl.Series([0.0]))[0]) == int(hash_words(pl.Series([-0.0]))[0])
    True
    """
    return _fold([_words_of_column(column)])


def _mix(words: Words) -> Words:
    """Mix each word in place by the finalizer of splitmix64: every input bit reaches every output bit."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _fold(columns: Sequence[Words]) -> Words:
    folded = _mix(columns[0] + _ROW)
    for words in columns[1:]:
        folded += words
        folded = _mix(folded)
    return folded


def _halved(words: Words) -> npt.NDArray[np.uint32]:
    return (words ^ (words >> np.uint64(32))).astype(np.uint32)


def _words_of_column(column: pl.Series | pa.Array | pa.ChunkedArray) -> Words:
    if isinstance(column, pl.Series):
        if column.dtype in (pl.Int128, pl.UInt128, pl.Object):
            raise _unsupported(column.dtype)
        column = column.to_arrow()
    if isinstance(column, pa.ChunkedArray):
        chunks = [_words(chunk) for chunk in column.chunks]
        return np.concatenate(chunks) if chunks else np.empty(0, np.uint64)
    return _words(column)


def _words(array: pa.Array) -> Words:
    """One word for each value of an Arrow array; the caller may not write into them."""
    if isinstance(array, pa.ExtensionArray):
        return _words(array.storage)
    if types.is_run_end_encoded(array.type):
        return _words(pc.run_end_decode(array))
    reader = _reader(array.type)
    if not len(array):
        return np.empty(0, np.uint64)
    words = reader(array)
    if array.null_count and not types.is_null(array.type):
        words = np.where(_nulls(array), _NULL, words)
    return words


def _reader(kind: pa.DataType) -> Callable[[pa.Array], Words]:
    """Choose by type, so that an unsupported one fails on an empty column too."""
    for belongs, reader in _READERS:
        if belongs(kind):
            return reader
    raise _unsupported(kind)


def _unsupported(kind: object) -> PlanError:
    return PlanError(
        f"a column of type {kind} cannot be a key", hint="cast it to a string, a 64-bit integer or decimal(38, s) first"
    )


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return nulls


def _raw(array: pa.Array, dtype: str, per_row: int = 1) -> npt.NDArray[Any]:
    """The values as they lie in memory: to_numpy would turn integers with nulls into doubles."""
    first = array.offset * per_row
    return np.frombuffer(array.buffers()[1], dtype)[first : first + len(array) * per_row]


def _integers(array: pa.Array) -> Words:
    sign = "i" if types.is_signed_integer(array.type) else "u"
    raw = _raw(array, f"<{sign}{array.type.bit_width // 8}")
    return raw.view(np.uint64) if array.type.bit_width == 64 else raw.astype(np.int64).view(np.uint64)


def _booleans(array: pa.Array) -> Words:
    return _integers(array.cast(pa.uint8()))


def _dates(array: pa.Array) -> Words:
    if types.is_date32(array.type):
        return _raw(array, "<i4").astype(np.int64).view(np.uint64)
    days: Integers = _raw(array, "<i8") // _PER_DAY
    return days.view(np.uint64)


def _times(array: pa.Array) -> Words:
    times, divide = _TO_MICROSECONDS[array.type.unit]
    raw = _raw(array, f"<i{array.type.bit_width // 8}").astype(np.int64, copy=False)
    micros: Integers = raw * times if times > 1 else raw // divide if divide > 1 else raw
    return micros.view(np.uint64)


def _floats(array: pa.Array) -> Words:
    # Adding zero turns -0.0 into 0.0 and leaves everything else; a signalling NaN would be warned about.
    with np.errstate(invalid="ignore"):
        values = _raw(array, f"<f{array.type.bit_width // 8}").astype(np.float64) + 0.0
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _decimals(array: pa.Array) -> Words:
    if not types.is_decimal128(array.type):
        try:
            array = array.cast(pa.decimal128(38, array.type.scale))
        except pa.ArrowInvalid as e:
            raise _unsupported(array.type) from e
    halves = _raw(array, "<i8", 2).reshape(-1, 2).copy()
    low, high = halves[:, 0], halves[:, 1]
    exponent = np.full(len(array), -array.type.scale, np.int64)
    wide = np.flatnonzero(high != low >> 63)
    for row in wide.tolist():
        value, power = int(high[row]) << 64 | int(low[row]) & 0xFFFFFFFFFFFFFFFF, 0
        while value % 10 == 0:
            value, power = value // 10, power + 1
        exponent[row] += power
        halves[row] = np.frombuffer(value.to_bytes(16, "little", signed=True), "<i8")
    for power in (16, 8, 4, 2, 1):
        # The low half of a wide value may look divisible when the value is not; those rows are done.
        whole = low % 10**power == 0
        whole[wide] = False
        low[whole] //= 10**power
        exponent[whole] += power
    exponent[(low == 0) & (high == 0)] = 0
    words = _mix(exponent.view(np.uint64) + _DECIMAL)
    words = _mix(words + high.view(np.uint64))
    return _mix(words + low.view(np.uint64))


def _strings(array: pa.Array) -> Words:
    array = array.cast(pa.large_binary())
    data = array.buffers()[2]
    return _hash_bytes(_bounds(array), np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8))


def _bounds(array: pa.Array) -> Integers:
    """Where each value of a string, list or map array begins, and where the last one ends."""
    narrow = types.is_list(array.type) or types.is_map(array.type)
    bounds = np.frombuffer(array.buffers()[1], "<i4" if narrow else "<i8")
    return bounds[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)


def _hash_bytes(bounds: Integers, data: npt.NDArray[np.uint8]) -> Words:
    """Hash the bytes between each two bounds, in blocks of rows that stay in the processor's cache."""
    rows = len(bounds) - 1
    return np.concatenate([_hash_block(bounds[i : i + _BLOCK + 1], data) for i in range(0, rows, _BLOCK)])


def _hash_block(bounds: Integers, data: npt.NDArray[np.uint8]) -> Words:
    """Take one word of every row per step, as long as rows have any left."""
    first, end = int(bounds[0]), int(bounds[-1])
    # A word may be read past the last byte, hence the room; what does not belong to its row is masked out.
    room = np.zeros(end - first + 8, np.uint8)
    room[:-8] = data[first:end]
    words = np.ndarray((end - first + 1,), "<u8", room.data, strides=(1,))
    starts = bounds[:-1] - first
    lengths = bounds[1:] - bounds[:-1]
    hashed = _mix(lengths.astype(np.uint64) * _LENGTH + _BYTES)
    rows: npt.NDArray[np.intp] | slice = slice(None)
    left = lengths
    if int(lengths.max()) > _LONG:
        for row in np.flatnonzero(lengths > _LONG).tolist():
            digest = blake2b(room[starts[row] : starts[row] + lengths[row]].data, digest_size=8).digest()
            hashed[row] = int.from_bytes(digest, "little")
        rows = np.flatnonzero(lengths <= _LONG)
        starts, left = starts[rows], lengths[rows]
    while len(left) and int(left.max()) > 0:
        if int(left.min()) <= 0:
            more = np.flatnonzero(left > 0)
            rows = more if isinstance(rows, slice) else rows[more]
            starts, left = starts[more], left[more]
        word = words[starts]
        if int(left.min()) < 8:
            word &= _KEEP[np.minimum(left, 8)]
        word ^= hashed[rows]
        hashed[rows] = _mix(word)
        starts, left = starts + 8, left - 8
    return hashed


def _lists(array: pa.Array) -> Words:
    if types.is_list(array.type) or types.is_large_list(array.type):
        bounds = _bounds(array)
        elements = array.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
    else:
        # Views and lists of a fixed size have no bounds of their own (and a cast of a view with nulls gives wrong ones).
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        elements = array.flatten()
    words = np.ascontiguousarray(_words(elements))
    return _hash_bytes((bounds - bounds[0]) * 8, words.view(np.uint8))


def _maps(array: pa.Array) -> Words:
    bounds = _bounds(array)
    first, end = int(bounds[0]), int(bounds[-1])
    keys, items = array.keys.slice(first, end - first), array.items.slice(first, end - first)
    totals = np.zeros(end - first + 1, np.uint64)
    if end > first:
        np.cumsum(_fold([_words(keys), _words(items)]), out=totals[1:])
    return _mix(totals[bounds[1:] - first] - totals[bounds[:-1] - first] + _MAP)


def _structs(array: pa.Array) -> Words:
    fields = [_words(array.field(i)) for i in range(array.type.num_fields)]
    return _fold(fields) if fields else np.full(len(array), _ROW)


def _dictionaries(array: pa.Array) -> Words:
    values: Words = np.append(_words(array.dictionary), _NULL)
    # A null index may hold anything; it is given the word appended last.
    indices = array.indices.cast(pa.int64()).fill_null(len(values) - 1)
    return values[_raw(indices, "<i8").astype(np.intp, copy=False)]


def _all_null(array: pa.Array) -> Words:
    return np.full(len(array), _NULL)


def _any(*tests: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return functools.partial(lambda tests, kind: any(test(kind) for test in tests), tests)


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Words]], ...] = (
    (types.is_integer, _integers),
    (_any(types.is_string, types.is_large_string, types.is_string_view), _strings),
    (_any(types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary), _strings),
    (types.is_boolean, _booleans),
    (types.is_date, _dates),
    (_any(types.is_timestamp, types.is_duration, types.is_time), _times),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (types.is_null, _all_null),
    (types.is_dictionary, _dictionaries),
    (types.is_map, _maps),
    (types.is_struct, _structs),
    (_any(types.is_list, types.is_large_list, types.is_fixed_size_list), _lists),
    (_any(types.is_list_view, types.is_large_list_view), _lists),
)
