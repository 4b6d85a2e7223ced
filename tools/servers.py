"""Install what the tests need beyond Python packages: strace, PostgreSQL, MariaDB and Redis from Debian, the jars of Kafka and of Spark's connector.

As root on Debian this is automatic. Elsewhere it says what is missing; the tests then skip what they cannot do, unless
CI=true, where a missing part is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from millstream.errors import MachineError
from millstream.spark.jars import kafka_broker_classpath, spark_kafka_jars
from millstream.testing.mariadb import find_mariadb
from millstream.testing.postgres import find_postgres

# Debian makes and starts a cluster with the package, unless this says otherwise; the tests start servers of their own.
_CLUSTERS = Path("/etc/postgresql-common/createcluster.conf")


def main() -> int:
    """Install; give 1 if something is missing where it must not."""
    missing = _missing()
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        if "postgresql" in missing and not _CLUSTERS.exists():
            _CLUSTERS.parent.mkdir(parents=True, exist_ok=True)
            _CLUSTERS.write_text("create_main_cluster = false\n")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        # One by one: a package that this release does not have must not keep the others out.
        installs = [["apt-get", "install", "-y", "-qq", package] for package in missing]
        for command in (["apt-get", "update", "-qq"], *installs):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        missing = _missing()
    problems = [f"{package} is not installed (apt-get install {package})" for package in missing]
    try:
        kafka_broker_classpath()
        spark_kafka_jars()
    except MachineError as error:
        problems.append(str(error))
    for problem in problems:
        print(f"missing for the tests: {problem}", file=sys.stderr)
    return 1 if problems and os.environ.get("CI") == "true" else 0


def _missing() -> list[str]:
    """The Debian packages that are not there."""
    missing = [name for name in ("strace", "redis-server") if shutil.which(name) is None]
    # Of MariaDB the programs alone: the other package starts a service with data in /var/lib/mysql.
    for find, package in ((find_postgres, "postgresql"), (find_mariadb, "mariadb-server-core")):
        try:
            find()
        except MachineError:
            missing.append(package)
    return missing


if __name__ == "__main__":
    sys.exit(main())
