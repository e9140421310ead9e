"""Writers: cheap models behind other OpenAI endpoints, which write whole texts that the target then checks.

What they write is not what the target would have written, so only the routes that say so ask them.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from prolepsis.control.web.feature import Feature
from prolepsis.core.bounded_replies import PLAIN, async_hooks
from prolepsis.core.config import WriterAddress, writers_by_name
from prolepsis.core.errors import InvalidParameter, UpstreamInvalid, UpstreamUnavailable
from prolepsis.core.files import read_text

DEVICE_MS = "x-device-ms"
"""Header of a whole answer: milliseconds of the device that it took, on all of its prompts and samples."""
CHAT_ROUTE = "/v1/chat/completions"
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
    usage: Mapping[str, Any]  # as the endpoint says it
    seconds: float  # of the writer's device where it says so, else of the call


class TextWriter:
    """One endpoint. Belongs to one event loop."""

    def __init__(self, name: str, address: WriterAddress, http: httpx2.AsyncClient) -> None:
        """Raises `ConfigError` for a key file that cannot be read."""
        self.name = name
        self._address = address
        self._http = http
        key = address.key_file and read_text(Path(address.key_file), "key file of a writer").strip()
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)

    async def write(self, body: Mapping[str, Any]) -> WriterAnswer:
        """Return what the endpoint answers to a body of /v1/chat/completions.

        Raises `UpstreamUnavailable` where it cannot be reached or has no room, `UpstreamInvalid` for other answers.
        """
        model = {"model": self._address.model} if self._address.model else {}
        async with self._places:
            begun = time.monotonic()
            try:
                reply = await self._http.post(
                    f"{self._address.url}{CHAT_ROUTE}", json={**body, **model}, headers=self._headers
                )
            except httpx2.HTTPError as error:
                raise UpstreamUnavailable(f"writer {self.name!r} does not answer ({type(error).__name__})") from error
            seconds = time.monotonic() - begun
        if reply.status_code != httpx2.codes.OK:
            kind = UpstreamUnavailable if reply.status_code in _BUSY else UpstreamInvalid
            raise kind(f"writer {self.name!r} answers with status {reply.status_code}")
        try:
            device_ms, shown = reply.headers.get(DEVICE_MS), reply.json()
            texts = [_text(choice) for choice in shown["choices"]]
            return WriterAnswer(
                texts, shown.get("usage") or {}, seconds if device_ms is None else float(device_ms) / 1e3
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UpstreamInvalid(f"writer {self.name!r} answers with what is no completion") from error


class Writers(Feature):
    """The writers of the setting, by name."""

    name = "writers"

    def __init__(self, given: Iterable[str]) -> None:
        timeout = httpx2.Timeout(CONNECT_S, read=REPLY_S)
        self._http = httpx2.AsyncClient(timeout=timeout, headers=PLAIN, event_hooks=async_hooks())
        found = writers_by_name(given).items()
        self._by_name = {name: TextWriter(name, address, self._http) for name, address in found}

    def named(self, name: str | None, allowed: Sequence[str] | None) -> TextWriter:
        """Return a writer that a request's rule allows, None: all; without a name the first one.

        Raises `InvalidParameter` where there is none.
        """
        names = [known for known in self._by_name if allowed is None or known in allowed]
        if not names or (name is not None and name not in names):
            message = f"writer is {name!r}; allowed here, by the setting writers and the policy's rule: "
            raise InvalidParameter(message + (", ".join(names) or "none"), param="writer")
        return self._by_name[name or names[0]]

    async def close(self) -> None:
        await self._http.aclose()


def _text(choice: Mapping[str, Any]) -> WriterText:
    """Return the text of a choice; raises `TypeError` where it is none."""
    text = choice["message"]["content"] or ""
    if not isinstance(text, str):
        raise TypeError("the text is no string")
    return WriterText(text, str(choice.get("finish_reason") or "stop"))
