"""A schema registry of Confluent's HTTP interface: which schema an id means, and which id a subject's schema has.

Invariant: an id means one schema for ever, so it is asked for once; what a registry does not know is never remembered.
"""

from __future__ import annotations

import base64
import copy
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from millstream.errors import CodecError, ConfigError, RegistryUnavailable
from millstream.secret import check_setting, resolve

_TIMEOUT = 10.0
_TYPE = "application/vnd.schemaregistry.v1+json"


class Schema(NamedTuple):
    """A schema as it was registered: ``AVRO``, ``JSON`` or ``PROTOBUF``, its text, and whether it refers to others."""

    kind: str
    text: str
    refers: bool = False


class Registry:
    """A registry at an address. Safe to use from several threads; nothing is asked before it is needed.

    :param url: its address, without a user
    :param user: the user of basic authentication, or a reference, ``${env:NAME}`` or ``${file:PATH}``
    :param password: a reference to the password
    :raises ConfigError: if the address is none, or the password is written out

    >>> Registry("http://localhost:8081").url
    'http://localhost:8081'
    """

    def __init__(self, url: str, *, user: str | None = None, password: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"registry: found {url!r}, expected http://HOST:PORT or https://HOST:PORT")
        check_setting("registry", url, "an address", 'Registry(url, user=…, password="${env:NAME}"), password')
        if "@" in parts.netloc:
            raise ConfigError("registry: a user in the address", hint="Registry(url, user=…, password=…)")
        if (user is None) != (password is None):
            raise ConfigError("registry: user and password go together; found only one")
        if password is not None:
            check_setting("registry.password", password, "the program", "password")
        self.url, self.user, self.password = url.rstrip("/"), user, password
        self._login: tuple[str, str] | None = None
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, Schema], int] = {}

    def __repr__(self) -> str:
        return f"Registry({self.url!r})"

    def with_login(self) -> Registry:
        """This registry for a process of ours in another environment: who asks is resolved here. Not to be printed or kept."""
        made = copy.copy(self)
        made._login = self._resolved()
        return made

    def _resolved(self) -> tuple[str, str] | None:
        if self._login is None and self.user is not None and self.password is not None:
            return resolve(self.user), resolve(self.password)
        return self._login

    def schema(self, number: int) -> Schema:
        """The schema of an id; CodecError if the registry does not know it."""
        if number not in self._schemas:
            self._schemas[number] = _schema(self._ask("GET", f"/schemas/ids/{number}", f"schema id {number}"))
        return self._schemas[number]

    def latest(self, subject: str) -> tuple[int, Schema]:
        """The newest schema of a subject and its id, asked each time."""
        found = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")
        self._schemas[found["id"]] = _schema(found)
        return found["id"], self._schemas[found["id"]]

    def avro_of(self, subject: str) -> dict[int, str]:
        """The Avro schemas of all versions of a subject, by id; CodecError for one that is none, or refers to others."""
        path, found = f"/subjects/{quote(subject, safe='')}/versions", dict[int, str]()
        for version in self._ask("GET", path, f"subject {subject}", kind=list):
            answer = self._ask("GET", f"{path}/{version}", f"subject {subject}, version {version}")
            schema = _schema(answer)
            if schema.kind != "AVRO" or schema.refers:
                why = "refers to others" if schema.refers else f"is {schema.kind}"
                raise CodecError(
                    f"registry {self.url}: subject {subject}: schema id {answer['id']} {why}, expected Avro in one piece"
                )
            found[answer["id"]] = schema.text
        return found

    def id_of(self, subject: str, schema: Schema, *, register: bool = False) -> int:
        """The id of a schema in a subject; registered if it is not there and that is wanted."""
        if (subject, schema) not in self._ids:
            path = f"/subjects/{quote(subject, safe='')}" + ("/versions" if register else "")
            body = {"schema": schema.text} | ({"schemaType": schema.kind} if schema.kind != "AVRO" else {})
            self._ids[subject, schema] = self._ask("POST", path, f"the schema of subject {subject}", body)["id"]
        return self._ids[subject, schema]

    def _ask(self, method: str, path: str, what: str, body: dict[str, Any] | None = None, kind: type = dict) -> Any:
        headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if (login := self._resolved()) is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  (http or https)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise self._refused(error, what) from error
        except (OSError, ValueError) as error:
            raise RegistryUnavailable(
                f"registry {self.url}: {what}: {getattr(error, 'reason', None) or error}",
                hint="is it up and the address right? `curl URL/subjects` lists what it has",
            ) from error
        if not isinstance(found, kind):
            raise RegistryUnavailable(f"registry {self.url}: {what}: found another answer; is this a schema registry?")
        return found

    def _refused(self, error: urllib.error.HTTPError, what: str) -> CodecError:
        try:
            said = str(json.load(error).get("message") or error.reason)
        except (ValueError, AttributeError):
            said = str(error.reason)
        told = f"registry {self.url}: {what}: {said} (HTTP {error.code})"
        if error.code in (401, 403):
            return CodecError(told, hint='Registry(url, user="${env:NAME}", password="${env:NAME}")')
        if error.code == 404:
            return CodecError(
                told, hint="was it written with another registry? `curl URL/subjects` lists what this one has"
            )
        if error.code in (409, 422):
            return CodecError(told, hint="the subject has earlier versions that this one must be compatible with")
        return RegistryUnavailable(told, hint="ask again; the registry's own log says more")


def _schema(found: dict[str, Any]) -> Schema:
    return Schema(found.get("schemaType") or "AVRO", found["schema"], bool(found.get("references")))
