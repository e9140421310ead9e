"""What a connection between a front end and a host asks of both sides."""

import asyncio
import shlex
import shutil
import ssl
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.adapters.ray.hosts import tls
from prolepsis.core.codec import ProtocolError
from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.errors import EngineDead
from prolepsis.core.events import Failed
from prolepsis.core.handshake import SharedKey, listening, shake_hands
from prolepsis.remote.channel import front_end_channel, host_channel
from prolepsis.remote.link import HostLink
from prolepsis.remote.messages import PROTOCOL, Status
from prolepsis.remote.network import MOST_STRANGERS, Address, connect
from tests.fake_client import INFO, FakeEngineClient
from tests.fakes import request
from tests.remote.replicas import replica, replica_of, until

SECRET = bytes(32)


async def test_a_host_reads_nothing_of_those_who_do_not_know_its_secret() -> None:
    one = replica()
    address = await one.address()
    with pytest.raises((EOFError, PermissionError, ConnectionError)):
        await connect(replace(address, secret=SECRET))
    assert one.host.num_front_ends == 0
    assert address.secret.hex() not in repr(address)
    await one.close()


async def test_the_oldest_connection_in_the_handshake_goes_for_a_new_one() -> None:
    one = replica()
    address = await one.address()
    waiting = [await asyncio.open_connection(address.machine, address.port) for _ in range(MOST_STRANGERS + 2)]
    async with asyncio.timeout(2.0):
        for reader, _ in waiting[:2]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
    link = await connect(address)
    assert link.health().alive
    assert not any(reader.at_eof() for reader, _ in waiting[3:])
    for _, writer in waiting:
        writer.close()
    await link.close()
    await one.close()


async def test_a_front_end_reads_nothing_of_one_that_does_not_know_the_secret() -> None:
    """Such as a process that has got the port of a replica that has ended."""
    ended = asyncio.Event()

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError, PermissionError, ProtocolError):
            await shake_hands(reader, writer, listening(SharedKey(SECRET), PROTOCOL, lambda _: b""))
        writer.close()
        ended.set()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    with pytest.raises((ProtocolError, PermissionError)):
        await connect(Address("it", "127.0.0.1", server.sockets[0].getsockname()[1], bytes(31) + b"1"))
    await ended.wait()
    server.close()


async def test_a_host_whose_engine_has_ended_is_none() -> None:
    one = replica_of(engine := FakeEngineClient(lambda source: []))
    engine.reported = EngineHealth(alive=False, ready=False, detail="out of memory")
    with pytest.raises(EngineDead, match="out of memory"):
        await connect(await one.address())
    await one.close()


async def test_a_silent_host_is_lost() -> None:
    """It keeps its connection and says nothing after its first status."""
    ended = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = host_channel((reader, writer))
        channel.send(Status(EngineHealth(alive=True, ready=True, detail=""), INFO, (), ()))
        await channel.open()
        with suppress(EOFError):
            while True:
                await channel.receive()
        await channel.close()
        ended.set()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    channel = front_end_channel((reader, writer))
    await channel.open()
    status, *_ = await channel.receive()
    assert isinstance(status, Status)
    link = HostLink(channel, status, lost_after_s=0.05, tick_s=0.01)
    link.attach()
    [event] = [event async for event in link.generate(request("a", [1]))]
    assert isinstance(event, Failed)
    assert isinstance(event.error, EngineDead)
    assert not link.health().alive
    await link.close()
    await ended.wait()
    server.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
async def test_where_ray_uses_tls_connections_do_with_its_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ray"
    command = [*shlex.split(made), "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    for name, value in {"CA_CERT": certificate, "SERVER_CERT": certificate, "SERVER_KEY": key}.items():
        monkeypatch.setenv(f"RAY_TLS_{name}", str(value))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    one = replica()
    address = await one.address()
    link = await connect(address, tls=tls(ssl.Purpose.SERVER_AUTH))
    assert link.info == one.info()
    with pytest.raises((EOFError, ConnectionError)):
        await connect(address)
    await one.close()
    await until(lambda: not link.health().alive)
    await link.close()
