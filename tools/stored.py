"""Store a small pipeline's log, views and checkpoint as tests/runtime/stored/FORMATS.tar.xz: later versions must open it.

Run it when a stored format has changed, and commit the new file beside the old ones.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.runtime.shop_file import append_clicks, load, write_shop  # noqa: E402

from millstream.kernel.state.store import FORMAT as STATE_FORMAT  # noqa: E402
from millstream.log.embedded.file import FORMAT as LOG_FORMAT  # noqa: E402
from millstream.runtime import checkpoint  # noqa: E402
from millstream.runtime.run import run  # noqa: E402
from millstream.spark.session import stop_session  # noqa: E402
from millstream.store.sqlite.file import FORMAT as VIEWS_FORMAT  # noqa: E402


def main() -> None:
    """Run the pipeline and pack what it leaves."""
    formats = f"log{LOG_FORMAT}-views{VIEWS_FORMAT}-checkpoint{checkpoint.FORMAT}-state{STATE_FORMAT}"
    target = ROOT / "tests" / "runtime" / "stored" / f"{formats}.tar.xz"
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shop = load(write_shop(folder))
        append_clicks(folder, 0, 100)
        run(shop, once=True, rate_limit=60)
        stop_session()
        (folder / "shop.py").unlink()
        with tarfile.open(target, "w:xz") as stored:
            for path in sorted(folder.iterdir()):
                stored.add(path, path.name, filter=_anonymous)
    print(f"wrote {target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


def _anonymous(found: tarfile.TarInfo) -> tarfile.TarInfo:
    found.uid = found.gid = 0
    found.uname = found.gname = ""
    return found


if __name__ == "__main__":
    main()
