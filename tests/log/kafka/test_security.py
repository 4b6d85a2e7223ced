"""A broker that lets clients in by SASL over TLS, or by certificates: the log on it, and what is said to whom it keeps out."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream.cli import cli
from millstream.errors import ConfigError, LogUnavailable, NotAllowed
from millstream.event import Event
from millstream.log import open_log
from millstream.testing import KafkaBroker
from millstream.testing.secured import make_authority, make_token_key
from tests.contracts.log import name
from tests.token_endpoint import TokenEndpoint

CANARY = "hunter2-canary"


def as_java(settings: dict[str, str]) -> dict[str, str]:
    """The same settings as a Java client has them."""
    names = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}
    return {names.get(each, each): value for each, value in settings.items()} | {"ssl.truststore.type": "PEM"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_log_behind_sasl_and_tls_is_administered_written_and_read(secured_kafka: KafkaBroker, mechanism: str) -> None:
    topic = name()
    for settings in (secured_kafka.secured.client(mechanism), as_java(secured_kafka.secured.client(mechanism))):
        with open_log(secured_kafka.url, kafka=settings) as log:
            if topic not in [each.name for each in log.topics()]:
                log.create_topic(topic)
            log.append(
                topic, [Event(b"a"), Event(b"b")], producer="p", sequence=(log.last_sequence(topic, "p") or 0) + 1
            )
            with log.reader(topic) as reader, log.consumer(topic, name("group")) as consumer:
                assert [record.value for record in reader.poll(timeout=10)][:2] == [b"a", b"b"]
                assert [record.value for record in consumer.poll(timeout=10)][:2] == [b"a", b"b"]
                consumer.commit()
    with open_log(secured_kafka.url, kafka=settings) as log, log.reader(topic) as reader:
        found: list[bytes | None] = []
        while len(found) < 4:
            records = reader.poll(timeout=10)
            assert records, found
            found += [record.value for record in records]
        assert found == [b"a", b"b", b"a", b"b"]


def test_a_log_behind_certificates_is_written_and_read(secured_kafka: KafkaBroker) -> None:
    secured, topic = secured_kafka.secured, name()
    address = f"kafka://127.0.0.1:{secured.certified}"
    both = secured.folder / "both.pem"
    both.write_text((secured.folder / "client.key").read_text() + (secured.folder / "client.pem").read_text())
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(secured.folder / "ca.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
    }
    with open_log(address, kafka=secured.certified_client()) as log:
        log.create_topic(topic)
        log.append(topic, [Event(b"a")])
    with open_log(address, kafka=java) as log, log.reader(topic) as reader:
        assert [record.value for record in reader.poll(timeout=10)] == [b"a"]


def test_a_log_is_administered_written_and_read_with_tokens(
    secured_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2-secret")
    monkeypatch.setenv("WORD", CANARY)
    topic = name()
    with TokenEndpoint(secured_kafka.secured, "hunter2-secret") as tokens:
        with open_log(secured_kafka.url, kafka=tokens.client("${env:SECRET}")) as log:
            log.create_topic(topic)
            log.append(topic, [Event(b"a"), Event(b"b")], producer="p", sequence=1)
            with log.reader(topic) as reader, log.consumer(topic, name("group")) as consumer:
                assert [record.value for record in reader.poll(timeout=10)] == [b"a", b"b"]
                assert [record.value for record in consumer.poll(timeout=10)] == [b"a", b"b"]
                consumer.commit()
        assert tokens.given > 1
        before = tokens.given
        said = refused(secured_kafka.url, tokens.client("${env:WORD}"))
        assert "gives no token" in said
        assert "invalid_client" in said
        assert "kafka.sasl.oauthbearer.client.secret" in said
        assert tokens.given == before
    make_token_key(other := secured_kafka.secured.folder / "other.key")
    with TokenEndpoint(secured_kafka.secured, "hunter2-secret", key=other) as tokens:
        assert "kafka.sasl.oauthbearer" in refused(secured_kafka.url, tokens.client("${env:SECRET}"))
        assert tokens.given


def refused(address: str, settings: dict[str, str], kind: type[Exception] = NotAllowed) -> str:
    with pytest.raises(kind) as caught:
        open_log(address, kafka=settings)
    assert CANARY not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    return str(caught.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_an_error_that_says_so_and_not_the_password(
    secured_kafka: KafkaBroker, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", CANARY)
    wrong = {**secured_kafka.secured.client(mechanism), "sasl.password": "${env:WORD}"}
    said = refused(secured_kafka.url, wrong)
    assert "does not know this user, or not by this password" in said
    assert "kafka.sasl.password" in said


def test_what_keeps_a_client_out_is_named(secured_kafka: KafkaBroker, tmp_path: Path) -> None:
    make_authority(tmp_path / "other.pem")
    client, door = secured_kafka.secured.client(), f"kafka://127.0.0.1:{secured_kafka.secured.certified}"
    said = refused(secured_kafka.url, {**client, "ssl.ca.location": str(tmp_path / "other.pem")})
    assert "not of an authority that is trusted here" in said
    assert "kafka.ssl.ca.location" in said
    assert "supported mechanisms: " in refused(secured_kafka.url, {**client, "sasl.mechanisms": "SCRAM-SHA-512"})
    bare = {"security.protocol": "SSL", "ssl.ca.location": client["ssl.ca.location"]}
    assert "kafka.ssl.certificate.location" in refused(door, bare)
    assert "ssl.ca.location failed" in refused(door, {**bare, "ssl.ca.location": str(tmp_path / "none")}, ConfigError)
    assert '"no.such.setting"' in refused(door, {**bare, "no.such.setting": "1"}, ConfigError)


def test_a_client_of_another_protocol_hears_what_may_be_wrong(secured_kafka: KafkaBroker, kafka: KafkaBroker) -> None:
    assert "security.protocol" in refused(secured_kafka.url, {}, LogUnavailable)
    bare = {"security.protocol": "SSL", "ssl.ca.location": secured_kafka.secured.client()["ssl.ca.location"]}
    assert "kafka.security.protocol" in refused(kafka.url, bare, LogUnavailable)  # the client's own words vary


def test_the_command_takes_the_same_settings_and_prints_no_secret(
    secured_kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    password = Path(
        secured_kafka.secured.client()["sasl.password"].removeprefix("${file:").removesuffix("}")
    ).read_text()
    monkeypatch.setenv("WORD", password)
    settings = as_java(secured_kafka.secured.client()) | {"sasl.password": "${env:WORD}"}
    lines = [f'log = "{secured_kafka.url}"', "[kafka]", *(f'"{each}" = "{value}"' for each, value in settings.items())]
    Path("millstream.toml").write_text("\n".join(lines))
    topic = name()
    said = ""
    for arguments in (["topics", "create", topic], ["topics", "list"], ["lag"], ["doctor", "--quick"]):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
        said += done.output
    assert topic in said
    monkeypatch.setenv("WORD", CANARY)
    done = CliRunner().invoke(cli, ["--debug", "topics", "list"])
    assert done.exit_code != 0
    assert password not in said
    assert CANARY not in done.output + str(done.exception)
