"""Where people type: a prompt with history and completion, that goes on over several lines until there is a ``;``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from millstream.errors import PlanError
from millstream.sql.script import cut

if TYPE_CHECKING:
    from millstream.shell.session import Session

COMMANDS = ("help", "exit", "quit", "\\json")
"""What needs no ``;``."""
_KEYWORDS = """
    ALL ALLOWED AND ANTI AS BETWEEN BY CASE CAST CHANGES COUNT CREATE DESC DESCRIBE DISTINCT DROP ELSE EMIT END EXISTS EXPLAIN
    FALSE FILTER FINAL FOR FROM FULL GROUP HAVING HOP IN INNER INTERVAL INTO IS JOIN KEY LATENESS LEFT LIKE LIMIT NOT NULL ON OR
    ORDER OUTER OVER PARTITION PIPELINE PRIMARY QUALIFY RIGHT SELECT SEMI SESSION SHOW SINK SINKS SLIDE STREAM STREAMS
    SYSTEM_TIME TABLE TABLES TEMPORARY THEN TOPICS TRUE TUMBLE UNION USING VIEW VIEWS WATERMARK WHEN WHERE WITH
    AVG COALESCE FIRST LAST MAX MIN SUM window_end window_start
"""


class Prompt:
    """Reads one statement after the other; EOFError at the end, KeyboardInterrupt for one that is given up."""

    def __init__(self, session: Session) -> None:
        text = Condition(lambda: not is_whole(self._session.default_buffer.text))
        self._session: PromptSession[str] = PromptSession(
            "millstream> ",
            history=_history(),
            completer=Words(session),
            complete_while_typing=False,
            multiline=text,
            prompt_continuation=lambda width, *_: " " * (width - 2) + "| ",
        )

    def read(self) -> str:
        """What was typed, up to a ``;``."""
        return self._session.prompt()


def is_whole(text: str) -> bool:
    """Whether a text can be done: it is a command, or every statement in it is ended.

    >>> [is_whole(text) for text in ("SELECT 1", "SELECT 1;", "SELECT ';", "exit", "")]
    [False, True, False, True, True]
    >>> is_whole(chr(92) + "d")  # no command of ours, but no beginning of a statement either
    True
    """
    if text.strip().lower() in COMMANDS or text.lstrip().startswith("\\"):
        return True
    try:
        return all(statement.ended for statement in cut(text))
    except PlanError:
        return False


class Words(Completer):
    """Completes keywords, the names of what there is, and the names of columns."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        """What the word at the cursor may become."""
        found = re.search(r"\\?\w+$", document.text_before_cursor)
        if found is None:
            return
        typed = found.group()
        for word in self._words(only_commands=document.text_before_cursor.strip() == typed):
            if word.lower().startswith(typed.lower()) and word.lower() != typed.lower():
                shown = word.lower() if word.isupper() and typed.islower() else word
                yield Completion(shown, start_position=-len(typed))

    def _words(self, *, only_commands: bool) -> Iterator[str]:
        relations = self._session.pipeline.relations
        yield from dict.fromkeys(
            (
                *relations,
                *(column for relation in relations.values() for column in relation.columns),
                *(COMMANDS if only_commands else ()),
                *_KEYWORDS.split(),
            )
        )


def _history() -> History:
    """What was typed before, in the user's own folder; in memory where there is none."""
    path = user_state_path("millstream") / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
