"""The engine's process: loads the model, and answers the server at the other end of its socket.

Run as `python -m prolepsis.engine.process.host DESCRIPTOR`. It ends with the server, however that ends.
"""

import asyncio
import signal
import socket
import sys
from contextlib import suppress

from prolepsis.core.messages import Abort, ApplyPlan, OfferDraft, StopRun
from prolepsis.engine.client import EngineClient
from prolepsis.engine.process.channel import Channel, read_now, write_now
from prolepsis.engine.process.messages import (
    Answered,
    Ask,
    Close,
    Generate,
    Leave,
    Start,
    Started,
    StartFailed,
    Status,
)
from prolepsis.engine.process.recorder import Recorder
from prolepsis.engine.process.streams import ServedStreams, portable
from prolepsis.engine.start import start_engine
from prolepsis.telemetry.logs import configure_logs

STATUS_S = 0.25
"""Seconds between two statuses."""
ASKED = frozenset({"heads", "swap_head"})
"""Coroutines of an engine's client that a server may call."""


class Host:
    """Does what a server asks of one engine's client."""

    def __init__(self, channel: Channel, client: EngineClient) -> None:
        self._channel = channel
        self._client = client
        self._streams = ServedStreams(channel, client)
        self._answers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the server closes, or is gone; then end the engine and its requests."""
        await self._channel.open()
        reports = asyncio.create_task(self._report())
        with suppress(EOFError):
            while Close() not in (batch := await self._channel.receive()):
                for message in batch:
                    self._handle(message)
        reports.cancel()
        await self._client.close()
        await asyncio.gather(self._streams.wait(), *self._answers, return_exceptions=True)
        await self._channel.close()

    def _handle(self, message: object) -> None:
        match message:
            case Generate() | Leave() | Abort() | OfferDraft():
                self._streams.obey(message)
            case ApplyPlan() | StopRun():
                self._client.send(message)
            case Ask():
                answer = asyncio.create_task(self._answer(message))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)
            case _:
                raise AssertionError(f"{type(message).__name__} is not a message to an engine's process")

    async def _answer(self, ask: Ask) -> None:
        assert ask.method in ASKED, ask.method
        try:
            value = await getattr(self._client, ask.method)(*ask.arguments)
        except Exception as error:  # the server raises it where the question was asked
            self._channel.send(Answered(ask.number, None, portable(error)))
            return
        self._channel.send(Status.of(self._client))  # first: whoever asked finds the new facts
        self._channel.send(Answered(ask.number, value))

    async def _report(self) -> None:
        while True:
            self._channel.send(Status.of(self._client))
            await asyncio.sleep(STATUS_S)


def main(connection: socket.socket) -> None:
    """Load what the server asks for, and serve it."""
    [start] = read_now(connection)
    assert isinstance(start, Start)
    configure_logs(start.logs.level, as_json=start.logs.as_json)
    channel = Channel(connection)
    try:
        engine = start_engine(start.config, Recorder(channel.put), start.reserved)
    except Exception as error:  # the server raises it: it knows whom to tell
        write_now(connection, StartFailed(portable(error)))
        return
    from prolepsis.native.build import compile_seconds

    write_now(connection, Started(engine.client.info, engine.tokenizer, tuple(compile_seconds)))
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal and a service manager send them to the server, too
        signal.signal(number, signal.SIG_IGN)
    asyncio.run(Host(channel, engine.client).run())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it loads
    main(socket.socket(fileno=int(sys.argv[1])))
