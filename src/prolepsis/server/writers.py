"""Writers: cheap models behind other OpenAI endpoints, which write whole texts for the target to check."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from prolepsis.control.web.feature import Feature
from prolepsis.core.bounded_replies import PLAIN, async_hooks
from prolepsis.core.config import writers_by_name
from prolepsis.core.errors import InvalidParameter, UpstreamInvalid, UpstreamUnavailable
from prolepsis.core.files import read_text

DEVICE_MS = "x-device-ms"  # header of a whole answer: milliseconds of the device that it took
CHAT_ROUTE = "/v1/chat/completions"
MOST_AT_ONCE = 16  # calls of one writer; others wait


class WriterText(NamedTuple):
    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterTexts:
    """What one call wrote, and what it cost."""

    writer: str
    texts: Sequence[WriterText]
    usage: Mapping[str, Any]  # as the endpoint says it
    seconds: float  # of the writer's device where it says so, else of the call
    dropped: Mapping[str, int] = field(default_factory=dict)  # number of texts that were left out, by why
    num_rewritten: int = 0  # by output policies


class Writers(Feature):
    """The writers of the setting, by name."""

    name = "writers"

    def __init__(self, given: Iterable[str]) -> None:
        """Raises `ConfigError` for a key file that cannot be read."""
        self._places = writers_by_name(given)
        self._turns = {name: asyncio.Semaphore(MOST_AT_ONCE) for name in self._places}
        files = {name: place.key_file for name, place in self._places.items()}
        keys = {name: read_text(Path(file), "writer's key").strip() for name, file in files.items() if file}
        self._headers = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
        timeout = httpx2.Timeout(5.0, read=300.0)  # seconds to connect, and for an answer
        self._http = httpx2.AsyncClient(timeout=timeout, headers=PLAIN, event_hooks=async_hooks())

    def allowed(self, name: str | None, names: Sequence[str] | None) -> str:
        """Return the named writer, or the first, of those that a rule allows, None: all; raises `InvalidParameter`."""
        known = [writer for writer in self._places if names is None or writer in names]
        if not known or (name is not None and name not in known):
            message = f"writer is {name!r}; allowed here, by the setting writers and the policy's rule: "
            raise InvalidParameter(message + (", ".join(known) or "none"), param="writer")
        return name or known[0]

    async def write(self, name: str, body: Mapping[str, Any]) -> WriterTexts:
        """Return a writer's answers to a chat; raises `UpstreamUnavailable` or `UpstreamInvalid`."""
        place, headers = self._places[name], self._headers.get(name)
        asked = {**body, "model": place.model} if place.model else body
        async with self._turns[name]:
            begun = time.monotonic()
            try:
                reply = await self._http.post(f"{place.url}{CHAT_ROUTE}", json=asked, headers=headers)
            except httpx2.HTTPError as error:
                raise UpstreamUnavailable(f"writer {name!r} does not answer ({type(error).__name__})") from error
            seconds = time.monotonic() - begun
        if reply.status_code != httpx2.codes.OK:
            kind = UpstreamUnavailable if reply.status_code in (429, 500, 503, 504) else UpstreamInvalid
            raise kind(f"writer {name!r} answers with status {reply.status_code}")
        try:
            shown, seconds = reply.json(), float(reply.headers.get(DEVICE_MS, 1e3 * seconds)) / 1e3
            texts = [
                WriterText(str(choice["message"]["content"] or ""), str(choice.get("finish_reason") or "stop"))
                for choice in shown["choices"]
            ]
            return WriterTexts(writer=name, texts=texts, usage=dict(shown.get("usage") or {}), seconds=seconds)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UpstreamInvalid(f"writer {name!r} answers with what is no completion") from error

    async def close(self) -> None:
        await self._http.aclose()
