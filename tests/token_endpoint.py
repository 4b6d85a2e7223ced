"""A small token endpoint for tests: OAuth's client credentials over real HTTP, tokens signed by the key that a secured broker trusts."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from millstream.testing.secured import AUDIENCE, USER, Secured, sign


class TokenEndpoint:
    """Serves on loopback, as a context manager; ``given`` counts the tokens. Whoever has the secret gets one, for so many seconds."""

    def __init__(self, secured: Secured, secret: str, *, seconds: int = 300, key: Path | None = None) -> None:
        self.given, self._secured, self._seconds = 0, secured, seconds
        self._key = key or secured.folder / "tokens.key"
        self._login = f"Basic {b64encode(f'{USER}:{secret}'.encode()).decode()}"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def client(self, secret: str) -> dict[str, str]:
        """Settings of a client that gets its tokens here; ``secret`` is a reference."""
        oauth = "sasl.oauthbearer"
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            f"{oauth}.method": "oidc",
            f"{oauth}.client.id": USER,
            f"{oauth}.client.secret": secret,
            f"{oauth}.token.endpoint.url": f"http://127.0.0.1:{self._server.server_port}/token",
            f"{oauth}.scope": "log",
            "ssl.ca.location": str(self._secured.folder / "ca.pem"),
        }

    def answer(self, login: str, body: str) -> tuple[int, dict[str, object]]:
        """What it says to a request: status and JSON."""
        if login != self._login:
            return 401, {"error": "invalid_client"}
        if "grant_type=client_credentials" not in body or "scope=log" not in body:
            return 400, {"error": "invalid_request"}
        self.given += 1
        now = int(time.time())
        claims: dict[str, object] = {
            "sub": USER,
            "aud": AUDIENCE,
            "iat": now,
            "exp": now + self._seconds,
            "scope": "log",
        }
        token = sign(self._key, claims)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self._seconds}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                status, found = endpoint.answer(self.headers.get("Authorization", ""), body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler
