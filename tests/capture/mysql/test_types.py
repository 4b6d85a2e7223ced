"""Types: what is read from the binary log is what a query gives, and a table is the same on both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing import MariaDbServer
from tests.capture.mysql.world import World, fold, rows_of

EVERY = """CREATE TABLE every (
 id bigint unsigned not null, k varchar(20) not null,
 ti tinyint, tu tinyint unsigned, si smallint, su smallint unsigned, mi mediumint, mu mediumint unsigned, i int(7) zerofill, iu int unsigned, bi bigint, bu bigint unsigned,
 f float, d double, fd float(7,3), de decimal(30,10), dn decimal(5,0), db decimal(65,30), dz decimal(8,2) zerofill,
 b1 bit, b9 bit(9), b64 bit(64), y year, da date, t time, t3 time(3), t6 time(6), dt datetime, dt1 datetime(1), dt6 datetime(6), ts timestamp null, ts5 timestamp(5) null,
 c char(5), vc varchar(300), l1 varchar(10) character set latin1, sj varchar(10) character set sjis, u2 char(4) character set ucs2, uca varchar(9) collate utf8mb4_uca1400_ai_ci, tt tinytext, tx text, mt mediumtext, lt longtext, js json,
 bn binary(4), vb varbinary(20), tb tinyblob, bb blob, mb mediumblob, lb longblob,
 e enum('a','b''c','ü'), s set('x','y','z'), e1 enum('é') character set latin1, p point, g geometry, vg int as (ti+1) virtual, pg int as (ti+2) persistent,
 inv int invisible, primary key (k, id))"""
ROWS = """INSERT INTO every (id,k,ti,tu,si,su,mi,mu,i,iu,bi,bu,f,d,fd,de,dn,db,dz,b1,b9,b64,y,da,t,t3,t6,dt,dt1,dt6,ts,ts5,c,vc,l1,sj,u2,uca,tt,tx,mt,lt,js,bn,vb,tb,bb,mb,lb,e,s,e1,p,g,inv) VALUES
 (18446744073709551615,'a',-128,255,-32768,65535,-8388608,16777215,42,4294967295,-9223372036854775808,18446744073709551615,0.1,0.1,1.5,-12345678901234567890.0123456789,-7,12345678901234567890123456789012345.123456789012345678901234567890,1.5,1,257,18446744073709551615,2024,'2024-02-29','-838:59:59','-00:00:00.010','12:34:56.000007','2024-02-29 12:00:01','2024-02-29 12:00:01.5','0999-01-01 00:00:00.000001','2024-02-29 12:00:01','2001-02-03 04:05:06.00001','héé','vc','€é','日本','añ日','ß','tt','tx',repeat('m',70000),'','{"a": 1}','a','b\\0','','\\0\\1','','\\xff','b''c','x,z,','é',point(1,2),point(3,4),5),
 (1,'b',0,0,0,0,0,0,0,0,0,0,-3.4e38,1e-300,0,0,0,-0.5,0,0,0,0,1901,'0000-00-00','00:00:00','-12:00:00.5','-00:00:00.000001','0000-00-00 00:00:00','2024-00-00','9999-12-31 23:59:59.999999','0000-00-00 00:00:00',null,'','','','','','','','','','','[]','','','','','','','','','é',null,null,null),
 (2,'B',1,1,1,1,1,1,1,1,1,1,1.1,123456789.125,0,0.0000000001,99999,0,0,null,511,1,0,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,'ab\\0\\0',null,null,null,null,null,'ü','y','é',null,null,null)"""


@pytest.fixture
def world(mariadb: MariaDbServer) -> Iterator[World]:
    found = World(mariadb)
    found.run(EVERY)
    yield found
    found.run(f"DROP DATABASE {found.name}")


def insert(world: World) -> None:
    world.run("SET sql_mode = '', time_zone = '+00:00', NAMES utf8mb4", ROWS)


def test_every_type_reads_the_same_from_the_binary_log_and_in_a_snapshot(world: World) -> None:
    with world.opened("every") as (source, position):
        insert(world)
        world.run("UPDATE every SET ti = 7 WHERE k = 'b'")
        changes = world.changes(source, position)
        assert [each.op for each in changes] == ["c", "c", "c", "u", "u"]  # the key is the same in upper case
        table = source.tables()[0]
        assert changes[0].table == table
        assert table.key == ("k", "id")
        rows, there = fold(changes, {})["every"], rows_of(source, "every")
        for key, row in there.items():
            assert [(name, value, type(value)) for name, value in rows[key].items()] == [
                (name, value, type(value)) for name, value in row.items()
            ]
        assert rows.keys() == there.keys()


def test_values_are_those_that_json_can_hold(world: World) -> None:
    insert(world)
    row = rows_of(world.source("every"), "every")["a", "18446744073709551615"]
    expected = {
        "ti": -128, "tu": 255, "mu": 16777215, "i": 42, "bi": -9223372036854775808, "bu": "18446744073709551615", "d": 0.1, "f": 0.10000000149011612,
        "de": "-12345678901234567890.0123456789", "dn": "-7", "dz": "1.50", "b1": True, "b9": 257, "b64": "18446744073709551615", "y": 2024,
        "da": "2024-02-29", "t": "-838:59:59", "t3": "-00:00:00.010", "t6": "12:34:56.000007", "dt": "2024-02-29T12:00:01",
        "dt1": "2024-02-29T12:00:01.5", "ts": "2024-02-29T12:00:01Z", "ts5": "2001-02-03T04:05:06.00001Z", "l1": "€é", "sj": "日本",
        "js": '{"a": 1}', "bn": "YQAAAA==", "vb": "YgA=", "e": "b'c", "s": "x,z", "vg": -127, "inv": 5,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_columns_are_declared_with_types_of_spark(world: World) -> None:
    (table, _) = world.source("every").tables()
    types = {column.name: (column.native, column.type) for column in table.columns}
    expected = {
        "bu": ("bigint unsigned", "decimal(20,0)"), "tu": ("tinyint unsigned", "smallint"), "iu": ("int unsigned", "bigint"), "i": ("int unsigned", "bigint"),
        "de": ("decimal(30,10)", "decimal(30,10)"), "db": ("decimal(65,30)", "string"), "b1": ("bit(1)", "boolean"), "b9": ("bit(9)", "bigint"),
        "b64": ("bit(64)", "decimal(20,0)"), "y": ("year", "int"), "dt6": ("datetime(6)", "timestamp_ntz"), "ts": ("timestamp", "timestamp"), "t3": ("time(3)", "string"),
        "c": ("char(5)", "string"), "vc": ("varchar(300)", "string"), "js": ("longtext", "string"), "bn": ("binary(4)", "binary"),
        "e": ("enum('a','b''c','ü')", "string"), "s": ("set('x','y','z')", "string"), "p": ("geometry", "binary"),
    }  # fmt: skip
    assert {name: types[name] for name in expected} == expected


def test_dates_that_are_none_are_null_and_counted(world: World) -> None:
    with world.opened("every") as (source, position):
        insert(world)
        assert source.zero_dates == 0
        (row,) = (each.after for each in world.changes(source, position) if each.after and each.after["id"] == "1")
        assert {name for name in ("da", "dt", "dt1", "dt6", "ts") if row[name] is None} == {"da", "dt", "dt1", "ts"}
        assert source.zero_dates == 4
        rows_of(source, "every")
        assert source.zero_dates == 8
