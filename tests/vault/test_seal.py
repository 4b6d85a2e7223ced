"""Tokens: what went in comes out, with the right key, vault, topic and field; anything else is an error or ``erased``."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream import Vault
from millstream.errors import SealBroken
from millstream.vault.keys import Keys, Subject
from millstream.vault.seal import PREFIX, Origin, open_token, parse, seal
from millstream.vault.topic import TopicSeal

ANN = {"user_id": 7, "email": "ann@example.com", "name": "Ann"}
BOB = {"user_id": 8, "email": "bob@example.com", "name": "Bob"}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def changed(token: str, change: Callable[[bytearray], Any]) -> str:
    """A token whose bytes were changed."""
    body = token.removeprefix(PREFIX)
    data = bytearray(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    change(data)
    return PREFIX + base64.urlsafe_b64encode(bytes(data)).rstrip(b"=").decode()


@shared
@given(values, names, names, names)
def test_what_was_sealed_comes_back(vault: Vault, value: Any, topic: str, field: str, user: str) -> None:
    origin, subject = Origin(topic, field), Subject("user", user)
    token = seal(vault._keys, vault._keys.of([subject])[subject], origin, value)
    assert parse(token).origin == origin
    assert open_token(vault._keys, token, {origin}) == value
    assert token.isascii()
    assert not set(token) & set("\"\\ ',\n")


@shared
@given(st.data())
def test_a_token_with_any_bit_changed_does_not_open(vault: Vault, orders: TopicSeal, data: st.DataObject) -> None:
    token = orders.value(ANN)["email"]
    body = token.removeprefix(PREFIX)
    size = len(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    at, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7))

    def flip(raw: bytearray) -> None:
        raw[at] ^= 1 << bit

    with pytest.raises(SealBroken):
        vault.reveal(changed(token, flip))


@shared
@given(st.integers(0, 200))
def test_a_token_that_was_cut_off_does_not_open(vault: Vault, orders: TopicSeal, length: int) -> None:
    token = orders.value(ANN)["email"]
    cut = token[: len(PREFIX) + length]
    if cut != token:
        with pytest.raises(SealBroken, match=r"column mail: "):
            vault.reveal(cut, where="column mail")


@pytest.mark.parametrize("junk", ["", "!", "AAAA", "é", "A" * 200, "=", "AAA=", " "])
def test_what_only_looks_like_a_token_is_an_error_that_names_the_field(vault: Vault, junk: str) -> None:
    with pytest.raises(SealBroken, match="row 3, column mail"):
        vault.reveal(PREFIX + junk, where="row 3, column mail")


def test_a_wrong_tag_names_field_and_cause(vault: Vault, orders: TopicSeal) -> None:
    token = changed(orders.value(ANN)["email"], lambda raw: raw.__setitem__(-1, raw[-1] ^ 1))
    with pytest.raises(SealBroken, match=r"orders\.email: the tag is wrong: the token was changed"):
        vault.reveal(token)
    with pytest.raises(SealBroken, match=r"view customers, column mail: the tag is wrong"):
        vault.reveal_row({"mail": token}, {"mail": {("orders", "email")}}, "view customers")


def test_a_token_that_is_given_the_key_of_another_subject_does_not_open(vault: Vault, orders: TopicSeal) -> None:
    mine, other = orders.value(ANN)["email"], orders.value(BOB)["email"]
    with pytest.raises(SealBroken, match="the tag is wrong"):
        vault.reveal(changed(mine, lambda raw: raw.__setitem__(slice(8, 24), parse(other).key)))


def test_a_token_that_is_given_another_field_or_topic_does_not_open(vault: Vault) -> None:
    seal = vault.sealing("t_one", subject={"user": "id"}, personal=["aa"])
    token = seal.value({"id": 1, "aa": "x"})["aa"]
    for old, new in ((b"t_one", b"t_two"), (b"aa", b"bb")):
        moved = changed(token, lambda raw, old=old, new=new: raw.__setitem__(slice(None), raw.replace(old, new, 1)))  # type: ignore[misc]
        assert parse(moved).origin in (("t_two", "aa"), ("t_one", "bb"))
        with pytest.raises(SealBroken, match="another key, topic or field"):
            vault.reveal(moved)


def test_a_token_that_was_moved_to_another_field_or_topic_is_an_error(vault: Vault, orders: TopicSeal) -> None:
    users = vault.sealing("users", subject={"user": "user_id"}, personal=["email", "name"])
    sealed = orders.value(ANN)
    with pytest.raises(
        SealBroken, match=r"orders\.name: found a token that was sealed as orders\.email; expected orders\.name"
    ):
        orders.reveal({**sealed, "name": sealed["email"]})
    with pytest.raises(SealBroken, match=r"users\.email: found a token that was sealed as orders\.email"):
        users.reveal(sealed)


def test_a_token_of_another_subjects_record_is_an_error(orders: TopicSeal) -> None:
    with pytest.raises(SealBroken, match="sealed for another user than that of its record"):
        orders.reveal({**orders.value(ANN), "name": orders.value(BOB)["name"]})


def test_a_token_of_another_vault_is_an_error_and_not_erased(
    vault: Vault, orders: TopicSeal, master: str, tmp_path: Path
) -> None:
    with (
        Vault(f"sqlite:{tmp_path}/other.db", master=master, create=True) as other,
        pytest.raises(SealBroken, match="of vault"),
    ):
        other.reveal(orders.value(ANN)["email"])


def test_a_key_id_that_nobody_has_is_an_error_and_not_erased(vault: Vault, orders: TopicSeal) -> None:
    with pytest.raises(SealBroken, match="not in the vault, and was not deleted"):
        vault.reveal(changed(orders.value(ANN)["email"], lambda raw: raw.__setitem__(slice(8, 24), bytes(16))))


def test_equal_values_have_other_tokens_and_equal_pseudonyms(vault: Vault, orders: TopicSeal) -> None:
    one, other = orders.value(ANN), orders.value({**ANN, "user_id": 9})
    assert one["email"] != orders.value(ANN)["email"]
    assert one["email_pseudonym"] == other["email_pseudonym"] == vault.pseudonym("email", "ann@example.com")
    assert len(one["email_pseudonym"]) == 22


@shared
@given(st.lists(st.tuples(st.text("ab", max_size=2), values), min_size=2, max_size=6))
def test_pseudonyms_are_equal_just_where_domain_and_value_are(vault: Vault, given_: list[tuple[str, Any]]) -> None:
    made = [vault.pseudonym(*each) for each in given_]
    meant = [(domain, json.dumps(value, sort_keys=True)) for domain, value in given_]
    for one, mine in zip(meant, made, strict=True):
        assert [each == mine for each in made] == [each == one for each in meant]


def test_pseudonyms_of_two_vaults_have_nothing_in_common(vault: Vault, master: str, tmp_path: Path) -> None:
    with Vault(f"sqlite:{tmp_path}/other.db", master=master, create=True) as other:
        assert other.pseudonym("email", "a") != vault.pseudonym("email", "a")


def test_rows_and_tables_are_revealed_as_text(vault: Vault) -> None:
    seal = vault.sealing("t", subject={"user": "id"}, personal=["age", "tags", "name"])
    one, two = (
        seal.value({"id": 1, "age": 41, "tags": ["a"], "name": "Ann"}),
        seal.value({"id": 2, "age": None, "name": "Bob"}),
    )
    row = {"n": 3, "who": one["name"], "age": one["age"], "tags": one["tags"], "plain": "sealed", "none": None}
    shown = {"n": 3, "who": "Ann", "age": "41", "tags": '["a"]', "plain": "sealed", "none": None}
    assert vault.reveal_row(row, {"who": {("t", "name")}}, "view v") == shown
    table = pa.table({"who": [one["name"], two["name"], None, "plain"], "n": [1, 2, 3, 4]})
    vault.shred(user=2)
    revealed = vault.reveal_table(table, {}, "view v")
    assert revealed.to_pydict() == {"who": ["Ann", "erased", None, "plain"], "n": [1, 2, 3, 4]}
    assert revealed.schema == table.schema
    with pytest.raises(
        SealBroken, match=r"view v, column who: found a token that was sealed as t\.name; expected t\.age"
    ):
        vault.reveal_table(table, {"who": {("t", "age")}}, "view v")


def test_many_keys_are_made_in_one_commit(vault: Vault) -> None:
    subjects = [Subject("user", str(each)) for each in range(500)]
    keys: Keys = vault._keys
    db = keys._file.db
    before = db.execute("PRAGMA data_version").fetchone()
    made = keys.of(subjects)
    assert len({each.id for each in made.values()}) == 500
    assert keys.of(subjects) == made
    assert db.execute("PRAGMA data_version").fetchone() == before
    assert vault.status().keys == 500
