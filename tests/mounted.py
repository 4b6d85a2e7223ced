"""A disk of a test's own: a tmpfs with options, in a namespace that only one command sees."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def mounted(folder: Path, options: str) -> list[str]:
    """What to put before a command so that it has such a disk at ``folder``; where that may not be, the test is skipped."""
    mount = f'mount -t tmpfs -o {options} none "{folder}" && exec "$@"'
    wrapper = ["unshare", "-m", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        missing("no permission to mount a tmpfs in a namespace of our own")
    return wrapper


def missing(what: str) -> None:
    """Skip; but where everything should be there, a missing tool is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and CI=true")
    pytest.skip(what)
