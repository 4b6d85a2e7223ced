"""A disk that is full under the checkpoint, what is spilled into it, or Spark's temporary files: a run ends, and the next goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millstream import run_batch, verify
from millstream.errors import MillstreamError
from millstream.runtime.run import run
from tests.mounted import mounted
from tests.runtime.shop_file import ROOT, admission, load
from tests.runtime.test_aside import COUNT, HALF, check_views, write_wide

RUNS = """
import sys
from pathlib import Path
from tests.runtime.test_full_disk import go_on
go_on(Path(sys.argv[1]))
"""
ROOMS = [("disk", 0), ("disk", 40), ("disk", 300), ("spill", 0)]
"""What is full, and the KB that are left there."""
LOOKS = (verify, lambda pipeline, **settings: run_batch(pipeline, out=f"{pipeline.checkpoint}/../../out", **settings))
"""What only reads the log, and needs room for Spark's files."""


def go_on(folder: Path) -> None:
    """Run the pipeline with little room, again and again, and at last with enough; say how each run ended."""
    from millstream.spark.session import spark_session, stop_session

    spark = spark_session("full", settings={"spark.local.dir": str(folder / "spill")})
    for disk, left in [*ROOMS, ("disk", 1 << 20)]:
        ballast = folder / disk / "ballast"
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(folder / disk).free - (left << 10))))
        say(partial(run, load(folder / "shop.py"), spark=spark, once=True, rate_limit=HALF))
        ballast.unlink()
    (folder / "spill" / "ballast").write_bytes(bytes(shutil.disk_usage(folder / "spill").free))
    for look in LOOKS:
        say(partial(look, load(folder / "shop.py"), spark=spark))
    stop_session()


def say(call: Callable[[], object]) -> None:
    """Print how a call ended."""
    try:
        call()
        ended = {"error": ""}
    except MillstreamError as error:
        ended = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    sys.stdout.write(json.dumps(ended) + "\n")
    sys.stdout.flush()


@pytest.mark.timeout(400)
def test_a_run_on_a_full_disk_ends_with_an_error_of_ours_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    file = write_wide(tmp_path)
    file.write_text(file.read_text().replace(f"{tmp_path}/check", f"{tmp_path}/disk/check"))
    wrapper = []
    for disk in ("disk", "spill"):
        (tmp_path / disk).mkdir()
        wrapper += mounted(tmp_path / disk, "size=20m")
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", RUNS, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=350
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    last = said.pop(len(ROOMS))
    for (disk, left), found in zip([*ROOMS, *(("spill", 0) for _ in LOOKS)], said, strict=True):
        assert found["error"] == "DiskFull", (disk, left, found)
        assert "pipeline shop: a disk is full" in found["message"]
        assert f"its checkpoint in {tmp_path}/disk/check: " in found["message"]
        assert f"Spark's temporary files in {tmp_path}/spill: " in found["message"]
        assert "run again" in found["hint"]
    assert last == {"error": ""}
    check_views(file)
    assert sum(row["records"] for row in admission(load(file))) == COUNT
