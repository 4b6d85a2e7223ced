"""Records in which a field comes twice. Spark refuses one whose first value is no time, ours would take the second value.

Other types refuse a value while it is parsed, times and days are text until then. Names are counted, which is quick; only where there
are more of a name than values of its columns is a record looked at by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.decode.json_lines import Joined

_ESCAPED, _ESCAPED_ASCII = re.compile(rb"\\u"), re.compile(rb"\\u00[2-7]")


class Repeated(Exception):
    """A field comes twice in an object."""


def repeated(
    values: Sequence[bytes | None],
    at: npt.NDArray[np.intp],
    expected: Mapping[str, int],
    part: Callable[[bytes], bytes] | None = None,
) -> npt.NDArray[np.bool_]:
    """Which of the records ``at`` these places have a field twice, where that may matter.

    ``expected`` is how many values there are of columns, or fields of structs, that have this name. ``part`` gives what of a
    record has the columns.
    """
    found = np.zeros(len(at), bool)
    for name, times in expected.items():
        quoted = json.dumps(name, ensure_ascii=False).encode()
        escaped = _ESCAPED_ASCII if name.isascii() else _ESCAPED
        if isinstance(values, Joined) and not _may_repeat(values.data, quoted, times, escaped):
            continue
        for place, index in enumerate(at.tolist()):
            value = values[index] or b""
            if not found[place] and (value.count(quoted) > 1 or escaped.search(value)):
                found[place] = has_repeated(value if part is None else part(value))
    return found


def _may_repeat(data: bytes, quoted: bytes, times: int, escaped: re.Pattern[bytes]) -> bool:
    return data.count(quoted) > times or (b"\\" in data and escaped.search(data) is not None)


def has_repeated(value: bytes) -> bool:
    """Whether an object in a record has a field twice."""
    try:
        json.loads(value, object_pairs_hook=once)
    except (Repeated, RecursionError):
        return True
    return False


def once(pairs: list[tuple[str, Any]]) -> None:
    """Raise Repeated for an object that has a field twice."""
    if len(dict(pairs)) < len(pairs):
        raise Repeated
