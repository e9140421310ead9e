"""Servers of uvicorn in threads of this process."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn

from tests.waiting import ended, until, wait_for


class _Server(uvicorn.Server):
    """Stops at once, as hundreds of tests wait for that: uvicorn looks ten times a second, three times over."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110  # uvicorn's own flag
            await asyncio.sleep(0.005)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        await until(lambda: not state.connections and not state.tasks)
        await self.lifespan.shutdown()


@contextmanager
def running(config: uvicorn.Config, listener: socket.socket) -> Iterator[asyncio.AbstractEventLoop]:
    """Serve what comes to `listener` while the block runs, and close it; yield the server's event loop."""
    loops: list[asyncio.AbstractEventLoop] = []
    server = _Server(config)

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
