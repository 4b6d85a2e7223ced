"""Flink in a process of its own: run by the Python that has PyFlink, which has nothing of ours, so this file stands alone.

One small cluster stays up, and jobs go to it one after the other, so that a job finds it warm. A request is a line of JSON on the
standard input: ``settings`` and ``statements``, the last of which is waited for. So is an answer: ``seconds``, or ``error`` and
whether the job had begun.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def cluster(settings: dict[str, str], slots: int) -> tuple[Any, dict[str, str]]:
    """Start a cluster inside the gateway's JVM, and give it, and the settings by which jobs find it."""
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    configuration = jvm.org.apache.flink.configuration.Configuration()
    for name, value in settings.items():
        configuration.setString(name, value)
    builder = jvm.org.apache.flink.runtime.minicluster.MiniClusterConfiguration.Builder()
    wanted = builder.setConfiguration(configuration).setNumTaskManagers(1).setNumSlotsPerTaskManager(slots)
    started = jvm.org.apache.flink.runtime.minicluster.MiniCluster(wanted.build())
    started.start()
    address = started.getRestAddress().get()
    return started, {
        "execution.target": "remote",
        "rest.address": address.getHost(),
        "rest.port": str(address.getPort()),
        "rest.bind-port": str(address.getPort()),
    }


def run(started: Any, settings: dict[str, str], statements: list[str]) -> dict[str, Any]:
    """Run statements in a new session, and give the seconds of the last one, from its start to the end of its job.

    The end is told by the cluster itself: a client asks for it ever less often, at last every 2 s, and hears of it that late.
    """
    from pyflink.table import EnvironmentSettings, TableEnvironment

    session: Any = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in settings.items():
        session.get_config().set(name, value)
    job = None
    try:
        for statement in statements[:-1]:
            session.execute_sql(statement)
        began = time.perf_counter()
        job = session.execute_sql(statements[-1])
        started.requestJobResult(job.get_job_client()._j_job_client.getJobID()).get()
        seconds = time.perf_counter() - began
        job.wait()  # says so if it failed
        return {"seconds": seconds}
    except Exception as error:  # whatever it is, whoever asked is told
        return {"error": str(error), "begun": job is not None}


def main() -> None:
    """Answer requests until the input ends. What the JVM prints goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    started, where = cluster(first["settings"], first["slots"])
    print(json.dumps({"seconds": 0.0}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = run(started, {**request["settings"], **where}, request["statements"])
        print(json.dumps(answer), file=answers, flush=True)
    from pyflink.java_gateway import get_gateway

    get_gateway().shutdown()


if __name__ == "__main__":
    main()
