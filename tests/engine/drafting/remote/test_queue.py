"""The engine's end of a queue: where it is, and what it leaves there."""

import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import InvalidToken

from prolepsis.core.config import EngineConfig, RemoteProposerTerms
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import Extra
from prolepsis.core.handshake import SharedKey
from prolepsis.engine.drafting.remote import link
from prolepsis.engine.drafting.remote.link import ConnectionLost
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    TERMS,
    DraftCall,
    Extend,
    Forget,
    FromEngine,
    Open,
    ProposeLimits,
)
from prolepsis.engine.drafting.remote.queue import Queue
from tests.remote.propose.queues import needs_client, needs_redis, redis_server
from tests.waiting import wait_for

ADDRESS = "redis://:secret@10.0.0.7:6379/2?stream=drafts"


def settings(folder: Path, key: str = "k", **terms: Any) -> EngineConfig:
    (folder / "key").write_text(32 * key)
    return EngineConfig(remote_proposer=RemoteProposerTerms(key=folder / "key", **terms))


@needs_client
def test_an_address_is_a_redis_and_a_stream_for_one_key_and_vocabulary(tmp_path: Path) -> None:
    plain = settings(tmp_path, address=ADDRESS)
    queues = [Queue.of(plain, b"v"), Queue.of(plain, b"w"), Queue.of(settings(tmp_path, "x", address=ADDRESS), b"v")]
    assert {queue.url for queue in queues if queue is not None} == {"redis://:secret@10.0.0.7:6379/2"}
    assert len({queue.stream for queue in queues if queue is not None}) == 3
    assert "secret" not in repr(queues)
    with_tls = Queue.of(settings(tmp_path, address=ADDRESS, ca=tmp_path / "a b.pem"), b"v")
    assert with_tls is not None
    assert with_tls.client().connection_pool.connection_kwargs["ssl_ca_certs"] == str(tmp_path / "a b.pem")
    assert Queue.of(settings(tmp_path, address="10.0.0.7:8600"), b"v") is None


def test_without_the_client_it_is_refused_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "QUEUE", Extra("queue", "redis", "is_not_here"))
    with pytest.raises(ConfigError, match=r"needs redis, which is not installed: pip install 'prolepsis\[queue\]'"):
        link.shared_key(settings(tmp_path, address=ADDRESS))
    assert link.shared_key(settings(tmp_path, address="10.0.0.7:8600"))


@needs_client
@needs_redis
def test_without_a_server_or_redis_there_is_no_connection() -> None:
    with redis_server() as redis:
        with pytest.raises(ConnectionLost, match="no propose server with this key and vocabulary"):
            redis.queue.connect()
        redis.kill()
        with pytest.raises(Exception, match=r"Connect call failed(?!.*secret)"):
            redis.queue.connect()


@needs_client
@needs_redis
def test_entries_are_whole_sealed_and_not_too_many() -> None:
    from redis import Redis

    opened, calls = Open(1, b"s" * 16, 2, 0.0, 1.0, 0, 0), [DraftCall(number, ((1, 4),)) for number in range(1, 601)]
    with redis_server() as redis, Redis.from_url(redis.queue.url) as client:
        queue = redis.queue
        client.set(f"{queue.stream}:terms", TERMS.encode_body(ProposeLimits(most_sequences=7)))
        connection = queue.connect()
        assert connection.terms == ProposeLimits(most_sequences=7)
        said: list[FromEngine] = [opened, Extend(1, (70_000,)), *calls[:-1], Extend(1, (70_001,)), calls[-1], Forget(1)]
        connection.send(b"".join(map(FROM_ENGINE.encode, said)))
        wait_for(lambda: client.exists(queue.stream) and client.xinfo_stream(queue.stream)["entries-added"] == 600)
        assert 256 <= client.xlen(queue.stream) < 400
        [(_, entry)] = client.xrevrange(queue.stream, count=1)
        connection.close()
    whole: list[FromEngine] = [opened, Extend(1, (70_000, 70_001)), calls[-1]]
    assert queue.seal(entry[b"engine"]).decrypt(entry[b"frames"]) == b"".join(map(FROM_ENGINE.encode, whole))
    with pytest.raises(InvalidToken):
        Queue(queue.url, queue.stream, SharedKey(b"x" * 32)).seal(entry[b"engine"]).decrypt(entry[b"frames"])
    wait_for(lambda: all(thread.name != "prolepsis-queue" for thread in threading.enumerate()))
