"""Envelopes behind the ids of their schemas, made JSON before anything is read of them, whoever reads them then.

The registry is asked for an id once in a process. It is told who asks where the decoder comes from: a worker may have another environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from millstream.debezium import Debezium
from millstream.decode.json_lines import Joined
from millstream.registry import Registry
from millstream.relation.nodes import Source


def codec_of(source: Source) -> Debezium | None:
    """What makes JSON of the records of a source; None if they are not framed."""
    at = source.subject
    if source.codec != "debezium-avro" or at is None:
        return None
    return Debezium(Registry(at.url, user=at.user, password=at.password))


def codecs_of(sources: Iterable[Source]) -> dict[str, Debezium]:
    """The same by topic."""
    return {source.topic: codec for source in sources if (codec := codec_of(source)) is not None}


def values_in_json(codec: Debezium, values: Sequence[bytes | None]) -> Joined:
    """Values in one piece."""
    found = [codec.as_value(value) for value in values]
    lengths = np.array([-1 if value is None else len(value) for value in found], np.int64)
    return Joined(b"\n".join(value for value in found if value is not None), lengths)


def keys_in_json(codec: Debezium, keys: Sequence[bytes | None] | None) -> list[bytes | None] | None:
    """Keys, where they were read."""
    return None if keys is None else [codec.as_key(key) for key in keys]
