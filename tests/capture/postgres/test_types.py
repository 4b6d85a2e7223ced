"""Types: what is read from the stream is what a snapshot has, whatever the role and the database have set."""

from __future__ import annotations

import json

from tests.capture.postgres.world import World, fold, rows_of

EVERY = """CREATE TABLE every (id bigint, k text, PRIMARY KEY (k, id), b bool, i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric, n10 numeric(10,2),
 n50 numeric(50,2), nn numeric(5,-2), mo money, da date, t time, tz timetz, ts timestamp, ts3 timestamp(3), tt timestamptz, iv interval,
 ba bytea, c char(5), vc varchar(9), ch "char", na name, bi bit(3), vb varbit, js json, jb jsonb, u uuid, ip inet, mac macaddr, x xml, tv tsvector, p point, r int4range,
 mr nummultirange, e shop.mood, d shop.money_of_ours, dt shop.word, co shop.pair, ia int[], ta text[], na2 numeric(6,2)[], tsa timestamptz[], baa bytea[], ea shop.mood[], da2 shop.word[],
 dia shop.ids, boxes box[], rc regclass, xid8 xid8, lsn pg_lsn, wide text, gen int GENERATED ALWAYS AS (i2 + 1) STORED)"""
ROWS = """INSERT INTO every (id,k,b,i2,i4,i8,o,f4,f8,n,n10,n50,nn,mo,da,t,tz,ts,ts3,tt,iv,ba,c,vc,ch,na,bi,vb,js,jb,u,ip,mac,x,tv,p,r,mr,e,d,dt,co,ia,ta,na2,tsa,baa,ea,da2,dia,boxes,rc,xid8,lsn,wide) VALUES
 (9223372036854775807,E'a\\tb\\\\c\\nd',true,-32768,2147483647,-9223372036854775808,4294967295,0.1,0.1,'12345678901234567890.0123456789',-1.5,'123456789012345678901234567890123456789012.25',12345,12.5,'2024-02-29','23:59:59.999999','12:00:00+02','2024-02-29 12:00:01.5','2024-02-29 12:00:01.5','2024-02-29 12:00:01.5+02','1 year 2 days 03:04:05.6',
 '\\x00ff5c','ab','é','x','na','101','1','{"a": 1}','{"b":  [1, 2]}','6f5d2cbe-0f0c-4d6f-9f5c-0c1d2e3f4a5b','10.0.0.1/8','08:00:2b:01:02:03','<a/>','a fat cat','(1,2)','[1,5)','{[1,2),[5,6)}','so so',12.34,'w',ROW(1,'a "b"'),
 '{1,NULL,3}',ARRAY['a,b','c"d','',NULL,'NULL','\\'],'{1.50,NaN}','{2024-02-29 12:00:01+00,infinity}',ARRAY['\\x00'::bytea,'\\xff'],'{so so,ok}','{a,b}','{4,5}','{(1,1),(0,0);(3,3),(2,2)}','every','77','16/B374D848',repeat('wide ', 2000)),
 (2,'b',false,0,0,0,0,'NaN','-Infinity','NaN',0,0,0,0,'infinity','00:00','00:00+00','-infinity','0044-03-15 01:02:03 BC','0044-03-15 01:02:03+00 BC','-1 day','','','','','','000','','[]','{}','00000000-0000-0000-0000-000000000000','::1','00:00:00:00:00:00','','','(NaN,0)','empty','{}','ok',0,'',ROW(NULL,NULL),
 '{}','{}','{}','{}','{}','{}','{}','{}','{}',NULL,'0','0/0',''),
 (3,'c',NULL,NULL,NULL,NULL,NULL,'1e-30','1e300','Infinity',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'1883-11-18 12:00:00+00',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,
 '{{1,2},{3,NULL}}','[5:6]={a,b}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL)"""  # fmt: skip


def make(world: World) -> None:
    world.run(
        "CREATE SCHEMA shop",
        "CREATE TYPE shop.mood AS ENUM ('ok', 'so so')",
        "CREATE DOMAIN shop.money_of_ours AS numeric(8,2)",
        "CREATE DOMAIN shop.word AS text CHECK (length(value) < 9)",
        "CREATE DOMAIN shop.ids AS int[]",
        "CREATE TYPE shop.pair AS (a int, b text)",
        EVERY,
    )


def test_every_type_reads_the_same_from_the_stream_and_in_a_snapshot(world: World) -> None:
    make(world)
    world.run(
        f"ALTER DATABASE {world.name} SET datestyle TO 'German, DMY'",
        f"ALTER DATABASE {world.name} SET timezone TO 'America/New_York'",
        f"ALTER DATABASE {world.name} SET bytea_output TO 'escape'",
        f"ALTER DATABASE {world.name} SET extra_float_digits TO 0",
        f"ALTER DATABASE {world.name} SET intervalstyle TO 'sql_standard'",
        f"ALTER DATABASE {world.name} SET client_encoding TO 'latin1'",
        "ALTER TABLE every REPLICA IDENTITY FULL",
    )
    with world.opened("every") as (source, position):
        world.run("SET datestyle = ISO", "SET timezone = UTC", "SET client_encoding = utf8", ROWS)
        world.run("UPDATE every SET i2 = 7 WHERE k = 'b'", "UPDATE every SET i4 = 8 WHERE id > 100")
        changes = world.changes(source, position)
        assert [each.op for each in changes] == ["c", "c", "c", "u", "u"]
        table = source.tables()[0]
        assert changes[0].table == table
        assert table.key == ("k", "id")
        rows, there = fold(changes, {})["every"], rows_of(source, "every")
        assert rows.keys() == there.keys()
        for key, row in there.items():
            assert [(name, value, type(value)) for name, value in rows[key].items()] == [
                (name, value, type(value)) for name, value in row.items()
            ]
            json.dumps(row, allow_nan=False)


def test_values_are_those_that_json_can_hold(world: World) -> None:
    make(world)
    world.run("SET timezone = UTC", ROWS)
    source = world.source("every")
    source.prepare(None)
    rows = {row["k"]: row for row in rows_of(source, "every").values()}
    first, second, third = rows["a\tb\\c\nd"], rows["b"], rows["c"]
    expected = {
        "id": 9223372036854775807, "b": True, "i2": -32768, "i8": -9223372036854775808, "o": 4294967295, "f4": 0.1, "f8": 0.1,
        "n": "12345678901234567890.0123456789", "n10": "-1.50", "nn": "12300", "da": "2024-02-29", "t": "23:59:59.999999", "tz": "12:00:00+02",
        "ts": "2024-02-29T12:00:01.5", "tt": "2024-02-29T10:00:01.5Z", "iv": "P1Y2DT3H4M5.6S", "ba": "AP9c", "c": "ab   ", "bi": "101",
        "js": '{"a": 1}', "jb": '{"b": [1, 2]}', "u": "6f5d2cbe-0f0c-4d6f-9f5c-0c1d2e3f4a5b", "r": "[1,5)", "mr": "{[1,2),[5,6)}", "e": "so so",
        "d": "12.34", "dt": "w", "co": '(1,"a ""b""")', "ia": [1, None, 3], "ta": ["a,b", 'c"d', "", None, "NULL", "\\"], "na2": ["1.50", "NaN"],
        "tsa": ["2024-02-29T12:00:01Z", "infinity"], "baa": ["AA==", "/w=="], "ea": ["so so", "ok"], "da2": ["a", "b"], "dia": [4, 5],
        "boxes": ["(1,1),(0,0)", "(3,3),(2,2)"], "rc": "public.every", "xid8": "77", "lsn": "16/B374D848", "wide": "wide " * 2000,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert "gen" not in first
    odd = {"f4": "NaN", "f8": "-Infinity", "n": "NaN", "da": "infinity", "ts": "-infinity", "ts3": "0044-03-15 01:02:03 BC", "tt": "0044-03-15 01:02:03+00 BC", "ba": "", "ia": [], "r": "empty"}  # fmt: skip
    assert {name: second[name] for name in odd} == odd
    assert (third["b"], third["n"], third["ia"], third["ta"]) == (None, "Infinity", [[1, 2], [3, None]], ["a", "b"])


def test_columns_are_declared_with_types_of_spark(world: World) -> None:
    make(world)
    (table, _) = world.source("every").tables()
    types = {column.name: (column.native, column.type) for column in table.columns}
    expected = {
        "id": ("bigint", "bigint"), "b": ("boolean", "boolean"), "i2": ("smallint", "smallint"), "o": ("oid", "bigint"), "f4": ("real", "float"),
        "f8": ("double precision", "double"), "n": ("numeric", "string"), "n10": ("numeric(10,2)", "decimal(10,2)"), "n50": ("numeric(50,2)", "string"),
        "nn": ("numeric(5,-2)", "string"), "da": ("date", "date"), "ts3": ("timestamp(3) without time zone", "timestamp_ntz"),
        "tt": ("timestamp with time zone", "timestamp"), "iv": ("interval", "string"), "ba": ("bytea", "binary"), "c": ("character(5)", "string"),
        "jb": ("jsonb", "string"), "u": ("uuid", "string"), "e": ("shop.mood", "string"), "d": ("shop.money_of_ours", "decimal(8,2)"),
        "ia": ("integer[]", "array<int>"), "na2": ("numeric(6,2)[]", "array<decimal(6,2)>"), "dia": ("shop.ids", "array<int>"), "da2": ("shop.word[]", "array<string>"),
    }  # fmt: skip
    assert {name: types[name] for name in expected} == expected
