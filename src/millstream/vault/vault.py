"""A vault as its users hold it: it seals at the producer, reveals at the reading edge, and shreds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.closing import Closing
from millstream.errors import ConfigError, VaultError
from millstream.event import Record
from millstream.vault.keys import Keys, Status, Subject
from millstream.vault.master import Hook, Master
from millstream.vault.pseudonym import pseudonym
from millstream.vault.seal import ERASED, GONE, Origin, is_token, open_token
from millstream.vault.topic import TopicSeal, declare

if TYPE_CHECKING:
    import pyarrow

    from millstream.config import VaultSettings


class Vault(Closing):
    """The keys of sealed values. Who has it reads them; who deletes a subject's key has erased every copy of what it sealed.

    Needs the extra ``millstream[vault]``. It does not travel to other processes: each opens its own.

    :param keys: the address of its file, ``sqlite:PATH``
    :param master: where the master key is, ``${env:NAME}``, ``${file:PATH}`` or ``kms:MODULE:FUNCTION``, or a function that asks a key
        management service: of ``"wrap"`` or ``"unwrap"``, the bytes, and the vault's id
    :param create: whether to make it; VaultError if it is there
    :raises ConfigError: if one of them cannot be
    :raises VaultError: if there is no vault, or another master key wraps its keys
    :raises MachineError: if cryptography is not installed

    >>> import base64, os
    >>> from tempfile import TemporaryDirectory
    >>> os.environ["SHOP_MASTER"] = base64.b64encode(os.urandom(32)).decode()
    >>> os.environ["NEXT_MASTER"] = base64.b64encode(os.urandom(32)).decode()
    >>> with TemporaryDirectory() as folder, Vault(f"sqlite:{folder}/vault.db", master="${env:SHOP_MASTER}", create=True) as vault:
    ...     seal = vault.sealing("orders", subject={"user": "user_id"}, personal=["email"])
    ...     record = seal.value({"user_id": 7, "email": "ann@example.com"})
    ...     before = vault.reveal(record["email"])
    ...     gone = vault.shred(user=7)
    ...     before, gone, vault.reveal(record["email"])
    ...     vault.rotate("${env:NEXT_MASTER}"), vault.status().keys, vault.status().shredded
    ('ann@example.com', 1, 'erased')
    (0, 0, 1)
    """

    def __init__(self, keys: str, *, master: str | Hook, create: bool = False) -> None:
        self._topics: dict[str, TopicSeal] = {}
        self._keys = Keys(_path(keys), Master(master), create=create)

    @classmethod
    def of(cls, settings: VaultSettings) -> Vault:
        """The vault that settings name, with what they say of topics.

        :param settings: the part ``vault`` of the settings
        """
        topics = {
            name: declare(name, each.subject, each.personal, each.pseudonyms) for name, each in settings.topics.items()
        }
        if not settings.master:
            raise ConfigError(
                "vault: the settings do not say where the master key is",
                hint='[vault] with master = "${file:master.key}" in millstream.toml',
            )
        vault = cls(settings.keys, master=settings.master)
        vault._topics = {name: TopicSeal(vault._keys, each) for name, each in topics.items()}
        return vault

    @property
    def path(self) -> Path:
        """Where its file is."""
        return self._keys.path

    def topic(self, name: str) -> TopicSeal | None:
        """What seals the topic called ``name``, as the settings or :meth:`sealing` said; None if nothing of it is sealed."""
        return self._topics.get(name)

    def sealing(
        self,
        topic: str,
        *,
        subject: Mapping[str, str],
        personal: Sequence[str],
        pseudonyms: Sequence[str] | Mapping[str, str] = (),
    ) -> TopicSeal:
        """Say what of a topic is sealed; what comes back seals its events.

        :param topic: the topic's name
        :param subject: the kind of subject, and the field that says which: ``{"user": "user_id"}``
        :param personal: the fields that are sealed
        :param pseudonyms: those of them that get a pseudonym in ``FIELD_pseudonym``; a mapping says the domain of each
        """
        made = self._topics[topic] = TopicSeal(self._keys, declare(topic, subject, personal, pseudonyms))
        return made

    def pseudonym(self, domain: str, value: Any) -> str:
        """What stands for a ``value`` of a ``domain``, by default the name of a field: to look for rows of one whose value is known."""
        return pseudonym(self._keys, domain, value)

    def reveal(self, value: Any, origins: Collection[tuple[str, str]] | None = None, where: str = "") -> Any:
        """Give what a token seals, or ``erased`` if its key was deleted; anything that is no token stays as it is.

        :param value: a token
        :param origins: the topics and fields where it may have been sealed; None for any
        :param where: what errors call the place
        :raises SealBroken: if it was changed, or stems from elsewhere
        """
        if not is_token(value):
            return value
        expected = None if origins is None else {Origin(*each) for each in origins}
        found = open_token(self._keys, value, expected, where)
        return ERASED if found is GONE else found

    def reveal_record(self, record: Record) -> Record:
        """A record of a log with its sealed fields revealed. Of a topic that is sealed here, tokens of other fields are refused.

        :param record: the record
        """
        if record.value is None:
            return record
        try:
            value = msgspec.json.decode(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return record
        if not isinstance(value, dict):
            return record
        where, known = f"{record.topic}/{record.partition}, offset {record.offset}:", self.topic(record.topic)
        if known:
            shown = known.reveal(value, where)
        else:
            shown = {name: self.reveal(each, None, f"{where} {name}") for name, each in value.items()}
        return record._replace(value=msgspec.json.encode(shown)) if shown != value else record

    def reveal_row(
        self,
        row: Mapping[str, Any],
        origins: Mapping[str, Collection[tuple[str, str]]] | None = None,
        where: str = "row",
    ) -> dict[str, Any]:
        """A row of a view with its tokens revealed, as text.

        :param row: its columns
        :param origins: where the tokens of a column, in lower case, may have been sealed; a column that is not named: anywhere
        :param where: what errors call the view
        """
        known = origins or {}
        return {
            name: self._text(each, known.get(name.lower()), f"{where}, column {name}") for name, each in row.items()
        }

    def reveal_table(
        self,
        table: pyarrow.Table,
        origins: Mapping[str, Collection[tuple[str, str]]] | None = None,
        where: str = "table",
    ) -> pyarrow.Table:
        """An Arrow table with the tokens in its columns of text revealed, as text; what :meth:`reveal_row` does, for all rows.

        :param table: the table
        :param origins: where the tokens of a column, in lower case, may have been sealed
        :param where: what errors call it
        """
        import pyarrow as pa

        for at, field in enumerate(table.schema):
            if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
                continue
            values, expected = table.column(at).to_pylist(), (origins or {}).get(field.name.lower())
            if any(map(is_token, values)):
                with self._keys.at_once():
                    shown = [self._text(each, expected, f"{where}, column {field.name}") for each in values]
                table = table.set_column(at, field, pa.array(shown, field.type))
        return table

    def shred(self, *subjects: tuple[str, str | int], **one: str | int) -> int:
        """Delete the keys of subjects, ``user=123``, and their bytes from the file; how many there were.

        From then on all that was sealed for them is ``erased``, wherever it was copied. Cut off, it is to be done again.

        :param subjects: kinds of subjects and which of each, ``("user", 123)``: many at once, since each call writes the file anew
        :param one: the same by name
        """
        return self._keys.shred([Subject(kind, str(value)) for kind, value in (*subjects, *one.items())])

    def rotate(self, master: str | Hook) -> int:
        """Wrap all keys anew for another master key, in one transaction; how many there are. The old one opens nothing any more.

        :param master: where the new master key is
        """
        return self._keys.rotate(Master(master))

    def status(self) -> Status:
        """How many keys there are, and were."""
        return self._keys.status()

    def close(self) -> None:
        """Close the file, and forget the keys."""
        self._keys.close()

    def __repr__(self) -> str:
        return f"<Vault {self.path}>"

    def __reduce__(self) -> str:
        raise VaultError(
            "a vault does not travel to other processes", hint="open one there, or reveal where the rows are read"
        )

    def _text(self, value: Any, origins: Collection[tuple[str, str]] | None, where: str) -> Any:
        """A value of a row, revealed; what is no text becomes its JSON, for the column holds text."""
        found = self.reveal(value, origins, where)
        return msgspec.json.encode(found).decode() if is_token(value) and not isinstance(found, str) else found


def rotated(keys: str, before: str, after: str) -> int:
    """Rotate the master key of a vault; done again after a rotation that was cut off behind its end, it finds that it is done."""
    try:
        vault = Vault(keys, master=before)
    except VaultError as error:
        try:
            vault = Vault(keys, master=after)
        except VaultError:
            raise error from None
    with vault:
        return vault.rotate(after)


def _path(keys: str) -> Path:
    scheme, _, rest = keys.partition(":")
    if scheme != "sqlite" or not rest.strip("/"):
        raise ConfigError(f"vault.keys: expected sqlite:PATH; found {keys!r}", hint='keys = "sqlite:vault.db"')
    return Path(rest.removeprefix("//") if rest.startswith("///") else rest)
