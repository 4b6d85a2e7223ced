"""What chunks tell besides rows: what admission counted, and what kernels keep."""

from __future__ import annotations

import msgspec


class Count(msgspec.Struct, array_like=True):
    """What admission saw of one partition in one batch; ``next`` is the offset after the last record.

    ``appended`` is when the last record came that is no heartbeat.
    """

    topic: str
    partition: int
    next: int
    records: int
    admitted: int
    late: int
    duplicate: int
    future: int
    malformed: int
    wild: int
    heartbeats: int
    watermark: int | None
    appended: int | None = None
    erased: int = 0


class Held(msgspec.Struct, array_like=True):
    """What one bucket of one kernel keeps."""

    kernel: int
    bucket: int
    rows: int
    bytes: int
    segments: int
