"""The engine's end of a queue of Redis from which propose servers take its rounds, and what both ends know of it.

   STREAM         entries of engines: frames of Open and Extend for whole sequences, then of a DraftCall
   STREAM:terms   `ProposeLimits`, while a server is there
   STREAM:ENGINE  the frames of Drafts for one engine: a list, which expires

An entry says all, so any server can take it. None is acknowledged: what is lost with its server is late, as is what has
waited for `SILENT_S`. Entries and drafts are sealed, so neither Redis nor those who read it see tokens.
"""

import asyncio
import socket
from base64 import urlsafe_b64encode
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from secrets import token_bytes
from threading import Thread
from typing import Any
from urllib.parse import quote

from cryptography.fernet import Fernet

from prolepsis.core.codec import HEADER_BYTES, read_frame
from prolepsis.core.config import EngineConfig
from prolepsis.core.handshake import SharedKey
from prolepsis.core.network import QUEUE_ADDRESS
from prolepsis.engine.drafting.remote import messages
from prolepsis.engine.drafting.remote.link import Connection, ConnectionLost, shared_key
from prolepsis.engine.drafting.remote.messages import FROM_ENGINE, DraftCall, Extend, Forget, Open


@dataclass(frozen=True, slots=True)
class Queue:
    """A stream of Redis for engines and servers of one key and one vocabulary."""

    url: str = field(repr=False)  # it may have a password
    stream: str  # names key and vocabulary: those with others do not meet here
    key: SharedKey

    @classmethod
    def of(cls, config: EngineConfig, vocabulary: bytes) -> "Queue | None":
        """Return the configured one, None where the address is none of a queue; raises as `shared_key` does."""
        terms = config.remote_proposer
        if terms is None or (place := QUEUE_ADDRESS.fullmatch(terms.address or "")) is None:
            return None
        (at, *_, stream), key = place.groups(), shared_key(config)
        url = f"redis:{at}" if terms.ca is None else f"rediss:{at}?ssl_ca_certs={quote(str(terms.ca))}"
        return cls(url, f"{stream}:{key.digest(messages.PROTOCOL, vocabulary).hex()[:32]}", key)

    def client(self) -> Any:
        """Return an asynchronous client of Redis; it tries again for some seconds before it raises."""
        from redis.asyncio import Redis

        return Redis.from_url(self.url)

    def seal(self, label: bytes) -> Fernet:
        """Return what seals and opens that which `label` names."""
        return Fernet(urlsafe_b64encode(self.key.digest("queue", self.stream.encode() + label)))

    def connect(self) -> Connection:
        """Return a connection whose other end a thread carries to the queue; raises what goes wrong there."""
        joined: Future[Connection] = Future()
        Thread(target=asyncio.run, args=(self._carry(joined),), name="prolepsis-queue", daemon=True).start()
        return joined.result()

    async def _carry(self, joined: "Future[Connection]") -> None:
        try:
            async with self.client() as redis:
                terms = await redis.get(f"{self.stream}:terms")
                if terms is None:
                    raise ConnectionLost("no propose server with this key and vocabulary is at the queue")
                limits, engine = messages.TERMS.decode(terms), token_bytes(16)
                here, there = socket.socketpair()
                reader, writer = await asyncio.open_connection(sock=there)
                joined.set_result(Connection(here, limits))
                with closing(writer):
                    await asyncio.gather(self._send(engine, reader, redis), self._take(engine, writer, redis))
        except Exception as error:  # contained: the engine finds its connection closed, and the reason as it connects
            if not joined.done():
                joined.set_exception(error)

    async def _send(self, engine: bytes, reader: asyncio.StreamReader, redis: Any) -> None:
        sequences: dict[int, tuple[Open, Extend]] = {}
        while True:
            match FROM_ENGINE.decode(await read_frame(reader, messages.MOST_FROM_ENGINE)):
                case Open(number) as opened:
                    sequences[number] = opened, Extend(number, ())
                case Extend(number, tokens):
                    opened, earlier = sequences[number]
                    sequences[number] = opened, Extend(number, earlier.tokens + tokens)
                case Forget(number):
                    del sequences[number]
                case DraftCall(wishes=wishes) as call:
                    whole = [message for number, _ in wishes for message in sequences[number]]
                    frames = self.seal(engine).encrypt(b"".join(map(FROM_ENGINE.encode, [*whole, call])))
                    await redis.xadd(self.stream, {"engine": engine, "frames": frames}, maxlen=256)  # about

    async def _take(self, engine: bytes, writer: asyncio.StreamWriter, redis: Any) -> None:
        """Pass on what is newer than the last: of several servers, one may answer to a round that is over."""
        last = 0
        while not writer.is_closing():
            if (popped := await redis.blpop([f"{self.stream}:{engine.hex()}"], timeout=1)) is not None:
                frame = self.seal(b"drafts" + engine).decrypt(popped[1])
                if (number := messages.FROM_SERVER.decode(frame[HEADER_BYTES:]).round) > last:
                    last = number
                    writer.write(frame)
