"""The command line as a user meets it: results on stdout, the rest on stderr, exit codes, JSON, help."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from millstream.cli import cli, execute
from millstream.event import Event
from millstream.log import open_log
from tests.mounted import mounted
from tests.waiting import until

Run = Callable[..., Any]
COMMAND = [sys.executable, "-c", "from millstream.cli import main; main()"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for variable in [
        name for name in os.environ if name.startswith("MILLSTREAM_") and name != "MILLSTREAM_CLASS_ARCHIVE"
    ]:
        monkeypatch.delenv(variable)
    return tmp_path


@pytest.fixture
def go(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; give (exit code, stdout, stderr)."""

    def go(*arguments: str, text: str = "") -> tuple[int, str, str]:
        stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        code = execute(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return go


@pytest.fixture(params=["sqlite", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("kafka").url if request.param == "kafka" else f"sqlite:{tmp_path / 'log.db'}"


def lines(count: int) -> str:
    return "".join(
        json.dumps({"user": i % 7, "n": i, "at": f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}Z"}) + "\n"
        for i in range(count)
    )


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))
    else:
        yield " ".join(path), command


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_has_help_with_an_example_and_describes_its_options(
    name: str, command: click.Command, go: Run
) -> None:
    code, out, _ = go(*name.split(), "--help")
    assert code == 0
    assert f"millstream {name}" in out
    assert "Example" in out
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"


def test_commands_that_print_data_print_json_too() -> None:
    silent = {"topics delete", "groups delete", "capture alter", "capture remove", "capture snapshot", "completion"}
    for name, command in commands():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) == (name not in silent), name


def test_a_round_trip_on_either_engine(go: Run, log: str) -> None:
    topic = f"clicks-{os.urandom(4).hex()}"
    where = ("--log", log)
    code, out, err = go("topics", "create", topic, "--partitions", "3", "--retention", "7d", "--json", *where)
    assert (code, err) == (0, "")
    described = json.loads(out)
    assert (described["name"], len(described["partitions"]), described["settings"]["retention"]) == (topic, 3, 604800.0)

    code, out, _ = go("produce", topic, "--key-field", "user", "--time-field", "at", "--json", *where, text=lines(100))
    assert code == 0
    assert json.loads(out)["records"] == 100

    code, out, _ = go("consume", topic, "--json", *where)
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sorted(record["value"]["n"] for record in records) == list(range(100))
    assert all(
        record["time"] == record["value"]["at"] and record["key"] == str(record["value"]["user"]) for record in records
    )

    code, out, _ = go("consume", topic, "--from", "2026-01-01T00:01:30Z", "--json", *where)
    assert sorted(json.loads(line)["value"]["n"] for line in out.splitlines()) == list(range(90, 100))

    group = f"g-{topic}"
    code, out, _ = go("consume", topic, "--group", group, "--max", "40", "--json", *where)
    assert code == 0
    assert len(out.splitlines()) == 40
    code, out, _ = go("lag", "--group", group, "--json", *where)
    rows = json.loads(out)
    assert {"group", "topic", "partition", "committed", "end", "records", "seconds", "warning"} <= rows[0].keys()
    assert sum(row["records"] for row in rows) >= 60

    before = rows
    code, out, err = go("groups", "reset", group, "--topic", topic, "--to", "latest", "--json", *where)
    assert code == 0
    assert "nothing was changed" in err
    assert {move["partition"] for move in json.loads(out)} == {0, 1, 2}
    unmoved = json.loads(go("lag", "--group", group, "--json", *where)[1])
    assert [row["committed"] for row in unmoved] == [row["committed"] for row in before]
    code, _, _ = go("groups", "reset", group, "--topic", topic, "--to", "latest", "--yes", *where)
    assert code == 0
    assert sum(row["records"] for row in json.loads(go("lag", "--group", group, "--json", *where)[1])) == 0

    code, out, _ = go("topics", "alter", topic, "--retention", "none", "--partitions", "5", "--json", *where)
    assert (code, json.loads(out)["settings"]["retention"], len(json.loads(out)["partitions"])) == (0, None, 5)
    assert topic in {row["name"] for row in json.loads(go("topics", "list", "--json", *where)[1])}
    assert group in {row["group"] for row in json.loads(go("groups", "list", "--json", *where)[1])}
    assert go("topics", "compact", topic, "--json", *where)[0] == 0
    code, out, _ = go("topics", "archive", topic, "--to", "archive", "--json", *where)
    assert (code, json.loads(out)["records"]) == (0, 100)
    assert go("groups", "delete", group, "--yes", *where)[0] == 0
    code, _, err = go("topics", "delete", topic, *where)
    assert code == 2
    assert "--yes" in err
    assert go("topics", "delete", topic, "--yes", *where)[0] == 0
    code, _, err = go("topics", "describe", topic, *where)
    assert code == 1
    assert f"no topic {topic}" in err


def test_people_get_tables(go: Run) -> None:
    go("topics", "create", "clicks", "-p", "2", "--retention", "36h")
    go("produce", "clicks", text=lines(10))
    assert go("topics", "list")[1].splitlines()[0].split() == [
        "TOPIC",
        "PARTITIONS",
        "OFFSETS",
        "CLEANUP",
        "RETENTION",
        "GROUPS",
        "LAG",
    ]
    assert "36h" in go("topics", "list")[1]
    _, out, _ = go("consume", "clicks", "--max", "1")
    partition, offset, time, key, value = out.rstrip("\n").split("\t")
    assert (offset, key, json.loads(value)["user"]) == ("0", "-", int(partition))
    assert time.endswith("+00:00")


def test_an_empty_result_is_valid_json_and_a_hint_for_people(go: Run) -> None:
    go("topics", "create", "clicks")
    assert json.loads(go("lag", "--json")[1]) == []
    code, out, err = go("lag")
    assert (code, out) == (0, "")
    assert "no group" in err


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["lag", "--log", "foo:bar"], 2, "expected sqlite:PATH or kafka://HOST:PORT"),
        (["topics", "create", "a b"], 2, "not allowed"),
        (["topics", "create", "a", "--retention", "soon"], 2, "not a duration"),
        (["topics", "create"], 2, "Missing argument"),
        (["no-such-command"], 2, "No such command"),
        (["topics", "list", "--log", "sqlite:missing.db"], 1, "no log at"),
        (["topics", "list", "--log", "kafka://127.0.0.1:1"], 1, "is the broker up"),
        (["consume", "clicks", "--from", "whenever"], 2, "expected earliest, latest"),
        (["--config", "missing.toml", "lag"], 2, "no such file"),
    ],
)
def test_an_error_is_named_on_stderr_with_its_exit_code(
    go: Run, arguments: list[str], code: int, expected: str
) -> None:
    with open_log("sqlite:millstream.db") as log:
        log.create_topic("clicks")
    found, out, err = go(*arguments)
    assert (found, out) == (code, "")
    assert expected in " ".join(err.split())
    assert "Traceback" not in err


def test_a_bad_line_stops_producing_after_the_lines_before_it(go: Run) -> None:
    go("topics", "create", "clicks")
    code, _, err = go(
        "produce", "clicks", "--key-field", "user", text='{"user": 1}\n{"user": 2}\n{"no": 3}\n{"user": 4}\n'
    )
    assert code == 1
    assert "line 3: no field 'user'" in err
    assert len(go("consume", "clicks")[1].splitlines()) == 2


def test_a_line_that_the_topic_does_not_take_is_named_by_its_number(go: Run) -> None:
    go("topics", "create", "notes")
    text = "\n".join(["short", "", "x" * 1_000_001, "after"])
    code, out, err = go("produce", "notes", "--format", "text", text=text)
    assert (code, out) == (1, "")
    assert "line 3: 1,000,001 bytes, topic notes takes up to 1,000,000; the lines before it are in the log" in err
    assert "1 of 1 events that were read are in the log" in err
    assert [line.split("\t")[-1] for line in go("consume", "notes")[1].splitlines()] == ["short"]
    code, out, _ = go("produce", "notes", "--format", "text", "--skip-bad", "--json", text=text)
    assert (code, json.loads(out)["records"], json.loads(out)["skipped"]) == (0, 2, 1)
    go("topics", "create", "names", "--cleanup", "compact")
    assert "line 1: no key, and topic names is compacted by key" in go("produce", "names", text="{}\n")[2]


def test_producing_onto_a_full_disk_ends_at_once_and_says_what_is_in_the_log(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    wrapper = mounted(disk, "size=12m")
    (folder / "feed.py").write_text(
        "line = '{\"text\": \"' + 'to fill the disk ' * 50 + '\"}'\nfor _ in range(40_000): print(line)"
    )
    command, log = f"{sys.executable} -c 'from millstream.cli import main; main()'", "--log sqlite:disk/log.db"
    text = f"{command} topics create t {log} > /dev/null; {sys.executable} feed.py | {command} produce t {log}"
    done = subprocess.run([*wrapper, "sh", "-c", text], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "no room on the disk" in done.stderr
    found = re.search(r"([\d,]+) of ([\d,]+) events that were read are in the log", done.stderr)
    assert found
    assert 1000 <= int(found[1].replace(",", "")) < 40_000


def test_a_read_only_folder_is_told_with_what_to_do(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    (folder / "p.py").write_text(
        'from millstream import Pipeline\np = Pipeline("p")\np.view("v", p.stream("t", "n long").select("n"))\n'
    )
    command = f"{sys.executable} -c 'from millstream.cli import main; main()'"
    text = (
        f"{command} topics create t >&2 && mount -o remount,ro . && {{ {command} consume t; {command} run ../p.py; }}"
    )
    done = subprocess.run(
        [*mounted(disk, "size=12m"), "sh", "-c", f"cd {disk} && {text}"], capture_output=True, text=True, timeout=120
    )
    said = done.stderr.splitlines()
    assert [line.split(":")[0].strip() for line in said[-4:]] == ["error", "hint"] * 2, done.stderr
    assert "millstream.db: its folder is read-only, and SQLite writes beside the file even to read it" in said[-4]
    assert "copy the file with its -wal" in said[-3]
    assert "p.checkpoint.spark.log: Spark's log cannot be written: Read-only file system" in said[-2]


def test_bad_lines_can_be_skipped_and_are_counted(go: Run) -> None:
    go("topics", "create", "clicks")
    text = '{"user": 1}\nnot json\n{"at": "2026"}\n\n{"user": 4}\n'
    code, out, _ = go("produce", "clicks", "--key-field", "user", "--skip-bad", "--json", text=text)
    assert (code, json.loads(out)["records"], json.loads(out)["skipped"]) == (0, 2, 2)


def test_text_lines_and_binary_values_survive(go: Run) -> None:
    go("topics", "create", "notes")
    go("produce", "notes", "--format", "text", text="hello there\n")
    with open_log("sqlite:millstream.db") as log:
        log.append("notes", [Event(b"\xff\x00", b"k"), Event(None, b"k")])
    values = [json.loads(line)["value"] for line in go("consume", "notes", "--json")[1].splitlines()]
    assert values == ["hello there", {"base64": "/wA="}, None]


def test_flags_beat_the_environment_which_beats_the_file(
    go: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("file", "environment", "flag"):
        with open_log(f"sqlite:{name}.db") as log:
            log.create_topic(f"from-{name}")
    (folder / "millstream.toml").write_text('log = "sqlite:file.db"\n')
    assert "from-file" in go("topics", "list")[1]
    monkeypatch.setenv("MILLSTREAM_LOG", "sqlite:environment.db")
    assert "from-environment" in go("topics", "list")[1]
    assert "from-flag" in go("topics", "list", "--log", "sqlite:flag.db")[1]
    assert "from-flag" in go("--log", "sqlite:flag.db", "topics", "list")[1]


def test_no_secret_is_ever_printed(go: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "hunter2-canary")
    (folder / "millstream.toml").write_text(
        'log = "kafka://127.0.0.1:1"\n[kafka]\n"sasl.username" = "me"\n"sasl.password" = "${env:CANARY}"\n'
        '"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanisms" = "PLAIN"\n'
    )
    for arguments in (["--debug", "lag"], ["doctor", "--quick"]):
        code, out, err = go(*arguments)
        assert code == 1
        assert "canary" not in out + err
    (folder / "millstream.toml").write_text('[kafka]\n"sasl.password" = "hunter2-canary"\n')
    code, out, err = go("lag")
    assert code == 2
    assert "canary" not in out + err
    assert "${env:" in err


def test_debug_shows_the_stack_and_its_absence_does_not(go: Run) -> None:
    assert "Traceback" in go("--debug", "topics", "list", "--log", "sqlite:missing.db")[2]
    assert "Traceback" in go("topics", "list", "--log", "sqlite:missing.db", "--debug")[2]
    assert "Traceback" not in go("topics", "list", "--log", "sqlite:missing.db")[2]


def test_following_ends_with_130_and_leaves_the_group(go: Run) -> None:
    go("topics", "create", "clicks")
    with open_log("sqlite:millstream.db") as log:
        for count, stop in enumerate((signal.SIGINT, signal.SIGTERM), 1):
            child = subprocess.Popen(
                [*COMMAND, "consume", "clicks", "--group", "g", "--follow", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert child.stdout is not None
            log.append("clicks", [Event(b'{"n": 1}')])
            assert json.loads(child.stdout.readline())["value"] == {"n": 1}
            until(lambda: sum(o for g in log.groups() for o in g.offsets.values()) == count)  # noqa: B023
            child.send_signal(stop)
            out, err = child.communicate(timeout=30)
            assert child.returncode == 130
            assert (out, b"Traceback" in err) == (b"", False)
            assert until(lambda: [g for g in log.groups() if g.name == "g"])[0].members == ()


def test_a_closed_pipe_is_not_an_error(go: Run) -> None:
    go("topics", "create", "clicks")
    go("produce", "clicks", text=lines(5000))
    for arguments in ("consume clicks", "consume clicks --json", "--help"):
        script = f"set -o pipefail; {' '.join(map(repr, COMMAND))} {arguments} | head -c 10"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        assert (result.returncode, len(result.stdout), result.stderr) == (0, 10, "")


def test_a_pipe_of_somebody_else_that_breaks_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError("of a server")

    monkeypatch.setattr("millstream.cli.lag.command", click.Command("lag", callback=fail))
    with pytest.raises(BrokenPipeError, match="of a server"):
        execute(["lag"])


def test_no_colour_when_nobody_wants_it(go: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    go("topics", "create", "clicks")
    assert "\x1b[3" not in go("topics", "list")[1] + go("lag", "--log", "sqlite:missing.db")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion(go: Run, shell: str) -> None:
    code, out, _ = go("completion", shell)
    assert code == 0
    assert "_MILLSTREAM_COMPLETE" in out


def test_completion_completes() -> None:
    environment = os.environ | {
        "_MILLSTREAM_COMPLETE": "bash_complete",
        "COMP_WORDS": "millstream to",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "topics" in result.stdout


def test_doctor_looks_and_says_what_is_wrong(go: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = go("doctor", "--quick", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 0
    assert {"python", "sqlite", "java", "cache folder", "temporary folder", "log"} <= checks.keys()
    assert checks["spark's inside"]["found"].startswith("on: fork, daemon, ")
    monkeypatch.setenv("MILLSTREAM_WITHOUT", "links,fork")
    inside = next(each for each in json.loads(go("doctor", "--quick", "--json")[1]) if each["name"] == "spark's inside")
    assert inside["ok"]
    assert inside["found"].endswith("; off: fork, links")
    (folder / "notes.txt").write_text("not a log")
    code, out, _ = go("doctor", "--quick", "--log", "sqlite:notes.txt")
    assert code == 1
    assert "bad" in out
    assert "→" in out


def test_doctor_says_what_can_be_done_about_the_folder_at_hand(go: Run, folder: Path) -> None:
    (folder / "notes.txt").write_text("no folder")
    code, out, _ = go(
        "doctor", "--quick", "--json", "--log", "sqlite:notes.txt/log.db", "--views", "sqlite:notes.txt/v.db"
    )
    assert code == 1
    hints = {check["name"]: check["hint"] for check in json.loads(out) if not check["ok"]}
    assert hints == {
        "log": "make it writable, or name a log in another folder: --log, or log in millstream.toml",
        "views": "make it writable, or name views in another folder",
    }


def test_a_bench_prints_what_it_measured(go: Run) -> None:
    code, out, _ = go("bench", "log", "--only", "append,read", "--scale", "0.01", "--json")
    report = json.loads(out)
    assert code == 0
    assert [result["name"] for result in report["results"]] == ["append", "read"]
    for result in report["results"]:
        assert result["ratio"] == pytest.approx(result["value"] / result["baseline"], rel=0.01)
    assert report["machine"]["cores"] >= 1
    assert "apsw" in report["versions"]
    assert "RATIO" in go("bench", "log", "--only", "append", "--scale", "0.01")[1]
    assert go("bench", "log", "--only", "nonsense")[0] == 2
