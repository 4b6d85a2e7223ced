"""Every error that Millstream raises on purpose, in one tree.

A caller catches :class:`MillstreamError`. Each error says what failed, on what, and what was found against what was
expected; ``hint`` is the next thing to do, usually a command. The command line prints both and never a stack,
unless ``--debug``.

::

    MillstreamError
    ├── ConfigError           a setting, a log address, a secret reference
    ├── CodecError            bytes that do not decode, a value that does not encode, a schema that a registry does not know
    │   └── RegistryUnavailable  a schema registry that does not answer; a retry may work
    ├── MachineError          this machine lacks something: Java, a fixed SQLite, a jar, an extra
    ├── SparkError            Spark did not start, or a query failed
    ├── PlanError             a definition that does not hold together, its addresses and settings too; names the place in the user's file
    ├── PipelineError         running a pipeline
    │   ├── AlreadyRunning    another process holds the pipeline's lease
    │   ├── TakenOver         another process has taken the pipeline; this one no longer writes
    │   ├── CheckpointMismatch  the checkpoint is gone, or is of another definition or layout
    │   ├── ExpressionFailed  a user's expression failed on a record
    │   ├── KeyTooLarge       one key has more rows than can be kept or joined at once
    │   ├── DiskFull          no room for the checkpoint, or for Spark's temporary files
    │   └── NeedsSpark        a trial without Spark met what only Spark can compute
    ├── ViewError             where views are kept
    │   ├── UnknownView
    │   ├── ViewBehind        a view that had not come to a position in time
    │   └── ViewStoreUnavailable  a file or database of views that cannot be opened or written
    │       └── ViewStoreFailed   the disk failed under it
    ├── SinkError             something about a place to which changes are sent
    │   ├── SinkUnavailable   it cannot be reached; a retry may work
    │   ├── SinkForgot        it lacks what it has acknowledged
    │   └── RowRefused        a row that it does not take
    ├── VaultError            the keys of sealed values: not there, wrapped by another master key, or no key for a record
    │   ├── NotAVault         a file of something else
    │   └── SealBroken        a token that was changed or moved, or is of another vault
    ├── CaptureError          change capture: a table or a database that cannot be captured
    │   ├── CaptureUnavailable  the database cannot be reached, or another process reads what is ours; a retry may work
    │   ├── CaptureGap        the database cannot give what comes next: it has forgotten it, or is another one
    │   ├── CaptureFenced     another process captures under the same name
    │   └── TableChanged      a captured table is not what it was, so that somebody must decide
    ├── SourcingError         aggregates: states that are folds of their events
    │   ├── Conflict          others appended to the aggregate each time a command was decided
    │   ├── KeyReused         an idempotency key that was another command's
    │   └── Unreadable        a stored event that today's code does not read
    └── LogError              the event log
        ├── UnknownTopic
        ├── UnknownGroup
        ├── TopicExists
        ├── BadName           a topic, group or producer name that no engine accepts
        ├── BadEvent          an event that cannot be appended: too large, no key where one is needed
        ├── LogUnavailable    a broker that does not answer, a file that cannot be opened
        │   └── LogFailed     the disk failed under it
        ├── NotAllowed        the log does not let this user do it
        ├── LogFull           the disk under the log is full; nothing of the batch was kept
        ├── LogCorrupt        bytes that are not what was written
        ├── NotALog           a file of someone else
        ├── NewerFormat       a log written by a later version
        ├── OffsetOutOfRange  records that retention has deleted, or that were never there
        ├── SequenceTooOld    a producer's retry older than what the log remembers
        ├── NotSupported      this engine has no such operation; says which has
        └── Fenced            the caller no longer owns what it writes
            ├── GenerationFenced   a commit by a member of an older generation of its group
            └── DeliveryFenced     an acknowledgement of a delivery that has passed to another worker
"""

from __future__ import annotations

from millstream.printable import printable


class MillstreamError(Exception):
    """The one class to catch; ``hint`` says what to do next. Both are printable, whatever they cite.

    :param message: what failed, on what, found and expected
    :param hint: the next thing to do

    >>> print(MillstreamError("topic clicks: there is none", hint="`millstream topics list`"))
    topic clicks: there is none
      hint: `millstream topics list`
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = printable(message, lines=True)
        self.hint = printable(hint, lines=True)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ConfigError(MillstreamError):
    """A setting that cannot be used."""


class CodecError(MillstreamError):
    """Bytes that do not decode, or a value that does not encode."""


class RegistryUnavailable(CodecError):
    """A schema registry does not answer; a retry may work."""


class MachineError(MillstreamError):
    """This machine lacks something that is needed."""


class SparkError(MillstreamError):
    """Spark did not start, or a query failed."""


class PlanError(MillstreamError):
    """A definition that does not hold together."""


class PipelineError(MillstreamError):
    """Something about running a pipeline."""


class AlreadyRunning(PipelineError):
    """Another process holds the pipeline's lease."""


class TakenOver(PipelineError):
    """Another process has taken the pipeline; this one wrote nothing since."""


class CheckpointMismatch(PipelineError):
    """The checkpoint is gone, or it is of another definition; going on would skip or repeat records."""


class ExpressionFailed(PipelineError):
    """A user's expression failed on a record. ``advice`` is for one behind a kernel, also where only the text of it arrives."""

    advice = (
        "correct the row in its topic and run again; or keep such rows out with where(), or compute it in the last select of the"
        " view by a form that gives null (try_add, try_cast, …), and run with --rebuild"
    )


class KeyTooLarge(PipelineError):
    """One key has more rows than can be kept or joined at once. What to do is always the same, also where only the text of it arrives."""

    advice = (
        "join on more columns, or group by more, select fewer, narrow the interval or the window, or aggregate one side first;"
        " smaller batches make fewer pairs"
    )


class DiskFull(PipelineError):
    """No room for the checkpoint or for Spark's temporary files; nothing of the batch was written."""


class NeedsSpark(PipelineError):
    """A trial without Spark met what only Spark can compute."""


class ViewError(MillstreamError):
    """Something about where views are kept."""


class UnknownView(ViewError):
    """No view of that name."""


class ViewBehind(ViewError):
    """A view had not come to the position that was asked for within the time that was given; it is as it was."""


class ViewStoreUnavailable(ViewError):
    """A file or database of views that cannot be opened or written; a retry may work."""


class ViewStoreFailed(ViewStoreUnavailable):
    """The disk failed under an open file of views: it must be opened again, and waiting helps nothing."""


class SinkError(MillstreamError):
    """Something about a place to which the changes of a view are sent."""


class SinkUnavailable(SinkError):
    """A sink that cannot be reached; a retry may work."""


class SinkForgot(SinkError):
    """A sink lacks what it has acknowledged, and nobody can give it again."""


class RowRefused(SinkError):
    """A row that a sink does not take, where that stops the pipeline."""


class VaultError(MillstreamError):
    """Something about a vault, which keeps the keys of sealed values."""


class NotAVault(VaultError):
    """The file belongs to something else, or was made by a later version; it was left alone."""


class SealBroken(VaultError):
    """A token that does not open: changed after it was sealed, moved to another field, or of another vault. A key that was deleted is no error."""


class CaptureError(MillstreamError):
    """Something about capturing the changes of a database."""


class CaptureUnavailable(CaptureError):
    """A database that cannot be reached, or whose changes another process reads; a retry may work."""


class CaptureGap(CaptureError):
    """The database cannot give what comes after our position without leaving something out; nothing was appended."""


class CaptureFenced(CaptureError):
    """Another process has begun to capture under the same name; this one appended nothing since."""


class TableChanged(CaptureError):
    """A captured table has lost a column, or has another type or key; what comes next was not appended."""


class SourcingError(MillstreamError):
    """Something about an aggregate: its events, its commands, or its code."""


class Conflict(SourcingError):
    """Others appended to the aggregate each time the command was decided; nothing of it was appended."""


class KeyReused(SourcingError):
    """An idempotency key was used before, for a command to another aggregate or of another type; nothing was appended."""


class Unreadable(SourcingError):
    """A stored event does not fit what today's code expects; it was left as it is."""


class LogError(MillstreamError):
    """Something about the event log."""


class UnknownTopic(LogError):
    """No topic of that name."""


class UnknownGroup(LogError):
    """No group of that name."""


class TopicExists(LogError):
    """A topic of that name is there already."""


class BadName(LogError):
    """A name that no engine accepts."""


class BadEvent(LogError):
    """An event that cannot be appended; nothing of its batch was."""


class LogUnavailable(LogError):
    """The log cannot be reached; a retry may work."""


class NotAllowed(LogError):
    """The log answers, and does not let this user in or do it, or is not trusted; a retry will not work."""


class LogFailed(LogUnavailable):
    """The disk failed under an open log: it must be opened again, and waiting helps nothing."""


class LogFull(LogError):
    """No room on the disk; nothing of the batch was kept, and earlier records are safe."""


class LogCorrupt(LogError):
    """Stored bytes are not what was written."""


class NotALog(LogError):
    """The file belongs to something else and was left alone."""


class NewerFormat(LogError):
    """The log was written by a later version and was left alone."""


class OffsetOutOfRange(LogError):
    """The records asked for are not in the log; ``missing`` is the half-open range of offsets."""

    def __init__(self, message: str, *, missing: tuple[int, int], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


class SequenceTooOld(LogError):
    """A producer repeats a sequence number that the log no longer remembers; nothing was added."""


class NotSupported(LogError):
    """This engine has no such operation."""


class Fenced(LogError):
    """The caller has lost the right to write this."""


class GenerationFenced(Fenced):
    """The member belongs to an older generation of its group, or does not own the partition."""


class DeliveryFenced(Fenced):
    """The delivery timed out and has passed to another worker."""
