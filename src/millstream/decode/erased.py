"""Which records are erased, and records chosen by a mask: erased ones are decoded by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from millstream.log.erased import PREFIX, is_erased

if TYPE_CHECKING:
    from millstream.decode.decoder import Records

Booleans: TypeAlias = npt.NDArray[np.bool_]


def erased_of(records: Records, codec: str) -> Booleans | None:
    """Which records are erased; None if none is."""
    blank, keys = None, records.keys or ()
    if PREFIX not in b"".join(filter(None, keys)):  # one search for them all
        return None
    for index, key in enumerate(keys):
        if key is not None and key.startswith(PREFIX) and is_erased(key, records.values[index], codec):
            blank = np.zeros(len(records.values), bool) if blank is None else blank
            blank[index] = True
    return blank


def chosen(records: Records, mask: Booleans) -> Records:
    """The records that a mask says."""
    at = np.flatnonzero(mask).tolist()

    def of(column: Sequence[Any] | None) -> list[Any] | None:
        return None if column is None else [column[index] for index in at]

    timestamps = None if records.timestamps is None else records.timestamps[mask]
    return records._replace(
        offsets=records.offsets[mask],
        timestamps=timestamps,
        appended=records.appended[mask],
        keys=of(records.keys),
        values=of(records.values) or [],
        headers=of(records.headers),
    )
