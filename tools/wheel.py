"""Build the package, install its wheel where nothing of this checkout is seen, and use it there; ``make wheel`` runs it.

Nothing is fetched: what builds is what ``make setup`` has installed, and the new environment borrows the dependencies of this one,
but not its editable install.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
UV = str(Path(sys.executable).with_name("uv"))


def main() -> int:
    """Give 1 if the wheel is not what a user should get."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millstream-wheel-") as name:
        folder = Path(name)
        built = ["--no-build-isolation", "--offline", "--python", sys.executable, "--out-dir", str(folder / "dist")]
        run(UV, "build", "--quiet", *built, str(ROOT), cwd=folder)  # the sdist, and the wheel from the sdist
        [wheel] = (folder / "dist").glob("*.whl")
        if wrong := differing(wheel):
            print(f"{wheel.name} does not hold what src/ holds: {', '.join(wrong)}", file=sys.stderr)
            return 1
        use(wheel, folder)
        print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB, installed and used in {time.monotonic() - began:.0f} s")
    return 0


def differing(wheel: Path) -> list[str]:
    """The files that are in the wheel or in ``src/``, and not in both."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {each for each in archive.namelist() if ".dist-info/" not in each}
    there = {path.relative_to(SRC).as_posix() for path in SRC.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    return sorted(packed ^ there)


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel into an environment of its own, make a project and run its test."""
    env = folder / "env"
    run(sys.executable, "-m", "venv", "--without-pip", str(env))
    python = str(env / "bin" / "python")
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # A folder that a .pth names is searched, but the .pth files in it are not read: the editable install stays out.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, str(wheel))

    empty = folder / "empty"
    empty.mkdir()
    code = "import millstream, pyspark_millstream as p; print(millstream.__file__, p.__file__, p.DefaultSource.name())"
    found, beside, source = run(python, "-c", code, cwd=empty).split()
    expect(all(each.startswith(site) for each in (found, beside)), f"{found} and {beside} are not those of the wheel")
    expect(source == "millstream", f"Spark finds the source by the name {source!r}")

    command = str(env / "bin" / "millstream")
    version = wheel.name.split("-")[1]
    said = run(command, "--version", cwd=empty)
    expect(version in said, f"millstream --version says {said!r}, the wheel {version}")
    run(command, "init", "shop", cwd=empty)
    run(command, "explain", "pipeline.py", cwd=empty / "shop")
    tested = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=empty / "shop")
    expect("2 passed" in tested, tested)


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command without what our surroundings would tell it; give what it prints."""
    ours = ("PYTHON", "MILLSTREAM_", "PYTEST_", "COV_", "COVERAGE_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300, check=False)
    expect(done.returncode == 0, f"{' '.join(command)} left with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(is_so: bool, otherwise: str) -> None:
    """End with what is wrong."""
    if not is_so:
        sys.exit(f"the wheel: {otherwise}")


if __name__ == "__main__":
    sys.exit(main())
