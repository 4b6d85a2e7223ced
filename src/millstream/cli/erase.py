"""``millstream erase``: forget somebody."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from millstream.cli.logs import logging_options
from millstream.cli.output import (
    json_option,
    log_option,
    opened_pipeline,
    quiet_spark,
    settings,
    show,
    spark_options,
    stderr,
    to_json,
)

_files = click.argument("files", metavar="FILE...", nargs=-1, required=True)


@click.group("erase")
def command() -> None:
    """Forget somebody: hide what is known of a subject at once, then erase it.

    Sources say whose their records are: subject={"user": "user_id"}, personal=["email"].
    """


@command.command("request")
@_files
@click.option("--subject", "who", metavar="KIND=NAME", required=True, help="Who is to be forgotten: user=123.")
@click.option(
    "--records/--fields",
    default=True,
    help="Their records count no more; or the records stay, without personal data and under a pseudonym.  [default: --records]",
)
@log_option
@json_option
def request(files: tuple[str, ...], who: str, records: bool, log_url: str | None, as_json: bool) -> None:
    """Take a request to forget somebody, and hide at once what views and `consume` show of them.

    FILEs are the pipelines over the log. A row is hidden if a column of it is one by which a source tells the subject, passed on as it is. Views that may
    show something else of them are named. Nothing is removed before `millstream erase run`.

    \b
    Examples:
      millstream erase request shop.py --subject user=123
      millstream erase request shop.py audit.sql --subject user=123 --fields --json
    """
    from millstream.erase.request import request as take
    from millstream.erase.request import sources_outside, subject_of

    pipelines = [opened_pipeline(file, log_url) for file in files]
    taken = take(pipelines, subject_of(who), "records" if records else "fields", sources_outside(settings().erase))
    facts = {
        "request": taken.request.id, "kind": taken.request.kind, "mode": taken.request.mode, "topics": taken.topics,
        "hidden": taken.hidden, "may_show": taken.shown, "audit": taken.head,
    }  # fmt: skip
    if as_json:
        click.echo(to_json(facts))
        return
    click.echo(taken.request.id)
    told = stderr()
    told.print(f"request {taken.request.id}: hidden in {', '.join(taken.hidden) or 'no view'}", soft_wrap=True)
    if taken.shown:
        told.print(f"may still show something: {', '.join(taken.shown)}", soft_wrap=True)
    told.print(f"the audit log's last hash is {taken.head}", soft_wrap=True)


@command.command("run")
@_files
@click.option("--dry-run", is_flag=True, help="Look where they are, and change nothing.")
@spark_options
@logging_options
@log_option
@json_option
def run(
    files: tuple[str, ...],
    dry_run: bool,
    master: str | None,
    conf: tuple[str, ...],
    log_url: str | None,
    as_json: bool,
) -> None:
    """Erase everybody who waits: blank their records, compute views anew, remove what was before, and look once more.

    FILEs are all pipelines that read the topics; none of them may run. Views can be read until new ones take their place. One that was killed goes on
    where it was when it is called again. It ends with a certificate, as JSON and as a page, beside the log: what was removed, in how many places they were
    found before and after, and what could not be looked into.

    \b
    Examples:
      millstream erase run shop.py --dry-run
      millstream erase run shop.py audit.sql --json
    """
    from millstream.erase.request import sources_outside
    from millstream.erase.run import erase

    pipelines = [opened_pipeline(file, log_url, master=master, conf=conf) for file in files]

    def tell(what: str) -> None:
        stderr().print(what, soft_wrap=True)

    with quiet_spark(pipelines[0]):
        done = erase(
            pipelines,
            topics=sources_outside(settings().erase),
            dry_run=dry_run,
            tell=(lambda _: None) if as_json else tell,
        )
    found = done.certificate
    if as_json:
        outcome = {"certificate": msgspec.to_builtins(found), "path": str(done.path or ""), "audit": done.head}
        click.echo(to_json({**outcome, "before": found.places_before, "after": found.places_after}))
        return
    rows = [
        {"place": each.place, "before": each.before, "after": each.after}
        for each in found.looked
        if each.before or each.after
    ]
    columns = (
        {"place": "PLACE", "before": "FOUND"} if dry_run else {"place": "PLACE", "before": "BEFORE", "after": "AFTER"}
    )
    show(rows, columns, as_json=False, empty="found nowhere")
    for odd in found.odd:
        tell(f"not decoded: {odd.place}: {odd.why}; {odd.now}")
    if done.path is not None:
        tell(f"{found.summary}; the certificate is {done.path}")
        tell(f"the audit log's last hash is {done.head}")


@command.command("status")
@log_option
@json_option
def status(log_url: str | None, as_json: bool) -> None:
    """List the requests about the log, after the audit log was checked from its beginning.

    \b
    Examples:
      millstream erase status
      millstream erase status --json
    """
    from millstream.erase import audit
    from millstream.erase.register import Register
    from millstream.erase.request import register_of
    from millstream.log import open_log

    address = log_url or settings().log
    rows: list[dict[str, Any]] = []
    path = register_of(address)
    with open_log(address, create=False) as log:
        entries, head = audit.check(log)
    if path.exists():
        with Register(path, create=False) as register:
            for each in register.requests():
                name = each.subject.name if each.subject is not None else ""
                rows.append(
                    {
                        "request": each.id, "kind": each.kind, "name": name, "digest": each.digest, "mode": each.mode,
                        "asked": each.asked, "done": each.done, "outcome": each.outcome,
                    }
                )  # fmt: skip
    if as_json:
        click.echo(to_json({"requests": rows, "audit": {"entries": len(entries), "hash": head}}))
        return
    columns = {
        "request": "REQUEST",
        "kind": "KIND",
        "name": "NAME",
        "mode": "MODE",
        "asked": "ASKED",
        "outcome": "OUTCOME",
    }
    show(rows, columns, as_json=False, empty="no requests")
    stderr().print(
        f"the audit log has {len(entries):,} entries, each follows the one before; the last hash is {head}",
        soft_wrap=True,
    )


@command.command("withdraw")
@click.argument("request_id", metavar="REQUEST")
@_files
@log_option
@json_option
def withdraw(request_id: str, files: tuple[str, ...], log_url: str | None, as_json: bool) -> None:
    """Take a request back, as long as nothing is erased: what it hid in the views of FILEs is shown again.

    \b
    Examples:
      millstream erase withdraw 4f2a90c1 shop.py
    """
    from millstream.erase.request import withdraw as take_back

    found = take_back([opened_pipeline(file, log_url) for file in files], request_id)
    if as_json:
        click.echo(to_json({"request": found.id, "outcome": "withdrawn"}))
        return
    stderr().print(f"request {found.id} is withdrawn", soft_wrap=True)
