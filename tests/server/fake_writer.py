"""A writer on loopback: an OpenAI endpoint that writes what it is told."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.loopback import Reply, Request, serving

Say = Callable[[Mapping[str, Any]], Sequence[str]]


@dataclass
class FakeWriter:
    """What it was asked, by path and body, and how it answers."""

    say: Say
    url: str = ""
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    status: int = 200
    device_ms: float | None = 20.0
    raw: bytes | None = None
    """A body in place of an answer."""

    def answer(self, request: Request) -> Reply:
        body = json.loads(request.body)
        self.asked.append((request.path, body))
        self.keys.append(request.headers.get("authorization"))
        choices = [
            {"index": i, "finish_reason": "stop", "message": {"content": text}} for i, text in enumerate(self.say(body))
        ]
        usage = {"prompt_tokens": 3, "completion_tokens": 5 * len(choices)}
        content = json.dumps({"choices": choices, "usage": usage}).encode() if self.raw is None else self.raw
        headers = {} if self.device_ms is None else {"x-device-ms": str(self.device_ms)}
        return Reply(self.status, content, headers)


@contextmanager
def writing(*texts: str, say: Say | None = None) -> Iterator[FakeWriter]:
    """Serve a writer whose answers have these texts, or those that `say` returns for a body."""
    writer = FakeWriter(say or (lambda body: texts))
    with serving(writer.answer) as writer.url:
        yield writer
