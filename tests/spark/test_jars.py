"""Jars by name are jars by content."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import MachineError
from millstream.spark.jars import check_sums


def test_a_jar_that_is_not_the_one_of_its_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "somebody-elses-1.0.jar").write_bytes(b"anything")
    check_sums(tmp_path)
    (tmp_path / "kafka-clients-3.9.1.jar").write_bytes(b"another")
    with pytest.raises(MachineError, match=r"kafka-clients-3\.9\.1\.jar: found the SHA-256 [0-9a-f]{64}, expected"):
        check_sums(tmp_path)
