"""``millstream serve``: events in and out over HTTP."""

from __future__ import annotations

import click

from millstream.cli.output import json_line, json_option, log_option, opened, opened_pipeline, settings, stderr
from millstream.errors import MachineError


@click.command("serve")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port; 0 is any.")
@click.option(
    "--name", default="http", show_default=True, help="The server's name: one of a name serves a log at a time."
)
@click.option("--certificate", metavar="FILE", type=click.Path(exists=True), help="A certificate, for HTTPS.")
@click.option("--key", metavar="FILE", type=click.Path(exists=True), help="The certificate's private key.")
@log_option
@json_option
def command(
    files: tuple[str, ...],
    host: str,
    port: int,
    name: str,
    certificate: str | None,
    key: str | None,
    log_url: str | None,
    as_json: bool,
) -> None:
    """Take events over HTTP, let clients follow topics and read views, until interrupted. An answer to a post says that its events are durable.

    With the FILEs of pipelines, an event that they could not read is refused with the reason. Tokens, webhooks and limits are
    settings: [serve] in millstream.toml.

    \b
    Examples:
      millstream serve
      curl -N 'localhost:8080/topics/clicks/events?from=earliest'
      millstream serve shop.py --port 8000
      curl -d '{"user": "ann"}' -H 'Content-Type: application/json' localhost:8080/topics/clicks
    """
    try:
        from millstream.serve.http import Address, serve
    except ImportError as error:
        raise MachineError(f"serve needs {error.name}", hint="pip install 'millstream[serve]'") from error

    def ready(address: Address) -> None:
        if as_json:
            click.echo(json_line({"url": address.url}))
        else:
            stderr().print(f"serving {log.url} at {address.url}", soft_wrap=True)

    pipelines = [opened_pipeline(file, log_url) for file in files]
    said, address = settings(), Address(host, port, certificate, key)
    with opened(log_url) as log:
        serve(log, pipelines, said.serve, address, name=name, ready=ready, sealed=said.vault.topics)
