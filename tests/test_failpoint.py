"""A failpoint does what the environment says, at the pass it says, and otherwise nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from millstream.failpoint import _parse

PASS = (
    "from millstream.failpoint import failpoint\n"
    "for name in ('a', 'b', 'a', 'a'):\n"
    "    failpoint(name)\n"
    "    print(name, flush=True)\n"
)


def run(setting: str | None, code: str = PASS) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "MILLSTREAM_FAILPOINT"}
    if setting is not None:
        environ["MILLSTREAM_FAILPOINT"] = setting
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)


def test_without_a_setting_every_place_is_passed() -> None:
    done = run(None)
    assert (done.returncode, done.stdout.split()) == (0, ["a", "b", "a", "a"])


@pytest.mark.parametrize(("setting", "passed"), [("a:kill", []), ("a:kill@3", ["a", "b", "a"]), ("b:kill", ["a"])])
def test_kill_ends_the_process_at_the_pass_it_names(setting: str, passed: list[str]) -> None:
    done = run(setting)
    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, passed)


def test_raise_is_an_error_that_names_the_place() -> None:
    done = run("a:raise@2")
    assert done.stdout.split() == ["a", "b"]
    assert "RuntimeError: failpoint a" in done.stderr


def test_a_place_is_harmless_again_once_its_count_has_passed() -> None:
    code = PASS.replace("    failpoint(name)\n", "    try: failpoint(name)\n    except RuntimeError: name = 'caught'\n")
    assert run("a:raise@2", code).stdout.split() == ["a", "b", "caught", "a"]


def test_stop_waits_for_a_continue() -> None:
    environ = os.environ | {"MILLSTREAM_FAILPOINT": "b:stop"}
    with subprocess.Popen([sys.executable, "-c", PASS], env=environ, stdout=subprocess.PIPE, text=True) as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(child.pid, signal.SIGCONT)
        assert child.communicate(timeout=60)[0].split() == ["a", "b", "a", "a"]


def test_several_places_are_separated_by_commas() -> None:
    assert _parse("a:kill@3, b:raise,a:stop") == {"a": [("kill", 3), ("stop", 1)], "b": [("raise", 1)]}
    assert _parse("") == {}


@pytest.mark.parametrize("wrong", ["a", "a:explode", "a:kill@many"])
def test_a_setting_that_means_nothing_is_refused_at_the_start(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"a:|expected NAME|invalid literal"):
        _parse(wrong)
