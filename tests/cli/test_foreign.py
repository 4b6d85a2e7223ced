"""What strangers wrote is data: every command shows it on a terminal as it is, obeys nothing in it, and ends for none of it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from millstream import Event, Pipeline, open_log
from millstream.cli import execute
from millstream.cli.run import shown
from millstream.errors import MillstreamError, SinkUnavailable
from millstream.notebook import relation_html
from millstream.runtime.progress_report import guarded
from millstream.runtime.run import Progress
from millstream.runtime.sink_dispatch import Patience
from millstream.store.contract import COUNTS, REJECTS, WEIGHT, Batch, Target
from millstream.store.sqlite.writer import sqlite_writer

MARKUP = "[red]gone[/red] see [/etc/passwd] [bold] :warning:"
OBEYED = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b2Jm\x00\x7f"
FORGED = "one\nerror: forged\n"
HOSTILE = MARKUP + OBEYED + FORGED
SEEN = (MARKUP, "\\x1b]52;c;cHduZWQ=\\x07\\x1b[2J\\x9b2Jm\\x00\\x7f", "one\\nerror: forged\\n")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log and a file of views that hold such text, and a pipeline whose definition looks like markup."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    with open_log("sqlite:millstream.db", create=True) as log:
        log.create_topic("t", 1)
        log.append("t", [Event(json.dumps({"text": HOSTILE, "xs": [1]}).encode(), b"k")])
        log.create_topic("raw", 1)
        log.append("raw", [Event(HOSTILE.encode(), HOSTILE.encode(), headers=(("h", HOSTILE.encode()),))])
    target = Target("v", pa.schema([("text", pa.string()), ("n", pa.int64())]), ("text",))
    with sqlite_writer("views.db") as sink:
        fence = sink.claim("p")
        sink.prepare("p", "f00d", [target])
        rows = pa.table({"text": [HOSTILE], "n": [1]}, target.schema).append_column(WEIGHT, pa.array([1], pa.int64()))
        sink.commit(
            Batch("c", 0, fence, {"t": {0: 1}}, {"v": rows}, rejects=REJECTS.empty_table(), counts=COUNTS.empty_table())
        )
    (tmp_path / "p.py").write_text(
        "from millstream import Pipeline\n"
        "p = Pipeline('p', log='sqlite:millstream.db', to='sqlite:views.db')\n"
        "s = p.stream('t', 'text string, xs array<int>, bold int')\n"
        "p.view('v', s.select('text', 'xs[bold] AS x'))\n"
    )
    return tmp_path


@contextmanager
def terminal(columns: int = 400) -> Iterator[list[str]]:
    """Our own output as a terminal gets it, without the styles that are ours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    found: list[str] = []
    data = bytearray()

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                data.extend(part)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    wide = pytest.MonkeyPatch()
    wide.setenv(
        "COLUMNS", str(columns)
    )  # a worker of xdist has other descriptors, by which nobody sees the size of this terminal
    kept = os.dup(1), os.dup(2), sys.stdout, sys.stderr
    os.dup2(theirs, 1)
    os.dup2(theirs, 2)
    os.close(theirs)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    try:
        yield found
    finally:
        wide.undo()
        sys.stdout.close()
        sys.stderr.close()
        sys.stdout, sys.stderr = kept[2:]
        for number, old in zip((1, 2), kept[:2], strict=True):
            os.dup2(old, number)
            os.close(old)
        reader.join()
        os.close(ours)
        found.append(_STYLE.sub("", data.decode()).replace("\r\n", "\n"))


def on_screen(*arguments: str, code: int = 0) -> str:
    with terminal() as found:
        ended = execute(list(arguments))
    assert ended == code, found[0]
    left = [letter for letter in found[0] if letter != "\n" and (ord(letter) < 32 or 127 <= ord(letter) < 160)]
    assert set(left) <= set("\t"), found[0]
    assert "\nerror: forged" not in found[0]
    return found[0]


SELECT = "CREATE STREAM t (text STRING); SELECT text FROM t"


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "raw"),
        ("views", "show", "v"),
        ("views", "query", "v", "SELECT text FROM v"),
        ("views", "query", "v", 'SELECT n AS "' + HOSTILE.replace("\0", "") + '" FROM v'),
        ("sql", "-c", SELECT),
    ],
    ids=["consume", "views show", "views query", "a heading", "sql"],
)
def test_a_value_is_shown_as_it_is(arguments: tuple[str, ...]) -> None:
    out = on_screen(*arguments)
    for part in SEEN:
        assert part.replace("\\x00", "" if "AS" in arguments[-1] else "\\x00") in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "raw", "--json"),
        ("views", "show", "v", "--json"),
        ("views", "query", "v", "SELECT text FROM v", "--json"),
        ("sql", "--json", "-c", SELECT),
    ],
    ids=["consume", "views show", "views query", "sql"],
)
def test_json_is_as_safe_and_says_the_same(arguments: tuple[str, ...]) -> None:
    assert json.dumps(HOSTILE).replace("\x7f", "\\u007f") in on_screen(*arguments)


@pytest.mark.parametrize(
    "arguments", [("explain", "p.py"), ("plan", "p.py"), ("views", "list"), ("lag",), ("topics", "list")]
)
def test_a_definition_is_no_markup(arguments: tuple[str, ...]) -> None:
    out = on_screen(*arguments)
    if arguments[0] == "explain":
        assert "xs[bold]" in out


def test_a_view_is_a_line_of_eighty_columns() -> None:
    with terminal(80) as found:
        assert execute(["views", "list"]) == 0
    store, heading, row = found[0].splitlines()
    assert store == "in sqlite:views.db"
    assert heading.split() == ["VIEW", "PIPELINE", "ROWS", "REFUSED", "BATCH", "UPDATED"]
    assert re.fullmatch(r"v +p +1 +0 +0 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d *", row)


def test_an_error_cites_what_it_found() -> None:
    out = on_screen("views", "query", "v", f"SELECT '[/x]' FROM \"{OBEYED.replace(chr(0), '')}[red]\"", code=1)
    assert "no such table: \\x1b]52;c;cHduZWQ=\\x07\\x1b[2J\\x9b2Jm\\x7f[red]" in out
    assert "error: no group [/x]" in on_screen("groups", "describe", "[/x]", code=1)


def test_a_deep_record_is_shown_as_text(folder: Path) -> None:
    with open_log("sqlite:millstream.db") as log:
        log.append("t", [Event(b"[" * 200_000)])
    assert '"value":"[[[[' in on_screen("consume", "t", "--json", "--from", "1")


def test_a_notebook_shows_it_too() -> None:
    stream = Pipeline("p", log="sqlite:millstream.db").stream("raw", "text string")
    html = relation_html(stream.node, ["text"], "", "sqlite:millstream.db", {})
    assert "\\x1b]52" in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", html)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_sink_that_answers_in_markup_is_waited_for(as_json: bool, folder: Path) -> None:
    tried = []

    def send() -> str:
        tried.append(1)
        if len(tried) < 3:
            raise SinkUnavailable(f"503 from [/api/v1]{OBEYED}{FORGED}")
        return "sent"

    with terminal() as found, shown(Pipeline("p"), as_json, threading.Event()) as report:
        waits = Patience(threading.Event(), lambda why: report(Progress("p", waiting=why)))
        assert waits.call("sink out", send) == "sent"
    assert "503 from [/api/v1]\\" in found[0]
    assert "\x1b]" not in found[0]
    assert "\x9b" not in found[0]
    assert "\nerror: forged" not in found[0]


def test_a_report_that_fails_is_told_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(progress: Progress) -> None:
        raise BrokenPipeError(progress.pipeline)

    report = guarded(fail)
    with caplog.at_level(logging.WARNING, "millstream"):
        report(Progress("p"))
        report(Progress("p"))
    assert [each.getMessage() for each in caplog.records] == [
        "a progress report failed, the run goes on: BrokenPipeError('p')"
    ]
    silent: Callable[[Progress], None] = guarded(None)
    silent(Progress("p"))


@pytest.mark.parametrize("as_json", [True, False])
def test_a_reader_that_leaves_stops_the_run(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    reader, writer = os.pipe()
    stop = threading.Event()
    with os.fdopen(writer, "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stdout" if as_json else "stderr", pipe)
        stack = ExitStack()
        report = guarded(stack.enter_context(shown(Pipeline("p"), as_json, stop)))
        report(Progress("p", batch=0))
        assert os.read(reader, 1000)
        assert not stop.is_set()
        os.close(reader)
        report(Progress("p", batch=1))
        assert stop.is_set()
        with pytest.raises(BrokenPipeError):
            stack.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_a_message_of_several_lines_stays_one() -> None:
    assert MillstreamError("a\nb\tc").message == "a\nb\tc"
