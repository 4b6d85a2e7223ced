"""The file, then the environment; secrets only by reference, and never in anything that is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.config import ErasedTopic, Settings, load, redact, resolve
from millstream.errors import ConfigError

CANARY = "c4n4ry-7f3e"
SECRET_NAMES = [
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token",
    "SASL.PASSWORD",
]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "millstream.toml"
        path.write_text(text)
        return path

    return write


def test_without_anything_the_defaults_work_on_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environ={}) == Settings() == Settings(log="sqlite:millstream.db", archive="archive", kafka={})


def test_a_file_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "millstream.toml").write_text('log = "sqlite:here.db"')
    monkeypatch.chdir(tmp_path)
    assert load(environ={}).log == "sqlite:here.db"


def test_a_named_file_comes_before_the_one_the_environment_names(file: Callable[[str], Path], tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('log = "sqlite:other.db"')
    environ = {"MILLSTREAM_CONFIG": str(other)}
    assert load(environ=environ).log == "sqlite:other.db"
    assert load(file('log = "sqlite:named.db"'), environ).log == "sqlite:named.db"


def test_the_environment_overrides_the_file(file: Callable[[str], Path]) -> None:
    path = file('log = "sqlite:file.db"\narchive = "kept"\n[kafka]\n"client.id" = "file"\nacks = "all"\n')
    assert load(path, {}) == Settings("sqlite:file.db", "kept", {"client.id": "file", "acks": "all"})
    environ = {"MILLSTREAM_LOG": "kafka://h:1", "MILLSTREAM_KAFKA__CLIENT_ID": "env", "MILLSTREAM_ARCHIVE": ""}
    assert load(path, environ) == Settings("kafka://h:1", "kept", {"client.id": "env", "acks": "all"})


def test_dotted_names_numbers_and_truth_become_kafka_settings(file: Callable[[str], Path]) -> None:
    path = file(
        '[kafka]\nsasl.username = "me"\nretries = 5\nenable.idempotence = true\n[kafka.socket]\nkeepalive.enable = false\n'
    )
    assert load(path, {}).kafka == {
        "sasl.username": "me",
        "retries": "5",
        "enable.idempotence": "true",
        "socket.keepalive.enable": "false",
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("log = ", "not TOML"),
        ("lgo = 'x'", "lgo"),
        ("log = 7", "Expected `str`"),
        ("kafka = 'x'", "Expected `object`"),
        ("[kafka]\nretries = 1.5", "Expected `str`"),
        ("[kafka]\nbrokers = ['a']", "Expected `str`"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_the_error(file: Callable[[str], Path], text: str, why: str) -> None:
    path = file(text)
    with pytest.raises(ConfigError, match=why) as caught:
        load(path, {})
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_not_text_or_not_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match="no such file"):
        load(environ={"MILLSTREAM_CONFIG": str(tmp_path / "none.toml")})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, {})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        load(tmp_path / "binary.toml", {})


# secrets


def unquoted(name: str, value: str) -> str:
    return f'[kafka]\n"{name}" = "{value}"\n'


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secret_in_the_file_or_a_variable_is_refused_and_not_repeated(file: Callable[[str], Path], name: str) -> None:
    variable = f"MILLSTREAM_KAFKA__{name.upper().replace('.', '_')}"
    for text, environ in [(unquoted(name, CANARY), {}), ("", {variable: CANARY})]:
        with pytest.raises(ConfigError, match="a secret must not stand in the settings") as caught:
            load(file(text), environ)
        assert CANARY not in str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)


def test_a_secret_with_something_around_its_reference_is_refused(file: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="must not stand") as caught:
        load(file(unquoted("sasl.password", f"${{env:X}}{CANARY}")), {})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("name", SECRET_NAMES)
@pytest.mark.parametrize("reference", ["${env:NAME}", "${file:/run/secret}", " ${env:NAME} "])
def test_a_reference_is_kept_as_it_stands_until_it_is_needed(
    file: Callable[[str], Path], name: str, reference: str
) -> None:
    loaded = load(file(unquoted(name, reference)), {"NAME": CANARY})
    assert loaded.kafka == {name: reference}
    assert CANARY not in repr(loaded) + str(loaded)
    assert "***" in repr(loaded)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_secret_made_in_code_is_not_shown_either(name: str) -> None:
    assert CANARY not in repr(Settings(kafka={name: CANARY}))
    assert redact(name, CANARY) == "***"
    assert redact("client.id", "me") == "me"


@pytest.mark.parametrize(
    "text",
    [
        f'[kafka]\n"sasl.password" = "{CANARY}',
        f'[kafka]\n"sasl.password" = {CANARY}',
        f'password = "{CANARY}"',
        f'[kafka]\n"sasl.password" = ["{CANARY}"]',
        f'[kafka]\n"sasl.password" = "{CANARY}"\n"x" = 1.5',
    ],
)
def test_no_error_about_a_file_shows_a_secret_in_it(file: Callable[[str], Path], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file(text), {})
    shown = str(caught.value) + repr(caught.value) + str(caught.value.__cause__) + repr(caught.value.__cause__)
    assert CANARY not in shown


def test_references_are_resolved_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{CANARY}\n")
    assert resolve("${env:A}-${file:" + str(tmp_path / "secret") + "}", {"A": "a"}) == f"a-{CANARY}"
    assert resolve("plain $HOME ${other:x}", {}) == "plain $HOME ${other:x}"


def test_a_resolved_secret_is_not_looked_into_again() -> None:
    assert resolve("${env:A}", {"A": "${env:B}", "B": CANARY}) == "${env:B}"


def test_a_reference_to_nothing_names_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$\{env:MISSING\}: no such environment variable") as caught:
        resolve(f"${{env:MISSING}} {CANARY}", {"OTHER": CANARY})
    assert CANARY not in str(caught.value)
    with pytest.raises(ConfigError, match="no such file"):
        resolve("${file:" + str(tmp_path / "none") + "}", {})
    (tmp_path / "binary").write_bytes(CANARY.encode() + b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        resolve("${file:" + str(tmp_path / "binary") + "}", {})
    assert caught.value.__cause__ is None  # it would hold the secret's bytes
    assert CANARY not in str(caught.value)


name_part = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.lists(name_part, min_size=1, max_size=3).map(".".join).filter(lambda name: redact(name, "x") == "x"),
        st.text(st.characters(codec="ascii", exclude_characters='"\\', exclude_categories=["Cc"])),
        max_size=4,
    )
)
def test_plain_settings_come_back_as_they_were_written(tmp_path: Path, kafka: dict[str, str]) -> None:
    path = tmp_path / "any.toml"
    path.write_text("[kafka]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in kafka.items()))
    assert load(path, {}).kafka == kafka
    environ = {f"MILLSTREAM_KAFKA__{name.upper().replace('.', '_')}": value for name, value in kafka.items()}
    assert load(path, environ).kafka == kafka


def test_topics_that_no_pipeline_reads_are_told_with_their_subjects(tmp_path: Path) -> None:
    path = tmp_path / "millstream.toml"
    path.write_text('[erase.logins]\nschema = "user string, ip string"\nsubject = {user = "user"}\npersonal = ["ip"]\n')
    assert load(path, {}).erase == {"logins": ErasedTopic("user string, ip string", {"user": "user"}, ["ip"])}
    path.write_text('[erase.logins]\nschema = "user string"\nsubjects = {user = "user"}\n')
    with pytest.raises(ConfigError, match="erase"):
        load(path, {})
