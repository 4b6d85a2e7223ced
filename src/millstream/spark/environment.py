"""An environment of its own for a package that needs other versions than we do: in the user's cache, made on first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millstream.errors import MachineError
from millstream.spark.java import cache_folder


@dataclass(frozen=True, slots=True)
class Package:
    """What pip installs, as a wheel: its version, what can be imported then, how large it is and what that needs."""

    name: str
    version: str
    module: str
    size: str
    needs: str


def python_with(package: Package, called: str, say: Callable[[str], None]) -> Path:
    """The Python that has a package; it is made where there is none. MachineError if it cannot be."""
    home = cache_folder() / f"{called}-{package.version}-python-{sys.version_info.major}.{sys.version_info.minor}"
    python = home / "bin" / "python"
    if (home / "ready").exists():
        return python
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    wanted = f"{package.name}=={package.version}"
    try:
        say(f"{called}: making an environment in {home}")
        run([sys.executable, "-m", "venv", "--clear", str(home)])
        say(f"{called}: installing {package.name} {package.version}, some {package.size}")
        run([str(python), "-m", "pip", "install", "--quiet", "--only-binary", package.name, wanted])
        run([str(python), "-c", f"import {package.module}"])
    except (OSError, subprocess.CalledProcessError) as error:
        told = (getattr(error, "stderr", None) or getattr(error, "stdout", None) or str(error)).strip().splitlines()
        raise MachineError(
            f"{package.name} {package.version} cannot be installed into {home}: {told[-1] if told else error}",
            hint=f"it needs {package.needs}; set MILLSTREAM_CACHE where there is space",
        ) from error
    (home / "ready").touch()
    return python
