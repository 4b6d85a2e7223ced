"""Hints that say what to write in Python, as SQL says it."""

from __future__ import annotations

_IN_SQL = (
    ("view(…, unbounded=True)", "CREATE VIEW … WITH (unbounded = true)"),
    ('time="at"', "WATERMARK FOR at AS at - INTERVAL 10 SECONDS"),
    ('late="correct", lateness="10 minutes"', "ALLOWED LATENESS INTERVAL 10 MINUTES behind a view's query"),
    ('group_by(tumbling("at", "1 minute"), …)', "FROM tumble(TABLE …, at, INTERVAL 1 MINUTE) … GROUP BY window_start, window_end"),
    ('group_by(tumbling("at", "1 day"), …)', "FROM tumble(TABLE …, at, INTERVAL 1 DAY) … GROUP BY window_start, window_end"),
    ("join it within= or as_of=", "join it within a span of time or FOR SYSTEM_TIME AS OF"),
    ('frame=span("1 day")', "RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW"),
    ("group_by(…).agg(…)", "GROUP BY"),
)  # fmt: skip


def in_sql(hint: str) -> str:
    """A hint with what it says to write in SQL.

    >>> in_sql('name its timestamp column: time="at"')
    'name its timestamp column: WATERMARK FOR at AS at - INTERVAL 10 SECONDS'
    """
    for python, sql in _IN_SQL:
        hint = hint.replace(python, sql)
    return hint
