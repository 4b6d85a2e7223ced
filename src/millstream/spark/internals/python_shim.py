"""What Spark starts in place of Python: it hands the call to the process of :mod:`millstream.spark.internals.preload` and waits for the end.

``python_shim.py SOCKET -m MODULE …``. If nobody listens there, or that is not a call for it, the call becomes an ordinary start of
Python. This file is run by its path and without ``site``, and imports little: it takes some twenty milliseconds.
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
    """Send arguments, environment, input and outputs; return the number of the process that has taken them, or 0."""
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
