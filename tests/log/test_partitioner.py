"""A key lives in the same partition on every engine, hashed alone or with others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.log.partitioner import murmur2, partition_of, partitions_of

KAFKA = {  # from the unit tests of Kafka's own Java code, signed as Java shows them
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

keys = st.one_of(
    st.binary(max_size=12),
    st.binary(max_size=8).map(lambda key: key + b"\0" * 3),
    st.binary(min_size=250, max_size=262),
    st.sampled_from(list(KAFKA)),
)
any_keys = st.one_of(
    st.lists(keys, max_size=60),
    st.lists(st.binary(max_size=40), min_size=24, max_size=60),  # many and short: the vectorised way
    st.integers(24, 40).flatmap(lambda n: st.lists(st.sampled_from([b"", b"\0", b"\0\0\0\0", b"a"]), min_size=n)),
)


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
def test_the_hash_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@pytest.mark.parametrize(("key", "expected"), KAFKA.items())
@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16, 1000])
def test_a_key_goes_where_kafka_puts_it(key: bytes, expected: int, partitions: int) -> None:
    wanted = (expected & 0x7FFFFFFF) % partitions
    assert partition_of(key, partitions) == wanted
    assert partitions_of([key] * 50, partitions) == [wanted] * 50


@given(any_keys, st.integers(1, 1000))
def test_many_keys_at_once_go_where_each_goes_alone(batch: list[bytes], partitions: int) -> None:
    assert partitions_of(batch, partitions) == [partition_of(key, partitions) for key in batch]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.integers(1, 1000))
def test_every_key_gets_a_partition_that_exists(batch: list[bytes], partitions: int) -> None:
    assert all(0 <= partition < partitions for partition in partitions_of(batch, partitions))
