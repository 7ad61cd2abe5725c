"""A wire that counts: it passes TCP connections on to a port of this machine, byte for byte.

Rule: what it counts is what the kernel hands over, encrypted and framed by the programs at both
ends; none of their own counters takes part.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PART_BYTES = 1 << 16


class Tap:
    """Counts what goes to the port (`there`) and what comes back."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self.upstream = 0
        self.there = 0
        self.back = 0
        self.connections = 0
        self._begin(self._accept)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.upstream))
                self.connections += 1
                self._sockets += [near, far]
                self._begin(self._pass_on, near, far, "there")
                self._begin(self._pass_on, far, near, "back")

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError):
            while part := source.recv(PART_BYTES):
                setattr(self, way, getattr(self, way) + len(part))
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End all connections."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10.0)
        for one in self._sockets:
            one.close()


@contextmanager
def tap() -> Iterator[Tap]:
    """A tap on a free port of the loopback; set `upstream` before anybody dials it."""
    made = Tap()
    try:
        yield made
    finally:
        made.close()
