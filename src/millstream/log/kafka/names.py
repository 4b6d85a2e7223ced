"""Settings of a Kafka client under both of their names: librdkafka's, and those of the Java client, which Spark uses.

Invariant: reading, writing and administration take the same settings, under either name, and what one client cannot do is refused with
the way to go. A name that means something else to the other client is ours, librdkafka's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from millstream.errors import ConfigError
from millstream.secret import check_settings, resolve

_SAME = {
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Java's names of what librdkafka calls otherwise."""
_LOGIN = "org.apache.kafka.common.security"
_OIDC = f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"
_NO_CHECK = {"": "none", "none": ""}  # ssl.endpoint.identification.algorithm


def client_settings(servers: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of every client, by Java's names or librdkafka's, under the latter. Secrets are resolved: it must never be printed."""
    check_settings(settings, "kafka.")
    _check_names(settings)
    if is_kerberos(settings):
        raise ConfigError(
            "kafka.sasl.mechanism GSSAPI: the client in librdkafka's wheel has no Kerberos, and pipelines, appends and administration need it",
            hint="ask for a listener with SCRAM, OAUTHBEARER or certificates, or copy the topics to a log of your own:"
            ' Spark\'s source reads them, by read_stream(), read_batch() or format("kafka"), and format("millstream") appends',
        )
    ours = {"bootstrap.servers": servers, "log_level": "0", "socket.connection.setup.timeout.ms": "10000"}
    return ours | librdkafka_settings({name: resolve(value) for name, value in settings.items()})


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings under librdkafka's names; ConfigError for those that only Java has.

    >>> librdkafka_settings({"sasl.mechanism": "PLAIN", "ssl.truststore.location": "ca.pem", "ssl.truststore.type": "PEM"})
    {'sasl.mechanisms': 'PLAIN', 'ssl.ca.location': 'ca.pem'}
    """
    known = {_SAME.get(name, name): value for name, value in settings.items()}
    if len(known) < len(settings):
        twice = sorted(name for name in settings if name in _SAME and _SAME[name] in settings)
        raise ConfigError(f"kafka.{twice[0]} and kafka.{_SAME[twice[0]]} are the same", hint="name one of them")
    if known.pop("ssl.truststore.type", "") == "PEM" and "ssl.truststore.location" in known:
        known["ssl.ca.location"] = known.pop("ssl.truststore.location")
    kind = known.pop("ssl.keystore.type", "PKCS12")
    if kind == "PEM" and "ssl.keystore.location" in known:  # one file with the key and the certificates
        known["ssl.key.location"] = known["ssl.certificate.location"] = known.pop("ssl.keystore.location")
    algorithm = "ssl.endpoint.identification.algorithm"
    if known.get(algorithm) == "":
        known[algorithm] = "none"
    for name in sorted(known):
        if name.startswith("ssl.truststore.") or (kind not in ("PEM", "PKCS12") and name.startswith("ssl.keystore.")):
            hint = "name kafka.ssl.ca.location, kafka.ssl.certificate.location and kafka.ssl.key.location: files in PEM's form"
            raise ConfigError(f"kafka.{name}: only Java reads its key stores", hint=hint)
    return known


def is_kerberos(settings: Mapping[str, str]) -> bool:
    """Whether settings ask for Kerberos, which Java's client has and librdkafka's wheel has not."""
    known = {_SAME.get(name, name): value for name, value in settings.items()}
    sasl = known.get("security.protocol", "").upper().startswith("SASL_")
    return known.get("sasl.mechanisms", "GSSAPI" if sasl else "").upper() == "GSSAPI"  # which is the default of both


def _check_names(settings: Mapping[str, str]) -> None:
    """Refuse what only Java has; before secrets are looked up, which may not be there then."""
    for name in ("sasl.jaas.config", "sasl.login.callback.handler.class", "sasl.client.callback.handler.class"):
        if name in settings:
            hint = (
                "name kafka.sasl.username and kafka.sasl.password, which are references (${env:NAME}, ${file:PATH}); for tokens"
                " kafka.sasl.oauthbearer.method = oidc with kafka.sasl.oauthbearer.client.id, .client.secret, .token.endpoint.url"
            )
            raise ConfigError(f"kafka.{name}: only Java has this setting", hint=hint)


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as Kafka's Java client, which Spark uses, calls them; secrets are resolved, and keys read, here.

    >>> java_settings({"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"})
    {'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'PLAIN'}
    """
    check_settings(settings, "kafka.")
    _check_names(settings)
    known = librdkafka_settings({name: resolve(value) for name, value in settings.items()})
    if login := _login(known):
        known["sasl.jaas.config"] = login
    _certificates(known)
    for java, ours in _SAME.items():
        if ours in known:
            known[java] = known.pop(ours)
    algorithm = "ssl.endpoint.identification.algorithm"
    if algorithm in known:
        known[algorithm] = _NO_CHECK.get(known[algorithm], known[algorithm])
    return known


def _login(known: dict[str, str]) -> str | None:
    """Who one is, in Java's words; takes out of the settings what they say of it."""
    mechanism = known.get("sasl.mechanisms", "").upper()
    if is_kerberos(known):
        return _kerberos(known)
    if mechanism == "OAUTHBEARER":
        return _tokens(known)
    user, password = known.pop("sasl.username", None), known.pop("sasl.password", None)
    if user is None or password is None:
        return None
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
    return _module(f"{_LOGIN}.{module}", {"username": user, "password": password})


def _kerberos(known: dict[str, str]) -> str:
    """By a keytab, or by the tickets that the user of the process has."""
    keytab, principal = known.pop("sasl.kerberos.keytab", None), known.pop("sasl.kerberos.principal", None)
    said = {"useKeyTab": "true", "storeKey": "true", "keyTab": keytab} if keytab else {"useTicketCache": "true"}
    fields = {name: value for name, value in {**said, "principal": principal}.items() if value}
    return _module("com.sun.security.auth.module.Krb5LoginModule", fields)


def _tokens(known: dict[str, str]) -> str:
    if known.pop("sasl.oauthbearer.method", "") != "oidc":
        raise ConfigError(
            "kafka.sasl.oauthbearer.method: found none, expected oidc: Spark's client gets its tokens by it",
            hint="name kafka.sasl.oauthbearer.client.id, .client.secret and .token.endpoint.url, too",
        )
    known["sasl.login.callback.handler.class"] = _OIDC
    said = {
        "clientId": known.pop("sasl.oauthbearer.client.id", None),
        "clientSecret": known.pop("sasl.oauthbearer.client.secret", None),
        "scope": known.pop("sasl.oauthbearer.scope", None),
        "ssl.truststore.location": (authority := known.pop("https.ca.location", None)),
        "ssl.truststore.type": authority and "PEM",
    }
    for pair in filter(None, known.pop("sasl.oauthbearer.extensions", "").split(",")):
        name, _, value = pair.partition("=")
        said[f"extension_{name.strip()}"] = value.strip()
    return _module(
        f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule", {name: value for name, value in said.items() if value}
    )


def _module(name: str, fields: Mapping[str, str]) -> str:
    said = " ".join(f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in fields.items())
    return f"{name} required {said};"


def _certificates(known: dict[str, str]) -> None:
    """Certificates and keys as Java reads them: an authority's by file or text, a client's by text alone."""
    if "ssl.ca.location" in known:
        known["ssl.truststore.location"], known["ssl.truststore.type"] = known.pop("ssl.ca.location"), "PEM"
    elif "ssl.ca.pem" in known:
        known["ssl.truststore.type"] = "PEM"
    for name in ("certificate", "key"):
        if (place := known.pop(f"ssl.{name}.location", None)) is not None:
            known[f"ssl.{name}.pem"] = _read(f"kafka.ssl.{name}.location", place)
    key = known.get("ssl.key.pem", "")
    if key:
        known["ssl.keystore.type"] = "PEM"
        if "PRIVATE KEY-----" in key and "BEGIN PRIVATE KEY" not in key and "BEGIN ENCRYPTED PRIVATE KEY" not in key:
            raise ConfigError(
                "kafka.ssl.key: Spark's client reads keys in PKCS #8's form, BEGIN PRIVATE KEY",
                hint="openssl pkcs8 -topk8 -nocrypt -in OLD.pem -out NEW.pem",
            )
    elif "ssl.keystore.location" in known:
        known["ssl.keystore.type"] = "PKCS12"  # the only one that librdkafka has


def _read(name: str, place: str) -> str:
    try:
        return Path(place).read_text(encoding="ascii")
    except (OSError, ValueError):
        raise ConfigError(f"{name}: {place} cannot be read as text", hint="a file in PEM's form is wanted") from None
