"""What a connection between a front door and a replica asks of both sides."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import GenericAlias
from typing import Literal

import pytest

from prolepsis import __version__
from prolepsis.core.errors import ReplicaLost
from prolepsis.core.events import Failed
from prolepsis.core.exact_group import ExactGroup
from prolepsis.engine.event_stream import EventStream
from prolepsis.engine.process.channel import Channel, Streams
from prolepsis.ray.connection import connect, listen, new_secret
from prolepsis.ray.link import ReplicaLink
from prolepsis.ray.messages import VERSION, Address, Hello, shape_of
from tests.fakes import request
from tests.ray.replicas import replica

GROUP = ExactGroup(weights="w", tokenizer="t", forward="f", exactness="strict", machine="m")


async def test_a_replica_reads_nothing_of_those_who_do_not_know_its_secret() -> None:
    one = replica()
    address = (await one.report()).address
    with pytest.raises((EOFError, PermissionError, ConnectionError)):
        await connect(replace(address, secret=new_secret()))
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(bytes(64))
    assert len(await reader.read()) == 64, "its number and its proof, no message"
    writer.close()
    assert address.secret.hex() not in repr(address)
    await one.close()


async def test_a_front_door_reads_nothing_of_one_that_does_not_know_the_secret() -> None:
    """Such as a process that has got the port of a replica that has ended."""
    ended = asyncio.Event()

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(64) + b"a message")
        await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    with pytest.raises(PermissionError, match="the replica does not know the secret"):
        await connect(Address("127.0.0.1", server.sockets[0].getsockname()[1], new_secret()))
    await ended.wait()
    server.close()


async def test_another_version_is_refused_by_name() -> None:
    """And before a message is read, which may mean something else there."""
    one = replica()
    address = (await one.report()).address
    refusal = f"the replica is prolepsis {VERSION}, the door 0.0.1; allowed: one"
    with pytest.raises(PermissionError, match=re.escape(refusal)):
        await connect(address, version="0.0.1")
    await one.close()


def test_messages_of_other_fields_are_another_version() -> None:
    def shape(**fields: object) -> str:
        inner = type("Inner", (), {"__module__": "prolepsis.inner", "__annotations__": fields})
        inners = {"inners": GenericAlias(list, inner)}
        return shape_of([type("Outer", (), {"__module__": "prolepsis.outer", "__annotations__": inners})])

    assert shape(a=int, b=int) == shape(a=int, b=int)
    others = [shape(), shape(b=int, a=int), shape(a=int, c=int), shape(a=int, b=str), shape(a=int, b=Literal["a", "b"])]
    assert len({shape(a=int, b=int), shape(a=int, b=Literal["a"]), *others}) == 7
    assert re.fullmatch(re.escape(__version__) + r" \(messages [0-9a-f]{8}\)", VERSION)


def test_the_version_is_the_same_in_every_process() -> None:
    """Else doors and replicas of one build would refuse each other."""
    command = [sys.executable, "-c", "from prolepsis.ray.messages import VERSION; print(VERSION)"]
    printed = subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert printed.stdout == f"{VERSION}\n"


async def test_a_silent_replica_is_lost() -> None:
    ended = asyncio.Event()

    async def greet(streams: Streams) -> None:
        """Say hello, and nothing more until the other side is gone."""
        channel = Channel(streams)
        channel.send(Hello(GROUP, 100))
        await channel.open()
        with suppress(EOFError):
            while True:
                await channel.receive()
        await channel.close()
        ended.set()

    server, address = await listen("127.0.0.1", new_secret(), greet)
    channel = Channel(await connect(address))
    await channel.open()
    [hello] = await channel.receive()
    assert isinstance(hello, Hello)
    link = ReplicaLink(hello, channel, tick_s=0.001)
    stream = EventStream(request("a", [1]), 0.0)
    link.ask(stream.request, stream)
    assert link.load == 1
    running = asyncio.create_task(link.run())
    event = await stream.events.get()
    assert not link.takes_requests
    assert await running == "it has been silent"
    assert isinstance(event, Failed)
    assert isinstance(event.error, ReplicaLost)
    assert (event.error.group, event.error.max_model_len) == (GROUP, 100)
    assert link.load == 0
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
    address = (await one.report()).address
    link = await ReplicaLink.to(address)
    assert link.hello == one.hello()
    running = asyncio.create_task(link.run())
    monkeypatch.delenv("RAY_USE_TLS")
    with pytest.raises((EOFError, ConnectionError)):
        await connect(address)
    await one.close()
    assert await running == "its connection ended"
