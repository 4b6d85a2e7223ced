"""The public names."""

from __future__ import annotations

import subprocess
import sys

import millstream


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert sorted(millstream.__all__) == list(millstream.__all__)
    for name in millstream.__all__:
        assert getattr(millstream, name) is not None


def test_spark_is_not_loaded_until_it_is_needed() -> None:
    code = "import sys, millstream; assert 'pyspark' not in sys.modules; millstream.read_batch; assert 'pyspark' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
