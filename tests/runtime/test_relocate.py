"""What an earlier run left goes on elsewhere: moved by hand, or stored long ago by an earlier version."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from pyspark.sql import SparkSession

from millstream.kernel.state.store import FORMAT as STATE
from millstream.log.embedded.file import FORMAT as LOG
from millstream.runtime.checkpoint import FORMAT as CHECKPOINT
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.store.sqlite.file import FORMAT as VIEWS
from tests.runtime.shop_file import TEXT, append_clicks, load, write_shop

STORED = Path(__file__).parent / "stored"


def goes_on(folder: Path, spark: SparkSession, first: int) -> None:
    """The pipeline in a folder takes more records, from the state that it has."""
    (folder / "shop.py").write_text(TEXT.replace("{folder}", str(folder)))
    shop = load(folder / "shop.py")
    before = shop.views["by_user"].to_arrow()
    assert before.num_rows == 7
    append_clicks(folder, first, 50)
    done = run(shop, spark=spark, once=True)
    assert done.records == 50
    assert shop.views["by_user"].to_arrow() != before
    verified = verify(shop, spark=spark)
    assert verified.equal, verified
    assert verified.records == first + 50


def test_a_pipeline_that_was_moved_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    file = write_shop(tmp_path / "here")
    append_clicks(tmp_path / "here", 0, 100)
    run(load(file), spark=spark, once=True)
    shutil.move(tmp_path / "here", tmp_path / "there with a space")
    goes_on(tmp_path / "there with a space", spark, 100)


def test_the_formats_of_today_are_among_what_is_stored() -> None:
    """One that has changed needs a sample: tools/stored.py makes it."""
    assert (STORED / f"log{LOG}-views{VIEWS}-checkpoint{CHECKPOINT}-state{STATE}.tar.xz").exists()


def test_what_earlier_versions_stored_still_opens(spark: SparkSession, tmp_path: Path) -> None:
    """Each file is a log, views and a checkpoint after 100 clicks; tools/stored.py makes one for the formats of today."""
    files = sorted(STORED.glob("*.tar.xz"))
    assert files
    for file in files:
        folder = tmp_path / file.name.partition(".")[0]
        with tarfile.open(file) as stored:
            stored.extractall(folder, filter="data")
        goes_on(folder, spark, 100)


def test_notes_of_a_place_are_read_and_written_alike_in_every_locale(tmp_path: Path) -> None:
    noted = tmp_path / "café" / "state/0/_metadata/v2/0"
    noted.parent.mkdir(parents=True)
    noted.write_bytes(b'"file:/old/state/0/_stateSchema/x"')
    code = "import pathlib, sys; from millstream.runtime.relocate import settle; settle(pathlib.Path(sys.argv[1]))"
    strict = ["-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    subprocess.run([sys.executable, *strict, "-c", code, str(tmp_path / "café")], check=True)
    assert noted.read_bytes() == f'"file:{tmp_path}/café/state/0/_stateSchema/x"'.encode()
