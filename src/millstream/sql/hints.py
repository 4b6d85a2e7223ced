"""Hints that say what to write in Python, as SQL says it."""

from __future__ import annotations

import re

_DEFINED = (
    (r"view\(…, unbounded=True\)", "CREATE VIEW … WITH (unbounded = true)"),
    (r'stream\("(\w+)", …, time="(\w+)"\)', r"CREATE STREAM \1 (…, WATERMARK FOR \2 AS \2 - INTERVAL 10 SECONDS)"),
    (r'stream\(…, time="(\w+)"\)', r"CREATE STREAM … WATERMARK FOR \1 AS \1 - INTERVAL 10 SECONDS"),
    (r'\btime="(\w+)"', r"WATERMARK FOR \1 AS \1 - INTERVAL 10 SECONDS"),
    (r'late="correct", lateness="10 minutes"', "ALLOWED LATENESS INTERVAL 10 MINUTES behind a view's query"),
)
"""What CREATE says. A query that stands in Python has its streams and its view from there."""
_ASKED = (
    (
        r'group_by\(window\.tumbling\("at", "1 (minute|day)"\), …\)',
        r"FROM tumble(TABLE …, at, INTERVAL 1 \1) … GROUP BY window_start, window_end",
    ),
    (r"join it within= or as_of=", "join it within a span of time, or FOR SYSTEM_TIME AS OF"),
    (r"a join within=, as_of= or latest=True", "a join within a span of time, or FOR SYSTEM_TIME AS OF,"),
    (r'within=\("0 minutes", "1 hour"\)', "r.at BETWEEN l.at AND l.at + INTERVAL 1 HOUR"),
    (
        r'users\.history\(\)\.where\("valid_to IS NULL"\): say history\(\) first',
        "FROM users FOR SYSTEM_TIME ALL, of a table by its name",
    ),
    (r'as_of="at"', "FOR SYSTEM_TIME AS OF s.at"),
    (r'how="left" has the time of the left, how="right"', "LEFT JOIN has the time of the left, RIGHT JOIN"),
    (r'deduplicate\("id", within="1 day"\)', "deduplicate(TABLE … PARTITION BY id, at, INTERVAL 1 DAY)"),
    (r'within="1 day" lets go of it', "deduplicate(TABLE … PARTITION BY …, at, INTERVAL 1 DAY) lets go of it"),
    (r'top\(1, by="…", per="id"\)', "QUALIFY row_number() OVER (PARTITION BY id ORDER BY …) = 1"),
    (r"distinct\(\) takes all", "SELECT DISTINCT takes all"),
    (
        r'two streams can be joined within="1 hour", a stream and a table as_of= its time or latest=True',
        "two streams can be joined within a span of time, a stream and a table FOR SYSTEM_TIME AS OF its time",
    ),
    (r"within=, or WITHIN behind PATTERN", "WITHIN INTERVAL … behind PATTERN"),
    (r'within="5 minutes"', "WITHIN INTERVAL 5 MINUTES behind PATTERN"),
    (r'measures=\{"n": "count\(\*\)"\}', "MEASURES count(*) AS n"),
    (r'ALL ROWS PER MATCH, rows="all"', "ALL ROWS PER MATCH"),
    (r'order="(\w+)"', r"ORDER BY \1"),
    (r'emit="changes"', "EMIT CHANGES"),
    (r'frame=frame\.span\("1 day"\)', "RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW"),
    (r'select\("(\w+)", …\)', r"SELECT \1, …"),
    (r"group_by\(…\)\.agg\(…\)", "GROUP BY"),
    (
        r"one aggregate a name; compute with their results in a select\(\) after",
        "compute with these: sum(a) / count(*)",
    ),
    (r"coalesce\((\w+), …\) in a select\(\) after", "coalesce(lag(…) OVER (…), …)"),
)


def in_sql(hint: str) -> str:
    """A hint with what it says to write in SQL.

    >>> in_sql('name its timestamp column: time="at"')
    'name its timestamp column: WATERMARK FOR at AS at - INTERVAL 10 SECONDS'
    """
    return in_query(_said(hint, _DEFINED))


def in_query(hint: str) -> str:
    """A hint with what it says to write in SQL, but for what a query in Python leaves to Python.

    >>> in_query('frame=frame.span("1 day"); or view(…, unbounded=True)')
    'RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW; or view(…, unbounded=True)'
    """
    return _said(hint, _ASKED)


def _said(hint: str, table: tuple[tuple[str, str], ...]) -> str:
    for python, sql in table:
        hint = re.sub(python, sql, hint)
    return hint
