"""Servers of uvicorn in threads of this process."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn

from tests.waiting import ended, wait_for


@contextmanager
def running(server: uvicorn.Server, listener: socket.socket) -> Iterator[asyncio.AbstractEventLoop]:
    """Serve what comes to `listener` while the block runs, and close it; yield the server's event loop."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = Thread(target=lambda: asyncio.run(serve()), name="server", daemon=True)
    with listener:
        thread.start()
        wait_for(lambda: server.started or not thread.is_alive())
        assert server.started, "the server did not start"
        try:
            yield loops[0]
        finally:
            server.should_exit = True
            ended(thread)
