"""Settings of a Kafka client under both of their names: librdkafka's, which are ours, and those of the Java client, which Spark uses.

Invariant: reading, writing and administration take the same settings, and what one client cannot do is refused with the way to go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from millstream.errors import ConfigError
from millstream.secret import check_settings, resolve

_SAME = {"sasl.mechanism": "sasl.mechanisms"}
"""What Java calls otherwise."""


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings under librdkafka's names; ConfigError for those that only Java has.

    >>> librdkafka_settings({"sasl.mechanism": "PLAIN", "ssl.truststore.location": "ca.pem", "ssl.truststore.type": "PEM"})
    {'sasl.mechanisms': 'PLAIN', 'ssl.ca.location': 'ca.pem'}
    """
    known = {_SAME.get(name, name): value for name, value in settings.items()}
    if known.pop("ssl.truststore.type", "") == "PEM" and "ssl.truststore.location" in known:
        known["ssl.ca.location"] = known.pop("ssl.truststore.location")
    if known.get("sasl.mechanisms") == "GSSAPI":
        raise ConfigError(
            "kafka.sasl.mechanism GSSAPI: the client in librdkafka's wheel has no Kerberos",
            hint='read with Spark\'s own source, format("kafka"), or with SCRAM or OAUTHBEARER',
        )
    for name in sorted(known):
        if name == "sasl.jaas.config":
            hint = "name kafka.sasl.username and kafka.sasl.password, which are references: ${env:NAME} or ${file:PATH}"
            raise ConfigError("kafka.sasl.jaas.config: only Java has this setting", hint=hint)
        if name.startswith(("ssl.truststore.", "ssl.keystore.type")):
            hint = "name kafka.ssl.ca.location: a file in PEM's form"
            raise ConfigError(f"kafka.{name}: only Java has this setting", hint=hint)
    return known


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as Kafka's Java client, which Spark uses, calls them; secrets are resolved here.

    >>> java_settings({"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN"})
    {'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'PLAIN'}
    """
    check_settings(settings, "kafka.")
    known = {name: resolve(value) for name, value in settings.items()}
    user, password = known.pop("sasl.username", None), known.pop("sasl.password", None)
    for java, ours in _SAME.items():
        if ours in known:
            known[java] = known.pop(ours)
    if user is not None and password is not None:
        scram = known.get("sasl.mechanism", "PLAIN").startswith("SCRAM")
        module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
        quoted = {"username": user, "password": password}
        fields = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in quoted.items())
        known["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {fields};"
    if "ssl.ca.location" in known:
        known["ssl.truststore.location"], known["ssl.truststore.type"] = known.pop("ssl.ca.location"), "PEM"
    return known
