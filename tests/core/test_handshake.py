"""Both sides of a handshake: who gets in, who is refused, and what a stranger learns."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prolepsis.core.codec import ProtocolError, read_frame
from prolepsis.core.errors import ConfigError
from prolepsis.core.handshake import (
    MOST_BYTES,
    SharedKey,
    Steps,
    connecting,
    listening,
    shake_hands,
    shake_hands_now,
)

KEY = SharedKey(b"k" * 32)


def welcome(facts: bytes) -> bytes:
    return b"welcome, " + facts


def run(one: Steps, other: Steps, change: Callable[[bytes], bytes] = lambda frame: frame) -> tuple[bytes, bytes]:
    """Do both sides of a handshake, with `change` between them; return what each learned of the other."""
    next(other)
    frame = next(one)
    while True:
        try:
            frame = other.send(change(frame)[4:])
        except StopIteration as end:
            last, learned = end.value
            break
        frame = one.send(change(frame)[4:])
    with pytest.raises(StopIteration) as ended:
        one.send(change(last)[4:])
    return ended.value.value[1], learned


def test_each_side_learns_the_facts_of_the_other() -> None:
    assert run(connecting(KEY, "test 1", b"me"), listening(KEY, "test 1", welcome)) == (b"welcome, me", b"me")


def test_another_key_is_refused_without_a_proof() -> None:
    frames: list[bytes] = []

    def keep(frame: bytes) -> bytes:
        frames.append(frame)
        return frame

    with pytest.raises(ProtocolError, match="another key"):
        run(connecting(SharedKey(b"x" * 32), "test 1"), listening(KEY, "test 1", welcome), keep)
    assert len(frames) == 3, "hello, challenge, proof: the listening side has proven nothing"


def test_another_protocol_is_refused_by_name() -> None:
    with pytest.raises(ProtocolError, match="speaks 'test 2'; allowed: 'test 1'"):
        run(connecting(KEY, "test 2"), listening(KEY, "test 1", welcome))


@pytest.mark.parametrize(("place", "what"), [(b"me", b"us"), (b"welcome", b"weltome")])
def test_facts_that_were_changed_on_their_way_prove_nothing(place: bytes, what: bytes) -> None:
    with pytest.raises(ProtocolError, match="another key"):
        run(
            connecting(KEY, "test 1", b"me"),
            listening(KEY, "test 1", welcome),
            lambda frame: frame.replace(b"\xc4\x02" + place, b"\xc4\x02" + what).replace(place + b", ", what + b", "),
        )


def test_a_proof_holds_for_one_handshake() -> None:
    sent: list[bytes] = []

    def keep(frame: bytes) -> bytes:
        sent.append(frame)
        return frame

    run(connecting(KEY, "test 1"), listening(KEY, "test 1", welcome), keep)
    hello, _, proof, _ = sent
    again = listening(KEY, "test 1", welcome)
    next(again)
    again.send(hello[4:])
    with pytest.raises(ProtocolError, match="another key"):
        again.send(proof[4:])


def test_a_proof_cannot_be_turned_around() -> None:
    """A stranger who gets his own challenge answered by a second handshake has no proof for the first one."""
    asked, asking = listening(KEY, "test 1", welcome), listening(KEY, "test 1", welcome)
    next(asked), next(asking)
    hello = next(connecting(SharedKey(b"x" * 32), "test 1"))
    challenge = asked.send(hello[4:])
    with pytest.raises(ProtocolError, match="allowed here: Hello"):
        asking.send(challenge[4:])


@pytest.mark.parametrize("body", [b"", b"\xc0", bytes(64), b"GET / HTTP/1.1"])
def test_anything_else_is_refused(body: bytes) -> None:
    steps = listening(KEY, "test 1", welcome)
    next(steps)
    with pytest.raises(ProtocolError):
        steps.send(body)


async def serve(answer: Callable[[bytes], bytes], within_s: float = 5.0) -> tuple[asyncio.Server, int]:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await shake_hands(reader, writer, listening(KEY, "test 1", answer), within_s)
            writer.write(b"in")
        except (ProtocolError, TimeoutError):
            pass
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def test_over_streams() -> None:
    server, port = await serve(welcome)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await shake_hands(reader, writer, connecting(KEY, "test 1", b"me")) == b"welcome, me"
    assert await reader.read() == b"in"
    writer.close()
    server.close()


async def test_over_a_socket_and_the_reason_of_a_refusal() -> None:
    def refuse(facts: bytes) -> bytes:
        raise ProtocolError("full" if facts == b"me" else "?")

    def connect(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            shake_hands_now(connection, connecting(KEY, "test 1", b"me"))

    server, port = await serve(refuse)
    with pytest.raises(PermissionError, match="refused: full"):
        await asyncio.to_thread(connect, port)
    server.close()


async def test_a_stranger_has_little_time_and_few_bytes() -> None:
    server, port = await serve(welcome, within_s=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b"", "it was silent"
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((MOST_BYTES + 1).to_bytes(4))
    assert b"2049 bytes; allowed: 2048" in await read_frame(reader, MOST_BYTES)
    writer.close()
    server.close()


def test_a_silent_side_that_listens_is_given_up() -> None:
    one, other = socket.socketpair()
    with one, other:
        sender = threading.Thread(target=lambda: other.sendall(b"\0"))
        sender.start()
        with pytest.raises(TimeoutError):
            shake_hands_now(one, connecting(KEY, "test 1"), within_s=0.05)
        sender.join()


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    with pytest.raises(ConfigError, match="6 characters; allowed: at least 32"):
        SharedKey.read(file, "remote_proposer_key")
