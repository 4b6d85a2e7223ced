"""Run tests of what depends on Spark's version with the oldest and the newest PySpark that the package allows; ``make sparks`` runs it.

Each has an environment of its own in ``.venv/sparks``, which holds PySpark and borrows everything else from this one. The lock keeps
one version; this shows that the range in pyproject.toml is true.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
UV = str(Path(sys.executable).with_name("uv"))
TESTS = (
    "tests/spark/internals",  # what leans on Spark's inside, and a pipeline with and without all of it
    "tests/spark/test_java.py",  # every setting is known; links, launcher, class-data archive
    "tests/runtime/test_operators.py",  # each operator as a stream, after a restart, as a batch
    "tests/runtime/test_udf.py",  # Python functions
    "tests/runtime/test_failure.py",  # what Spark says of failures
)


def main(tests: list[str]) -> int:
    """Give 1 if a test fails with one of them."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [wanted] = (each for each in dependencies if each.startswith("pyspark"))
    failed = []
    for which, resolution in (("oldest", "lowest-direct"), ("newest", "highest")):
        python = environment(which, resolution, wanted)
        code = "from importlib.metadata import version; print(version('pyspark'))"
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        print(f"the {which} of {wanted}: {found}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(tests or TESTS)], cwd=ROOT, check=False
        )
        if done.returncode:
            failed.append(found)
        print(f"{found}: {'failed' if done.returncode else 'passed'} in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


def environment(which: str, resolution: str, wanted: str) -> str:
    """The Python of an environment with this PySpark; it is made, or brought up to date."""
    folder = ROOT / ".venv" / "sparks" / which
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    options = ["--quiet", "--compile-bytecode", "--upgrade", "--resolution", resolution, "--python", python]
    subprocess.run([UV, "pip", "install", *options, wanted], check=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # Folders that a .pth names come after the environment's own, so that its PySpark is found first.
    (Path(site) / "borrowed.pth").write_text(f"{ROOT / 'src'}{os.linesep}{sysconfig.get_path('purelib')}{os.linesep}")
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
