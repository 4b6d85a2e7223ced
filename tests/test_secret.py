"""A canary walks through every door at which a secret could be written out: it is refused there, and never repeated.

What a whole run leaves on disk and on command lines is in ``tests/runtime/test_private.py``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from millstream.address import parse_address, parse_redis
from millstream.cli.output import opened_pipeline
from millstream.config import Settings, load
from millstream.errors import MillstreamError, SinkUnavailable
from millstream.log import open_log
from millstream.log.kafka.names import java_settings
from millstream.pipeline import Pipeline
from millstream.secret import is_secret, redact, redacted
from millstream.sink.redis import RedisSink
from millstream.spark.session import spark_session
from millstream.sql.statement import load_script

CANARY = "c4n4ry-7f3e"
NAMES = [
    "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.key", "sasl.jaas.config", "sasl.oauthbearer.client.secret",
    "basic.auth.user.info", "sasl.oauthbearer.token",
]  # fmt: skip
OF_SPARK = [
    "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net", "spark.hadoop.fs.azure.sas.c.shop.blob.core.windows.net",
    "spark.hadoop.google.cloud.auth.service.account.json", "spark.authenticate.secret", "spark.ssl.keyPassword",
]  # fmt: skip
INSIDE = {
    "spark.driver.extraJavaOptions": f"-Xmx1g -Djavax.net.ssl.trustStorePassword={CANARY}",
    "schema.registry.url": f"https://me:{CANARY}@registry.example",
}
REDIS = [
    f"redis://:{CANARY}@h:6379/0", f"redis://me:{CANARY}@h", f"redis://h:6379/0?password={CANARY}", f"redis://:a/{CANARY}@h",
    f"redis://:{CANARY}?x@h/0", f"rediss://:x{CANARY}${{env:HOME}}@h", f"redis://h?ssl_keyfile=k&ssl_password={CANARY}",
    f"redis://:a#{CANARY}@h", f"redis//:{CANARY}@h",
]  # fmt: skip
LOGS = [f"kafka://me:{CANARY}@h:9092", f"kafka://h:9092?sasl.password={CANARY}", f"postgresql://me:{CANARY}@h/db"]


def sent_to(address: str) -> Pipeline:
    pipeline = Pipeline("shop")
    orders = pipeline.stream("orders", "country string, amount double")
    pipeline.sink("out", pipeline.view("sales", orders.group_by("country").agg(n="count(*)")), address)
    return pipeline


def by_flag(*flags: str) -> None:
    """A pipeline as a command opens it."""

    @click.command()
    @click.option("--log")
    @click.option("--conf", multiple=True)
    def command(log: str | None, conf: tuple[str, ...]) -> None:
        opened_pipeline(None, log, conf=conf)

    found = CliRunner().invoke(command, list(flags))
    assert CANARY not in found.output
    if found.exception is not None:
        raise found.exception


def doors(tmp_path: Path) -> dict[str, Callable[[], object]]:
    def of_file(text: str) -> Callable[[], object]:
        def read() -> object:
            (tmp_path / "millstream.toml").write_text(text)
            return load(tmp_path / "millstream.toml", {})

        return read

    found: dict[str, Callable[[], object]] = {}
    for name, value in {**dict.fromkeys(NAMES, CANARY), **INSIDE}.items():
        found[f"kafka= {name}"] = lambda name=name, value=value: Pipeline("shop", kafka={name: value})
        found[f"sql kafka.{name}"] = lambda name=name, value=value: load_script(
            f"CREATE PIPELINE shop WITH (`kafka.{name}` = '{value}');", "shop.sql", "shop"
        )
        found[f"open_log {name}"] = lambda name=name, value=value: open_log("kafka://127.0.0.1:1", kafka={name: value})
        found[f"source {name}"] = lambda name=name, value=value: java_settings({name: value})
        found[f"file kafka.{name}"] = of_file(f'[kafka]\n"{name}" = "{value}"\n')
        variable = f"MILLSTREAM_KAFKA__{name.upper().replace('.', '_')}"
        found[f"environment {name}"] = lambda variable=variable, value=value: load(environ={variable: value})
    for name, value in {**dict.fromkeys(OF_SPARK, CANARY), **INSIDE}.items():
        name = name if name.startswith("spark.") else f"spark.{name}"
        found[f"spark= {name}"] = lambda name=name, value=value: Pipeline("shop", spark={name: value})
        found[f"file {name}"] = of_file(f'[spark]\n"{name.removeprefix("spark.")}" = "{value}"\n')
        found[f"flag {name}"] = lambda name=name, value=value: by_flag("--conf", f"{name}={value}")
        found[f"session {name}"] = lambda name=name, value=value: spark_session(settings={name: value})
    for address in REDIS:
        found[f"sink {address}"] = lambda address=address: sent_to(address)
    for address in LOGS:
        found[f"log {address}"] = lambda address=address: Pipeline("shop", log=address)
        found[f"open_log {address}"] = lambda address=address: open_log(address)
        found[f"file log {address}"] = lambda address=address: open_log(of_file(f'log = "{address}"')().log)  # type: ignore[attr-defined]
        found[f"flag log {address}"] = lambda address=address: by_flag("--log", address)
        found[f"sink topic {address}"] = lambda address=address: sent_to(f"topic:t@{address}")
    for address in (
        f"postgres://me:{CANARY}@h/db",
        f"postgresql://h/db?password={CANARY}",
        f"postgresql://h/?scram_client_key={CANARY}",
    ):
        found[f"views {address}"] = lambda address=address: Pipeline("shop", to=address)
        found[f"address {address}"] = lambda address=address: parse_address(address)
    return found


def test_a_secret_that_is_written_out_is_refused_at_every_door_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for door, enter in doors(tmp_path).items():
        with pytest.raises(MillstreamError, match=r"secret|expected (sqlite|kafka|redis|topic)") as caught:
            enter()
        assert CANARY not in "".join(traceback.format_exception(caught.value)), door


def test_what_only_sounds_like_a_secret_is_a_setting_like_others() -> None:
    for name in (
        "ssl.key.location",
        "spark.hadoop.fs.s3a.aws.credentials.provider",
        "spark.ssl.keyStore",
        "client.id",
        "spark.sql.keys",
    ):
        assert not is_secret(name), name
        Pipeline("shop", kafka={name: "x"})


@pytest.mark.parametrize("word", [CANARY, "p@ss/w?rd#1&%41 é:"])
@pytest.mark.parametrize(
    "address",
    [
        "redis://:${env:WORD}@127.0.0.1:1/0", "redis://:${file:FILE}@127.0.0.1:1/0", "redis://me:${env:WORD}@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=${env:WORD}", "redis://127.0.0.1:1/0?password=${file:FILE}",
    ],
)  # fmt: skip
def test_the_password_of_redis_comes_whole_from_where_its_address_says_and_is_told_nowhere(
    address: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", word)
    (tmp_path / "a word").write_text(word + "\n", encoding="utf-8")
    address = address.replace("FILE", str(tmp_path / "a word"))
    pipeline = sent_to(address)
    named = pipeline.sinks["out"]
    sink = RedisSink(address, "v", "p", ("k",))
    settings = sink._client.connection_pool.connection_kwargs
    assert (settings["password"], settings["host"], settings["port"]) == (word, "127.0.0.1", 1)
    with pytest.raises(SinkUnavailable, match=r"Redis at 127\.0\.0\.1:1/0: ") as caught:
        sink.last()
    said = [
        str(caught.value),
        repr(named),
        named.where,
        str(parse_redis(address)),
        str(pipeline.describe()),
        repr(pipeline),
    ]
    assert [each for each in said if word in each] == []


def test_what_is_made_in_code_is_not_shown_either() -> None:
    for name in NAMES + OF_SPARK:
        assert redact(name, CANARY) == "***"
        assert CANARY not in repr(Settings(kafka={name: CANARY}, spark={name: CANARY}))
    for address in (*REDIS, *LOGS):
        assert CANARY not in redacted(address) + repr(Settings(log=address))
