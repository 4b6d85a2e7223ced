"""The document of the server's paths says what they are, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from millstream.log import open_log
from millstream.serve import openapi
from millstream.serve.app import routes_of
from tests.serve.client import Server, serving


class Anything:
    """Stands for what routes call; none is called."""

    def __getattr__(self, name: str) -> Any:
        async def endpoint(request: Any) -> Any:
            raise NotImplementedError

        return endpoint


def test_the_document_has_the_paths_that_the_server_has() -> None:
    any_: Any = Anything()
    routes = [each for each in routes_of(any_, any_, any_, any_) if isinstance(each, Route)]
    there = {(each.path, method.lower()) for each in routes for method in (each.methods or set()) - {"HEAD"}}
    told = {(path, method) for path, methods in openapi.document()["paths"].items() for method in methods}
    assert there == told


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    log = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("clicks", 1)
    with serving(tmp_path, log) as server:
        yield server


def lacking(schema: dict[str, Any], value: dict[str, Any]) -> set[str]:
    """The members that are wanted and not there, and those that are there and not known."""
    return (set(schema["required"]) - set(value)) | (set(value) - set(schema["properties"]))


def test_answers_are_as_the_document_says(server: Server) -> None:
    document = server.ask("GET", "/openapi.json").json
    problem = document["components"]["schemas"]["Problem"]
    posted = document["paths"]["/topics/{topic}"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert lacking(posted, server.post("/topics/clicks", 1).json) == set()
    refused = server.ask("POST", "/topics/clicks", "{", {"Content-Type": "application/json"}).json
    assert lacking(problem, refused) == set()
    assert lacking(problem["properties"]["events"]["items"], refused["events"][0]) == set()
    for path in ("/topics/nothing", "/nowhere", "/openapi.json"):
        assert lacking(problem, server.post(path, 1).json) == set()
