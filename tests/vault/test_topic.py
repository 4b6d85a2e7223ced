"""Sealing at the producer: every personal field, or nothing; and reading records back."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream import Buffer, Event, Producer, Record, Vault, config, open_log
from millstream.errors import BadEvent, ConfigError
from millstream.testing import KafkaBroker
from millstream.vault.seal import is_token
from millstream.vault.topic import TopicSeal, declare

CANARY = "canary-77@example.com"
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
fields = st.none() | st.integers(0, 99) | st.text('ab\0é"\\{', max_size=8) | st.lists(st.integers(0, 9), max_size=2)


@shared
@given(
    st.fixed_dictionaries(
        {"user_id": st.integers(0, 3) | st.sampled_from(["0", "ann"])},
        optional={"email": fields, "name": fields, "amount": st.integers()},
    )
)
def test_what_was_sealed_is_revealed(orders: TopicSeal, value: dict[str, Any]) -> None:
    sealed = orders.value(value)
    for field in ("email", "name"):
        assert (field in sealed) == (field in value)
        assert value.get(field) is None or is_token(sealed[field])
    assert {name: each for name, each in orders.reveal(sealed).items() if name != "email_pseudonym"} == value
    assert ("email_pseudonym" in sealed) == ("email" in value)


def test_keys_that_will_be_needed_are_made_at_once(vault: Vault, orders: TopicSeal) -> None:
    lines = [json.dumps({"user_id": each, "name": "x"}).encode() for each in range(100)]
    orders.prepare([*lines, b"not JSON", b'{"name": "nobody"}', b'{"n": 1}'])
    assert vault.status().keys == 100
    size = vault.path.with_name(f"{vault.path.name}-wal").stat().st_size
    assert [json.loads(orders.line(each))["user_id"] for each in lines] == list(range(100))
    assert vault.path.with_name(f"{vault.path.name}-wal").stat().st_size == size


def test_an_event_keeps_all_but_its_personal_fields(orders: TopicSeal) -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    event = Event(json.dumps({"user_id": 7, "email": CANARY, "n": 1}).encode(), b"7", time, (("h", b"x"),))
    sealed = orders(event)
    assert (sealed.key, sealed.time, sealed.headers) == (b"7", time, (("h", b"x"),))
    assert CANARY.encode() not in (sealed.value or b"")
    assert json.loads(sealed.value or b"")["n"] == 1
    tombstone = Event(None, b"7")
    assert orders.events([tombstone, event])[0] == tombstone


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"[1]", "found list, expected an object"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"email": "x"}', "which says whose record it is; found NoneType"),
        (b'{"email": "x", "user_id": null}', "found NoneType"),
        (b'{"email": "x", "user_id": true}', "found bool"),
        (b'{"email": "x", "user_id": 1.5}', "found float"),
        (b'{"email": "x", "user_id": 1, "email_pseudonym": "y"}', "there is a field email_pseudonym already"),
    ],
)
def test_what_cannot_be_sealed_is_refused(orders: TopicSeal, value: bytes, why: str) -> None:
    with pytest.raises(BadEvent, match=why):
        orders(Event(value))


def test_a_record_without_personal_values_needs_no_subject(vault: Vault, orders: TopicSeal) -> None:
    assert orders.value({"n": 1, "name": None}) == {"n": 1, "name": None}
    assert vault.status().keys == 0


def test_a_value_that_looks_like_a_token_is_sealed_like_any_other(orders: TopicSeal) -> None:
    """Or one could put another's token into one's own name, and read it there."""
    others = orders.value({"user_id": 1, "name": "Bob"})["name"]
    mine = orders.value({"user_id": 2, "name": others})
    assert mine["name"] != others
    assert orders.reveal(mine)["name"] == others


@pytest.mark.parametrize("key", [b"{", b"{}", b'{"n": 1}', b'{"user_id": "7"}', b"[]", b""])
def test_any_other_key_is_taken(orders: TopicSeal, key: bytes) -> None:
    assert orders(Event(json.dumps({"user_id": 7, "email": CANARY}).encode(), key=key)).key == key


@pytest.mark.parametrize(
    "event",
    [
        {"key": CANARY.encode()},
        {"key": b'{"email": "%s", "n": 1}' % CANARY.encode()},
        {"headers": (("from", CANARY.encode()),)},
    ],
)
def test_a_key_or_a_header_that_says_what_is_sealed_is_refused(orders: TopicSeal, event: dict[str, Any]) -> None:
    value = json.dumps({"user_id": 7, "email": CANARY}).encode()
    with pytest.raises(BadEvent, match="is what its field email seals") as caught:
        orders(Event(value, **event))
    assert CANARY not in str(caught.value)
    pseudonym = orders.pseudonym("email", CANARY).encode()
    assert json.loads(orders(Event(value, key=pseudonym)).value or b"")["email_pseudonym"].encode() == pseudonym


def test_a_key_that_is_the_subject_is_no_secret(orders: TopicSeal) -> None:
    orders(Event(b'{"user_id": "ann", "name": "ann"}', key=b"ann"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"subject": {}, "personal": ["a"]}, "expected one kind of subject"),
        ({"subject": {"user": "u", "team": "t"}, "personal": ["a"]}, "expected one kind of subject"),
        ({"subject": {"a b": "u"}, "personal": ["a"]}, "letters, digits and _; found 'a b'"),
        ({"subject": {"user": "u"}, "personal": []}, "expected personal fields"),
        ({"subject": {"user": "u"}, "personal": "email"}, "expected personal fields"),
        ({"subject": {"user": "u"}, "personal": ["a", "a"]}, "each once"),
        ({"subject": {"user": "u"}, "personal": ["a"], "pseudonyms": ["b"]}, "a pseudonym of b, which is not among"),
        ({"subject": {"user": "u"}, "personal": ["a"], "pseudonyms": "a"}, "expected pseudonyms to be fields"),
        ({"subject": {"user": "u"}, "personal": ["a", "a_pseudonym"], "pseudonyms": ["a"]}, "personal field already"),
    ],
)
def test_a_declaration_that_does_not_hold_together_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        declare("orders", **said)


def test_fields_of_one_domain_have_one_pseudonym(vault: Vault, orders: TopicSeal) -> None:
    users = vault.sealing("users", subject={"user": "id"}, personal=["mail"], pseudonyms={"mail": "email"})
    one, other = orders.value({"user_id": 1, "email": "a"}), users.value({"id": 1, "mail": "a"})
    assert one["email_pseudonym"] == other["mail_pseudonym"]
    with pytest.raises(ConfigError, match="name has no pseudonym"):
        orders.pseudonym("name", "x")


def test_a_producer_seals_before_it_buffers_or_spills(orders: TopicSeal, vault: Vault, tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path}/log.db") as log:
        log.create_topic("orders")
        buffer = Buffer("buffer", capacity=1, spill=tmp_path / "spill.db")
        with Producer(log, "orders", buffer, name="shop", seal=orders) as producer:
            for user in range(200):
                producer.send(Event(json.dumps({"user_id": user, "email": CANARY}).encode(), key=b"%d" % user))
            spilled = (tmp_path / "spill.db").read_bytes()
            with pytest.raises(BadEvent):
                producer.send(Event(b"not JSON"))
            producer.flush()
            assert producer.counters.sent == 200
        records = log.read("orders", 0, 0, 500)
        assert len(records) == 200
        assert json.loads(vault.reveal_record(records[3]).value or b"")["email"] == CANARY
        vault.shred(user=3)
        assert json.loads(vault.reveal_record(records[3]).value or b"")["email"] == "erased"
        assert json.loads(vault.reveal_record(records[4]).value or b"")["email"] == CANARY
    files = [each for each in tmp_path.iterdir() if each.is_file()]
    assert len(files) >= 4
    assert not any(CANARY.encode() in data for data in (spilled, *(each.read_bytes() for each in files)))


def test_a_topic_on_kafka_is_sealed_alike(kafka: KafkaBroker, vault: Vault) -> None:
    topic = f"orders-{secrets.token_hex(4)}"
    seal = vault.sealing(topic, subject={"user": "user_id"}, personal=["email"])
    with open_log(kafka.url) as log:
        log.create_topic(topic)
        with Producer(log, topic, seal=seal) as producer:
            for user in range(20):
                producer.send(Event(json.dumps({"user_id": user, "email": CANARY}).encode(), key=b"%d" % user))
        records = log.read(topic, 0, 0, 20)
    assert len(records) == 20
    assert not any(CANARY.encode() in (each.value or b"") for each in records)
    vault.shred(user=3)
    shown = [json.loads(vault.reveal_record(each).value or b"")["email"] for each in records]
    assert shown == [CANARY] * 3 + ["erased"] + [CANARY] * 16


def test_a_record_of_another_topic_is_revealed_wherever_it_was_sealed(orders: TopicSeal, vault: Vault) -> None:
    token = orders.value({"user_id": 1, "email": "a"})["email"]
    derived = Record("derived", 0, 3, None, json.dumps({"mail": token, "n": 1}).encode(), 0, 0)
    assert json.loads(vault.reveal_record(derived).value or b"") == {"mail": "a", "n": 1}
    for other in (b"plain text", b"[1]", b'{"n": 1}', None):
        assert vault.reveal_record(derived._replace(value=other)).value == other


def test_settings_say_what_is_sealed(vault: Vault, master: str, tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text(
        f'[vault]\nkeys = "sqlite:{vault.path}"\nmaster = "{master}"\n'
        '[vault.topics.orders]\nsubject = {user = "user_id"}\npersonal = ["email"]\npseudonyms = ["email"]\n'
    )
    said = config.load(tmp_path / "millstream.toml", {}).vault
    with Vault.of(said) as opened:
        seal = opened.topic("orders")
        assert seal is not None
        assert opened.topic("clicks") is None
        assert is_token(seal.value({"user_id": 1, "email": "a"})["email"])
    with pytest.raises(ConfigError, match="do not say where the master key is"):
        Vault.of(config.VaultSettings(keys=said.keys))
    (tmp_path / "millstream.toml").write_text(
        '[vault.topics.orders]\nsubject = {user = "user_id"}\npersonals = ["email"]\n'
    )
    with pytest.raises(ConfigError, match="personal"):
        config.load(tmp_path / "millstream.toml", {})


def test_the_environment_says_where_the_keys_are(tmp_path: Path) -> None:
    environ = {"MILLSTREAM_VAULT__KEYS": "sqlite:v.db", "MILLSTREAM_VAULT__MASTER": "${env:KEY}"}
    said = config.load(None, environ).vault
    assert (said.keys, said.master) == ("sqlite:v.db", "${env:KEY}")
