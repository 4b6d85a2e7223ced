"""Install what the tests need beyond Python packages: strace from Debian, and the jars of Kafka and of Spark's connector.

As root on Debian this is automatic. Elsewhere it says what is missing; the tests then skip what they cannot do, unless
CI=true, where a missing part is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from millstream.errors import MachineError
from millstream.spark.jars import kafka_broker_classpath, spark_kafka_jars

PACKAGES = {"strace": "strace"}


def main() -> int:
    """Install; give 1 if something is missing where it must not."""
    missing = [package for command, package in PACKAGES.items() if shutil.which(command) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *missing]):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        missing = [package for command, package in PACKAGES.items() if shutil.which(command) is None]
    problems = [f"{package} is not installed (apt-get install {package})" for package in missing]
    try:
        kafka_broker_classpath()
        spark_kafka_jars()
    except MachineError as error:
        problems.append(str(error))
    for problem in problems:
        print(f"missing for the tests: {problem}", file=sys.stderr)
    return 1 if problems and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
