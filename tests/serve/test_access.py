"""Who is let in: tokens, hosts, origins, webhooks; and that what strangers send is never obeyed, and no secret is told."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import open_log
from millstream.serve.signature import secret_of, sign
from tests.serve.client import Answer, Server, serving

CANARY, READER = "canary-5fd1c1-shop-token", "canary-77aa02-reader-token"
SECRET, OLDER = "whsec_Y2FuYXJ5LXNlY3JldC1vZi13ZWJob29rcw==", "whsec_b2xkZXItc2VjcmV0LW9mLXdlYmhvb2tz"
ENVIRON = {"SHOP": CANARY, "READER": READER, "SECRET": SECRET, "OLDER": OLDER}
SETTINGS = """
[serve]
hosts = ["shop.example"]

[serve.tokens.shop]
token = "${env:SHOP}"
scopes = ["write:clicks"]

[serve.tokens.reader]
token = "${env:READER}"
scopes = ["read:*", "metrics"]

[serve.webhooks.payments]
topic = "payments"
secrets = ["${env:SECRET}", "${env:OLDER}"]
"""
JSON = {"Content-Type": "application/json"}
MINE = JSON | {"Authorization": f"Bearer {CANARY}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def log(folder: Path) -> str:
    url = f"sqlite:{folder / 'log.db'}"
    with open_log(url) as log:
        for topic in ("clicks", "orders", "payments"):
            log.create_topic(topic, 1)
    return url


@pytest.fixture(scope="module")
def server(folder: Path, log: str) -> Iterator[Server]:
    (folder / "millstream.toml").write_text(SETTINGS)
    with serving(folder, log, environ=ENVIRON) as server:
        yield server


def end(log: str, topic: str) -> int:
    with open_log(log, create=False) as opened:
        return opened.bounds(topic)[0].end


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/topics/clicks", f"Bearer {CANARY}", 200),
        ("/topics/clicks", f"bearer {CANARY}", 200),
        ("/topics/clicks", None, 401),
        ("/topics/clicks", "Bearer", 401),
        ("/topics/clicks", f"Basic {CANARY}", 401),
        ("/topics/clicks", f"Bearer {CANARY}x", 401),
        ("/topics/clicks", f"Bearer {READER}", 403),
        ("/topics/orders", f"Bearer {CANARY}", 403),
        ("/topics/nothing", f"Bearer {CANARY}", 403),
    ],
)
def test_a_token_may_do_what_its_scopes_say(
    server: Server, log: str, path: str, authorization: str | None, status: int
) -> None:
    before = end(log, "clicks")
    answer = server.ask("POST", path, "1", JSON | ({"Authorization": authorization} if authorization else {}))
    assert answer.status == status
    assert end(log, "clicks") - before == (status == 200)
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "LOCALHOST:80"}, 200),
        ({"Host": "shop.example"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost@evil.example"}, 421),
        ({"Host": "localhost.evil.example"}, 421),
        ({"Host": "[::ffff:127.0.0.1]"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost@evil.example"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_requests_for_other_hosts_and_by_other_pages_are_refused(
    server: Server, log: str, headers: dict[str, str], status: int
) -> None:
    before = end(log, "clicks")
    assert server.ask("POST", "/topics/clicks", "1", MINE | headers).status == status
    assert end(log, "clicks") - before == (status == 200)


@pytest.mark.parametrize(
    "path",
    [
        "/topics/../clicks",
        "/topics/..%2f..%2fetc%2fpasswd",
        "/topics/%2e%2e/millstream.toml",
        "/../../etc/passwd",
        "/topics/%00",
        "/topics/clicks/../../millstream.toml",
        "/webhooks/..%2fpayments",
        "//evil.example/topics/clicks",
    ],
)
def test_no_path_leads_out(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        answer = server.ask(method, path, "1", MINE)
        assert answer.status in (403, 404, 405)
        assert "root:" not in answer.text
        assert CANARY not in answer.text


SCRIPT = "<script>alert(1)</script>"


def test_nothing_is_appended_unsealed_to_a_topic_that_is_sealed(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text(
        '[vault.topics.orders]\nsubject = {user = "user_id"}\npersonal = ["email"]\n'
        '[serve.webhooks.orders]\ntopic = "orders"\nsecrets = ["${env:SECRET}"]\n'
    )
    log = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(log) as opened:
        opened.create_topic("orders", 1)
        opened.create_topic("clicks", 1)
    with serving(tmp_path, log, environ=ENVIRON) as server:
        answer = server.post("/topics/orders", {"user_id": 7, "email": "ann@shop.example"})
        assert (answer.status, "seal" in answer.json["hint"]) == (403, True)
        now = str(int(time.time()))
        signed = {
            "webhook-id": "m",
            "webhook-timestamp": now,
            "webhook-signature": sign(secret_of(SECRET), "m", now, b"1"),
        }
        assert server.ask("POST", "/webhooks/orders", "1", JSON | signed).status == 403
        assert server.post("/topics/clicks", 1).status == 200
    assert end(log, "orders") == 0


def test_script_is_data_and_no_answer_is_a_page(server: Server) -> None:
    answers = [
        server.ask("POST", "/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "1", MINE),
        server.ask("POST", f"/topics/clicks?key_field={'%3Cscript%3E'}", "{}", MINE),
        server.ask("POST", "/topics/clicks", f'"{SCRIPT}"', MINE | {"Content-Type": "text/<script>"}),
        server.ask("POST", "/topics/clicks", SCRIPT, MINE),
        server.ask("POST", "/topics/clicks?key=%3Cscript%3E", f'"{SCRIPT}"', MINE | {"Idempotency-Key": SCRIPT}),
        server.ask("POST", "/topics/clicks", "1", MINE | {"ce-specversion": "1.0", f"ce-{'x' * 99}": SCRIPT}),
        server.ask("POST", "/topics/clicks", "1", MINE | {"Origin": SCRIPT}),
    ]
    for answer in answers:
        assert re.fullmatch("application/(problem[+])?json", answer.headers["content-type"])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        json.loads(answer.text)


def test_control_characters_are_not_repeated(server: Server) -> None:
    answer = server.ask("POST", "/topics/clicks?key_field=%1b%5b2J%0a", "{}", MINE)
    assert answer.status == 400
    assert "\x1b" not in answer.json["detail"]
    assert "\n" not in answer.json["detail"]


def webhook(server: Server, body: str, *, secret: str = SECRET, id_: str = "m1", at: float | None = None) -> Answer:
    timestamp = str(int(time.time() if at is None else at))
    signed = sign(secret_of(secret), id_, timestamp, body.encode())
    headers = {"webhook-id": id_, "webhook-timestamp": timestamp, "webhook-signature": f"v1,AAAA v2,x {signed}"}
    return server.ask("POST", "/webhooks/payments", body, JSON | headers)


def test_a_signed_webhook_is_taken_once_by_any_of_the_secrets(server: Server, log: str) -> None:
    before = end(log, "payments")
    one, again = webhook(server, '{"paid": 1}'), webhook(server, '{"paid": 1}')
    assert (one.status, again.status, again.headers["idempotency-replayed"]) == (200, 200, "true")
    assert webhook(server, '{"paid": 2}', id_="m2", secret=OLDER).status == 200
    assert end(log, "payments") - before == 2
    with open_log(log, create=False) as opened, opened.reader("payments", before) as reader:
        assert dict(reader.poll(1, timeout=1.0)[0].headers)["webhook-id"] == b"m1"


def test_an_altered_an_old_or_an_unsigned_webhook_is_refused(server: Server, log: str) -> None:
    before = end(log, "payments")
    now = str(int(time.time()))
    good = sign(secret_of(SECRET), "m9", now, b"1")
    named = {"webhook-id": "m9", "webhook-timestamp": now, "webhook-signature": good}
    for change in (
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,\xff"},
        {"webhook-id": "m8"},
        {"webhook-id": ""},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "x"},
    ):
        assert server.ask("POST", "/webhooks/payments", "1", JSON | named | change).status == 401
    assert server.ask("POST", "/webhooks/payments", "2", JSON | named).status == 401
    assert webhook(server, "1", at=time.time() - 400).status == 401
    assert webhook(server, "1", at=time.time() + 400).status == 401
    wrong = "whsec_" + "A" * 32
    assert webhook(server, "1", secret=wrong).status == 401
    assert server.ask("POST", "/webhooks/others", "1", JSON | named).status == 404
    assert end(log, "payments") == before
    assert server.ask("POST", "/webhooks/payments", "1", JSON | named).status == 200


def test_a_server_that_others_reach_wants_tokens_and_a_certificate(folder: Path, log: str, tmp_path: Path) -> None:
    from millstream.errors import ConfigError
    from millstream.serve.http import Address, serve
    from millstream.serve_settings import ServeSettings, ServeToken

    open_to_all = ServeSettings()
    guarded = ServeSettings(tokens={"a": ServeToken("${file:" + str(tmp_path / "token") + "}", ("write:*",))})
    (tmp_path / "token").write_text("0123456789abcdef\n")
    for settings, said in ((open_to_all, "token"), (guarded, "read tokens")):
        with open_log(log, create=False) as opened, pytest.raises(ConfigError, match=said):
            serve(opened, [], settings, Address("0.0.0.0", 0), name="x", ready=lambda address: None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('[serve.tokens.a]\ntoken = "written-out-0123456789"\nscopes = ["read:*"]', "must not stand in"),
        ('[serve.webhooks.a]\ntopic = "t"\nsecrets = ["written-out"]', "must not stand in"),
        ('[serve.tokens.a]\ntoken = "${env:SHORT}"\nscopes = ["read:*"]', "expected at least 16"),
        ('[serve.tokens.a]\ntoken = "${env:SHOP}"\nscopes = ["delete:*"]', "delete"),
        ('[serve.webhooks.a]\ntopic = "t"\nsecrets = ["${env:SHORT}"]', "webhook"),
        ("[serve.limits]\nbody = 0", "body"),
    ],
)
def test_settings_that_cannot_be_are_told_without_the_secret(tmp_path: Path, settings: str, said: str) -> None:
    import os
    import subprocess

    from tests.serve.client import COMMAND

    (tmp_path / "millstream.toml").write_text(settings)
    log = f"sqlite:{tmp_path / 'log.db'}"
    open_log(log).close()
    done = subprocess.run(
        [*COMMAND, "serve", "--port", "0", "--log", log],
        cwd=tmp_path,
        env={**os.environ, **ENVIRON, "SHORT": "c2hvcnQ"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "c2hvcnQ" not in done.stderr
    assert "written-out" not in done.stderr


def test_no_secret_is_told_or_kept(server: Server, folder: Path) -> None:
    """Runs last: whatever the tests before it did, nothing of a secret is on the disk or in an answer."""
    told = "".join(
        answer.text + str(answer.headers)
        for answer in (
            server.ask("POST", "/topics/clicks", "{", MINE),
            server.ask("POST", "/topics/orders", "1", MINE),
            server.ask("GET", "/topics/clicks", None, MINE),
            server.ask("POST", f"/topics/{CANARY}", "1", JSON),
            webhook(server, "{", id_="m3"),
        )
    )
    kept = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    for secret in (CANARY, READER, SECRET.removeprefix("whsec_"), secret_of(SECRET).decode()):
        assert secret not in told
        assert secret.encode() not in kept
