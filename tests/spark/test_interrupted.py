"""A Ctrl-C while Spark starts: it ends the start, and nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.waiting import until

STRUCK = """
import os, signal
from pyspark import java_gateway

def launch(*arguments, launch=java_gateway.Popen, **options):
    process = launch(*arguments, **options)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.{name})
    return process

java_gateway.Popen = launch
signal.signal(signal.SIGTERM, signal.default_int_handler)

from millstream.spark.session import spark_session
try:
    spark_session()
except KeyboardInterrupt:
    print("interrupted")
"""
HANDLERS = """
import signal

def take(number, handler, take=signal.signal):
    if number == signal.SIGINT:
        print(getattr(handler, "__module__", None), flush=True)
    return take(number, handler)

signal.signal = take

from millstream.spark.session import spark_session, stop_session
spark_session()
stop_session()
"""


def run(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_the_jvm_starts_leaves_no_jvm_behind(name: str) -> None:
    jvm, said = run(STRUCK.format(name=name))
    assert said == "interrupted"

    def gone() -> bool:
        with suppress(ProcessLookupError):
            os.kill(int(jvm), 0)
            return False
        return True

    until(gone)


def test_pyspark_does_not_take_ctrl_c_for_itself_not_even_for_a_moment() -> None:
    assert "pyspark.core.context" not in run(HANDLERS)
