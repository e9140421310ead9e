"""Servers whose store is kept, and files of lines."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import openai
import pytest
from openai.types import Batch
from prometheus_client import CollectorRegistry

from prolepsis.control.store.store import Store, open_store
from prolepsis.core.config import ServerConfig
from prolepsis.server.front.keys import Keys
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.waiting import wait_for

ENDED = ("completed", "failed", "expired", "cancelled")


def chat_line(custom_id: str, text: str = "Hi", **changes: object) -> dict[str, Any]:
    """Return a line; `changes` are of its body."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 40, **changes}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(*lines: object) -> bytes:
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()


def made(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/chat/completions", **more: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    """Wait for a batch to end."""
    found = batch

    def has_ended() -> bool:
        nonlocal found
        found = client.batches.retrieve(batch.id)
        return found.status in ENDED

    wait_for(has_ended)
    return found


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


Serve = Callable[..., Served]


@pytest.fixture
def serve(sqlite: str) -> Iterator[Serve]:
    """Start servers that share a store."""
    with serving(sqlite) as start:
        yield start


@contextmanager
def serving(setting: str) -> Iterator[Serve]:
    """Give what starts servers of one store, until the block ends."""
    with ExitStack() as stack:

        def start(
            engine: FakeEngine | None = None,
            keys: Keys | None = None,
            *,
            output: Any = (),
            rules: Any = None,
            **changes: Any,
        ) -> Served:
            """`output`: output policies; `rules`: a policy file; `changes`: settings."""
            store: Store = open_store(setting, CollectorRegistry())
            stack.callback(store.close)
            config = ServerConfig(store=setting, **{"max_body_bytes": 65536, "limits": {"start_drafts": 0}, **changes})
            parts = {"store": store, "keys": keys, "output": output, "policy": rules}
            return stack.enter_context(served(engine or FakeEngine(), config, **parts))

        yield start
