"""A proxy before a database, which can be cut: connections break and new ones are refused, or nothing comes."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select
from threading import Event, Thread

from sqlalchemy import make_url

from tests.waiting import ended


class Proxy:
    """Carries bytes between clients and one address, in a thread a connection."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._flows = Event()
        self._flows.set()
        self._listener = self._listening(0)
        self.port: int = self._listener.getsockname()[1]

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()  # before the others: one that opens now sees it
        for one in tuple(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def hang(self) -> None:
        """Carry nothing any more, as a network that lost its way: connections stay, and nobody answers."""
        self._flows.clear()

    def mend(self) -> None:
        """Carry again, on the same port."""
        if self._listener.fileno() == -1:
            self._listener = self._listening(self.port)
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        self.cut()
        ended(*self._threads)

    def _listening(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        self._start(self._accept, listener)
        return listener

    def _start(self, work: Callable[[socket.socket], None], of: socket.socket) -> None:
        self._threads.append(Thread(target=work, args=(of,), daemon=True))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it is cut
            while True:
                self._start(self._carry, listener.accept()[0])

    def _carry(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            both = {client: server, server: client}
            self._open |= both.keys()
            try:
                while self._listener.fileno() != -1:
                    for source in select(both, [], [])[0]:
                        data = source.recv(65536)
                        if not data:
                            return
                        self._flows.wait()
                        both[source].sendall(data)
            finally:
                self._open -= both.keys()


@contextmanager
def proxied(setting: str) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy before the database of a `store` setting, and the setting that leads through it."""
    url = make_url(setting)
    proxy = Proxy(url.host or "127.0.0.1", url.port or 5432)
    try:
        through = url.set(host="127.0.0.1", port=proxy.port)
        yield proxy, through.render_as_string(hide_password=False)
    finally:
        proxy.close()
