"""The program that Spark starts in place of Python. It hands the call to :mod:`millstream.spark.internals.preload` and waits for its end.

Usage: ``python_shim.py SOCKET -m MODULE …``. If no process listens at the socket, or the process refuses the call, the call becomes
an ordinary start of Python. This file is run by its path and without ``site``, and imports little: it takes some twenty milliseconds.
"""

import marshal
import os
import signal
import socket
import sys


def main(address: str, arguments: list[str]) -> int:
    """Run the call and return its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until we know whom to pass it on to
        child = _ask(server, address, arguments)
        if child:
            signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if not child:
            os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606
        return (server.recv(1) or b"\1")[0]


def _ask(server: socket.socket, address: str, arguments: list[str]) -> int:
    """Send arguments, environment, input and outputs; return the id of the process that runs the call, or 0 if none does."""
    call = marshal.dumps((arguments, dict(os.environ)))
    server.settimeout(30)
    try:
        server.connect(address)
        socket.send_fds(server, [len(call).to_bytes(4)], [0, 1, 2])
        server.sendall(call)
        return int.from_bytes(server.recv(4))
    except OSError:
        return 0
    finally:
        server.settimeout(None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
