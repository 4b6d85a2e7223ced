"""Spark's daemon of Python workers, which says nothing of a worker whose query was stopped: it finds nobody to speak to, and that is no news.

Spark would print the stack, among what a program of the user's prints.
"""

from __future__ import annotations

import socket

from pyspark import daemon as spark_daemon

_worker = spark_daemon.worker


def _end_quietly(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return 1


def manager() -> None:
    """Fork workers for who asks, until the input ends."""
    spark_daemon.worker = _end_quietly
    spark_daemon.manager()
