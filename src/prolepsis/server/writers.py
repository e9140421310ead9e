"""Writers: cheap models behind other OpenAI endpoints, which write whole texts that the target then checks.

What they write is not what the target would have written, so only the routes that say so ask them.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.bounded_replies import PLAIN, async_hooks
from prolepsis.core.config import ServerConfig, WriterAddress, writers_by_name
from prolepsis.core.errors import ConfigError, InvalidParameter, UpstreamInvalid, UpstreamUnavailable
from prolepsis.core.files import read_text
from prolepsis.core.telemetry.declare import counter

DEVICE_MS = "x-device-ms"
"""Header of a whole answer: milliseconds of the device that it took, on all of its prompts and samples."""
CONNECT_S, REPLY_S = 5.0, 300.0
MOST_AT_ONCE = 16
"""Calls of one writer; others wait."""
_BUSY = (429, 500, 503, 504)


@dataclass(frozen=True, slots=True)
class WriterText:
    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class WriterAnswer:
    """What one call wrote, and what it cost."""

    texts: Sequence[WriterText]
    num_prompt_tokens: int  # by the writer's own tokenizer, 0 where it does not say
    num_output_tokens: int
    seconds: float  # of the writer's device where it says so, else of the call


class TextWriter:
    """One endpoint. Belongs to one event loop."""

    def __init__(self, name: str, address: WriterAddress, http: httpx2.AsyncClient) -> None:
        self.name = name
        self.model = address.model
        self._url = address.url
        self._headers = _headers(name, address)
        self._http = http
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    async def write(self, path: str, body: Mapping[str, Any]) -> WriterAnswer:
        """Return what the endpoint answers to a body of /v1/chat/completions or /v1/completions.

        Raises `UpstreamUnavailable` where it cannot be reached or has no room, `UpstreamInvalid` for other answers.
        """
        asked = {**body, **({"model": self.model} if self.model else {})}
        async with self._places:
            begun = time.monotonic()
            try:
                reply = await self._http.post(f"{self._url}{path}", json=asked, headers=self._headers)
            except httpx2.HTTPError as error:
                raise UpstreamUnavailable(f"writer {self.name!r} does not answer ({type(error).__name__})") from error
            seconds = time.monotonic() - begun
        if reply.status_code != httpx2.codes.OK:
            kind = UpstreamUnavailable if reply.status_code in _BUSY else UpstreamInvalid
            raise kind(f"writer {self.name!r} answers with status {reply.status_code}")
        try:
            device_ms, shown = reply.headers.get(DEVICE_MS), reply.json()
            usage = shown.get("usage") or {}
            texts = [_text(choice) for choice in shown["choices"]]
            tokens = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
            return WriterAnswer(texts, *tokens, seconds if device_ms is None else float(device_ms) / 1e3)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UpstreamInvalid(f"writer {self.name!r} answers with what is no completion") from error


class Writers(Feature):
    """The writers of the setting, by name."""

    name = "writers"

    def __init__(self, context: Context) -> None:
        """Raises `ConfigError` for a key file that cannot be read."""
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(CONNECT_S, read=REPLY_S), headers=PLAIN, event_hooks=async_hooks()
        )
        addresses = writers_by_name(context.config.writers)
        self.by_name = {name: TextWriter(name, address, self._http) for name, address in addresses.items()}
        self._calls = counter(context.registry, "writer_calls", "Calls of writers by how they ended", "outcome")

    def named(self, name: str | None, allowed: Sequence[str] | None) -> TextWriter:
        """Return a writer that a request's rule allows, None: all; without a name the first one.

        Raises `InvalidParameter` where there is none.
        """
        names = [known for known in self.by_name if allowed is None or known in allowed]
        if not names or (name is not None and name not in names):
            message = f"writer is {name!r}; allowed here, by the setting writers and the policy's rule: "
            raise InvalidParameter(message + (", ".join(names) or "none"), param="writer")
        return self.by_name[name or names[0]]

    async def write(self, writer: TextWriter, path: str, body: Mapping[str, Any]) -> WriterAnswer:
        """Return what a writer writes, as `TextWriter.write`, and count the call."""
        outcome = "failed"
        try:
            written = await writer.write(path, body)
            outcome = "written"
        finally:
            self._calls.labels(outcome).inc()
        return written

    async def close(self) -> None:
        await self._http.aclose()


def check_writers(config: ServerConfig) -> None:
    """Raise `ConfigError` for a key file of a writer that cannot be read."""
    for name, address in writers_by_name(config.writers).items():
        _headers(name, address)


def _headers(name: str, address: WriterAddress) -> Mapping[str, str]:
    if address.key_file is None:
        return {}
    if not (key := read_text(address.key_file, "key file of a writer").strip()).isascii():
        raise ConfigError(f"the key of writer {name!r} is no ASCII text", param="writers")
    return {"authorization": f"Bearer {key}"}


def _text(choice: Mapping[str, Any]) -> WriterText:
    """Return the text of a choice of either route; raises `TypeError` where it has none."""
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    if not isinstance(text, str | None):
        raise TypeError("the text is no string")
    return WriterText(text or "", str(choice.get("finish_reason") or "stop"))
