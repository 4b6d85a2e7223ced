"""A TCP proxy that can lose a connection at a chosen moment: before a message goes through, or after it has been answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards one port on loopback; what clients send is counted, chunk by chunk, from :meth:`cut` on."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._left, self._answered, self._said = 0, False, b""
        self._open = set[socket.socket]()
        self.cuts = 0

    def cut_all(self) -> int:
        """Lose all connections that there are, now; how many."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            return len(self._open)

    def cut(self, chunk: int, *, answered: bool, said: bytes = b"") -> None:
        """Lose the connection at that chunk, counted from 1: before it is sent on, or when the server has answered it.

        With ``said`` only chunks count that hold it.
        """
        with self._lock:
            self._left, self._answered, self._said = chunk, answered, said

    def uncut(self) -> None:
        """Lose no connection."""
        self.cut(0, answered=False)

    def serve(self) -> None:
        """Accept clients until the listener is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        with self._lock:
            self._open.add(client)
        mute = threading.Event()
        back = threading.Thread(target=self._back, args=(server, client, mute), daemon=True)
        back.start()
        with client, server:
            while data := _receive(client):
                if self._due(data):
                    if self._answered:
                        mute.set()  # from here on the client hears nothing
                        with suppress(OSError):
                            server.sendall(data)
                        back.join(5)  # until the server has said something
                    self.cuts += 1
                    break
                try:
                    server.sendall(data)
                except OSError:
                    break
            with self._lock:
                self._open.discard(client)
            for each in (client, server):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket, mute: threading.Event) -> None:
        while data := _receive(server):
            if mute.is_set():
                return
            try:
                client.sendall(data)
            except OSError:
                return
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _due(self, data: bytes) -> bool:
        with self._lock:
            if self._left and self._said in data:
                self._left -= 1
                return self._left == 0
            return False


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


@contextmanager
def proxied(target: int) -> Iterator[Proxy]:
    """A proxy of a port for as long as the block lasts."""
    proxy = Proxy(target)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join(10)
