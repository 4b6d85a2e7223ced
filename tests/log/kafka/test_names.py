"""One set of names for a Kafka client's settings: librdkafka's and Java's mean the same for whoever reads, writes and administers."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.log.kafka.names import client_settings, java_settings, librdkafka_settings

OURS = {"bootstrap.servers", "log_level", "socket.connection.setup.timeout.ms"}
KEY = "-----BEGIN PRIVATE KEY-----\nMII=\n-----END PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n"


def client(settings: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in client_settings("h:9092", settings).items() if name not in OURS}


def test_javas_names_are_taken_wherever_librdkafkas_are() -> None:
    java = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "both.pem",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert client(java) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "both.pem",
        "ssl.key.location": "both.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_texts_of_certificates_and_keys_have_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", KEY)
    ours = {"ssl.ca.pem": CERTIFICATE, "ssl.certificate.pem": CERTIFICATE, "ssl.key.pem": "${env:KEY}"}
    java = java_settings(ours)
    assert java == {
        "ssl.truststore.certificates": CERTIFICATE,
        "ssl.truststore.type": "PEM",
        "ssl.keystore.certificate.chain": CERTIFICATE,
        "ssl.keystore.key": KEY,
        "ssl.keystore.type": "PEM",
    }
    assert client({**java, "ssl.keystore.key": "${env:KEY}"}) == client(ours)


def test_what_is_said_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sasl\.mechanism and kafka\.sasl\.mechanisms are the same"):
        librdkafka_settings({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "PLAIN"})


def test_java_gets_certificates_and_keys_of_files_as_text(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text(CERTIFICATE)
    (tmp_path / "k.pem").write_text(KEY)
    files = {"ssl.certificate.location": str(tmp_path / "c.pem"), "ssl.key.location": str(tmp_path / "k.pem")}
    java = java_settings({**files, "ssl.ca.location": "ca.pem"})
    assert (java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]) == (CERTIFICATE, KEY)
    assert (java["ssl.truststore.location"], java["ssl.truststore.type"]) == ("ca.pem", "PEM")
    (tmp_path / "k.pem").write_text(KEY.replace("PRIVATE", "RSA PRIVATE"))
    with pytest.raises(ConfigError, match="PKCS #8") as caught:
        java_settings(files)
    assert "openssl pkcs8" in str(caught.value.hint)
    assert "MII=" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"ssl\.key\.location: .*missing\.pem cannot be read"):
        java_settings({**files, "ssl.key.location": str(tmp_path / "missing.pem")})


def test_java_gets_its_tokens_by_oidc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", 'se"cret')
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "shop",
        "sasl.oauthbearer.client.secret": "${env:SECRET}",
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.extensions": "cluster=c1,pool=p1",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "https.ca.location": "idp.pem",
    }
    oauth = "org.apache.kafka.common.security.oauthbearer"
    assert java_settings(settings) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.login.callback.handler.class": f"{oauth}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f'{oauth}.OAuthBearerLoginModule required clientId="shop" clientSecret="se\\"cret" scope="read"'
        ' ssl.truststore.location="idp.pem" ssl.truststore.type="PEM" extension_cluster="c1" extension_pool="p1";',
    }
    assert client(settings) == {**settings, "sasl.oauthbearer.client.secret": 'se"cret'}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.jaas.config": "${env:KEY}"}, "only Java"),
        ({"sasl.login.callback.handler.class": "com.example.Handler"}, "only Java"),
        ({"ssl.truststore.location": "store.jks"}, "only Java"),
        ({"ssl.keystore.type": "JKS", "ssl.keystore.location": "store.jks"}, "only Java"),
    ],
)
def test_what_librdkafka_has_not_is_refused_with_the_way_out(
    settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "word")
    for door in (client, java_settings):
        with pytest.raises(ConfigError, match=said) as caught:
            door(settings)
        assert caught.value.hint


@pytest.mark.parametrize(
    "asked", [{"sasl.mechanism": "GSSAPI"}, {"security.protocol": "SASL_SSL"}, {"sasl.mechanisms": "gssapi"}]
)
def test_kerberos_is_refused_with_the_way_out_but_for_sparks_client(asked: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no Kerberos") as caught:
        client(asked)
    assert "read_batch()" in str(caught.value.hint)
    login = "com.sun.security.auth.module.Krb5LoginModule required"
    assert java_settings(asked)["sasl.jaas.config"] == f'{login} useTicketCache="true";'
    ticket = {"sasl.kerberos.keytab": "shop.keytab", "sasl.kerberos.principal": "shop@REALM"}
    said = java_settings({**asked, **ticket, "sasl.kerberos.service.name": "kafka"})
    assert (
        said["sasl.jaas.config"]
        == f'{login} useKeyTab="true" storeKey="true" keyTab="shop.keytab" principal="shop@REALM";'
    )
    assert said["sasl.kerberos.service.name"] == "kafka"
    assert not ticket.keys() & said.keys()


def test_tokens_of_another_kind_are_refused_where_spark_would_need_them() -> None:
    with pytest.raises(ConfigError, match="oidc"):
        java_settings({"sasl.mechanisms": "OAUTHBEARER"})
