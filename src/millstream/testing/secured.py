"""A broker's doors for tests of security: SASL over TLS, and TLS with a client's certificate, with keys made for this broker alone.

Certificates and passwords live in the broker's folder. Settings of a client name them and hold no secret. The broker also lets in who
has a token signed by the key ``tokens.key`` of that folder; a test hands such tokens out itself.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from base64 import urlsafe_b64encode
from pathlib import Path

from millstream.errors import MachineError
from millstream.testing.process import free_ports

USER, AUDIENCE = "shop", "kafka"
"""Who may come in, and whom a token must be for."""
_LOGIN = "org.apache.kafka.common.security"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


class Secured:
    """Three doors: ``port`` wants a user over TLS, ``certified`` a certificate, and a plain one is for the broker itself."""

    def __init__(self, folder: Path, port: int, inner: int) -> None:
        self.folder = folder / "security"
        self._port, self._inner, (self.certified,) = port, inner, free_ports(1)
        self._password = secrets.token_hex(16)

    @property
    def settings(self) -> dict[str, str]:
        """Those of the broker."""
        doors = {"SASL_SSL": self._port, "SSL": self.certified, "PLAINTEXT": self._inner}
        listener = "listener.name.sasl_ssl"
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in doors.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in doors) + ",CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / "broker.both.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            f"{listener}.plain.sasl.jaas.config": f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{self._password}";',
            f"{listener}.scram-sha-256.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            f"{listener}.oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            f"{listener}.oauthbearer.sasl.server.callback.handler.class": f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self._keys_of_tokens,
            f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{listener}.oauthbearer.connections.max.reauth.ms": "3600000",  # a session ends with its token
        }

    @property
    def options(self) -> list[str]:
        """Those of the broker's JVM."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys_of_tokens}"]

    @property
    def _keys_of_tokens(self) -> str:
        return (self.folder / "tokens.json").as_uri()

    def client(self, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """Settings of a client that may come in, under librdkafka's names."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": mechanism,
            "sasl.username": USER,
            "sasl.password": f"${{file:{self.folder / 'password'}}}",
            "ssl.ca.location": str(self.folder / "ca.pem"),
        }

    def certified_client(self) -> dict[str, str]:
        """Settings of a client with a certificate, for the port :attr:`certified`."""
        names = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
        return {"security.protocol": "SSL"} | {
            f"ssl.{name}.location": str(self.folder / file) for name, file in names.items()
        }

    def prepare(self) -> list[str]:
        """Make keys, certificates and the password; gives what the broker's storage must be told of users."""
        self.folder.mkdir(mode=0o700)
        (self.folder / "password").write_text(self._password)
        make_authority(self.folder / "ca.pem")
        for who in ("broker", "client"):
            place = self.folder / f"{who}.pem"
            signed = ("-CA", str(self.folder / "ca.pem"), "-CAkey", str(self.folder / "ca.key"))
            _openssl(place, who, *signed, "-addext", "subjectAltName=IP:127.0.0.1")
        make_token_key(self.folder / "tokens.key")
        both = [self.folder / "broker.key", self.folder / "broker.pem"]
        (self.folder / "broker.both.pem").write_text("".join(part.read_text() for part in both))
        return ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={self._password}]"]


def make_authority(certificate: Path) -> None:
    """Make an authority's certificate, and its key beside it."""
    _openssl(certificate, "an authority of tests")


def sign(key: Path, claims: dict[str, object]) -> str:
    """A token that says something, signed by a key: a JSON web token in RS256's form."""
    text = ".".join(_web64(json.dumps(each).encode()) for each in ({"alg": "RS256", "kid": "tests"}, claims))
    return f"{text}.{_web64(_run(['dgst', '-sha256', '-sign', str(key)], f'{key.name} to sign', text.encode()))}"


def make_token_key(key: Path) -> None:
    """Make a key that signs tokens, and beside it what is public of it, as JSON."""
    _run(["genrsa", "-out", str(key), "2048"], str(key))
    modulus = bytes.fromhex(_run(["rsa", "-in", str(key), "-noout", "-modulus"], str(key)).decode().partition("=")[2])
    public = {"kty": "RSA", "alg": "RS256", "kid": "tests", "n": _web64(modulus), "e": _web64(b"\1\0\1")}
    key.with_suffix(".json").write_text(json.dumps({"keys": [public]}))


def _web64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _openssl(certificate: Path, who: str, *signed: str) -> None:
    place = ("-keyout", str(certificate.with_suffix(".key")), "-out", str(certificate))
    _run(["req", "-x509", *_KEY, *place, "-subj", f"/CN={who}", *signed], str(certificate))


def _run(asked: list[str], what: str, given: bytes = b"") -> bytes:
    """What openssl prints."""
    program = shutil.which("openssl")
    if program is None:
        raise MachineError("a secured broker needs keys, and there is no openssl", hint="apt-get install openssl")
    done = subprocess.run([program, *asked], input=given, capture_output=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"openssl could not make {what}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
