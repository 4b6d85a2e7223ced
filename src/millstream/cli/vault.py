"""``millstream vault``: the keys of sealed values: make, rotate, shred, look."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.cli.output import confirmed, json_option, settings, show, stderr, to_json
from millstream.vault.master import Master
from millstream.vault.vault import Vault, rotated


@click.group("vault")
def command() -> None:
    """Keep the keys of sealed values: a key for each subject, wrapped by a master key.

    Where the keys and the master key are, and what is sealed, is said in [vault] of millstream.toml.
    """


@command.command()
@click.option("--make-master", is_flag=True, help="Make the file with the master key too.")
@json_option
def init(make_master: bool, as_json: bool) -> None:
    """Make the file for the keys.

    \b
    Example:
      millstream vault init --make-master
    """
    said = settings().vault
    if make_master:
        stderr().print(f"made {Master(said.master).make()}: keep a copy where nothing else of this is", soft_wrap=True)
    with Vault(said.keys, master=said.master, create=True) as vault:
        _print(vault, as_json)


@command.command()
@json_option
def status(as_json: bool) -> None:
    """Say how many keys there are, and whether the master key opens them.

    \b
    Example:
      millstream vault status --json
    """
    with Vault.of(settings().vault) as vault:
        _print(vault, as_json)


@command.command()
@click.argument("new")
@click.option("--make-master", is_flag=True, help="Make the file with the new master key too.")
@json_option
def rotate(new: str, make_master: bool, as_json: bool) -> None:
    """Wrap all keys anew for the master key that NEW says, like ${file:PATH}; the old one opens nothing any more.

    It is one transaction: cut off, it has happened or not, and can be repeated. Then change master in the settings, and
    start again what seals and reveals.

    \b
    Example:
      millstream vault rotate '${file:master-2.key}' --make-master
    """
    said = settings().vault
    if make_master:
        stderr().print(f"made {Master(new).make()}: keep a copy where nothing else of this is", soft_wrap=True)
    count = rotated(said.keys, said.master, new)
    if as_json:
        click.echo(to_json({"rotated": count, "master": new}))
    else:
        stderr().print(f'wrapped {count:,} keys anew; now say master = "{new}" in the settings', soft_wrap=True)


@command.command()
@click.option(
    "--subject", "subjects", metavar="KIND=VALUE", multiple=True, required=True, help="Whose; may be repeated."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def shred(subjects: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete the key of a subject: every copy of what it sealed is `erased` from then on, wherever it is.

    The bytes of the key go from the file, too. Backups of the file are yours to delete. Cut off, repeat it.

    \b
    Example:
      millstream vault shred --subject user=123 --yes
    """
    named = [_subject(each) for each in subjects]
    with Vault.of(settings().vault) as vault:
        confirmed(f"Delete the keys of {len(named)} subjects for ever?", yes=yes)
        count = vault.shred(*named)
        if as_json:
            click.echo(to_json({"subjects": len(named), "shredded": count}))
        else:
            stderr().print(f"shredded {count:,} keys of {len(named):,} subjects" + _none(count))


def _none(count: int) -> str:
    return "" if count else ": there was none, so nothing was sealed for them, or it was shredded before"


def _subject(text: str) -> tuple[str, str]:
    kind, equals, value = text.partition("=")
    if not equals or not kind or not value:
        raise click.UsageError(f"--subject: found {text!r}, expected KIND=VALUE, such as user=123")
    return kind, value


def _print(vault: Vault, as_json: bool) -> None:
    row = {**asdict(vault.status()), "path": str(vault.path)}
    if as_json:
        click.echo(to_json(row))
        return
    columns = {"vault": "VAULT", "keys": "KEYS", "shredded": "SHREDDED", "clean": "CLEAN", "path": "PATH"}
    show([row], columns, as_json=False)
    if not row["clean"]:
        stderr().print("bytes of deleted keys may still be in the file: repeat what was cut off, `shred` or `rotate`")
