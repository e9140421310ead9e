"""Writers: cheap models behind other OpenAI endpoints, which write whole texts that the target then checks.

What they write is not what the target would have written, so only the routes that say so ask them.
"""

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

DEVICE_MS = "x-device-ms"
"""Header of a whole answer: milliseconds of the device that it took, on all of its prompts and samples."""
CHAT_ROUTE = "/v1/chat/completions"
CONNECT_S, REPLY_S = 5.0, 300.0
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
        keys = {
            name: place.key_file and read_text(Path(place.key_file), "key file of a writer").strip()
            for name, place in self._places.items()
        }
        self._headers = {name: {"authorization": f"Bearer {key}"} if key else {} for name, key in keys.items()}
        timeout = httpx2.Timeout(CONNECT_S, read=REPLY_S)
        self._http = httpx2.AsyncClient(timeout=timeout, headers=PLAIN, event_hooks=async_hooks())

    def allowed(self, name: str | None, names: Sequence[str] | None) -> str:
        """Return the writer of a request whose rule allows `names`, None: all; without a name the first one.

        Raises `InvalidParameter` where there is none.
        """
        known = [writer for writer in self._places if names is None or writer in names]
        if not known or (name is not None and name not in known):
            message = f"writer is {name!r}; allowed here, by the setting writers and the policy's rule: "
            raise InvalidParameter(message + (", ".join(known) or "none"), param="writer")
        return name or known[0]

    async def write(self, name: str, body: Mapping[str, Any]) -> WriterTexts:
        """Return what a writer answers to a body of /v1/chat/completions.

        Raises `UpstreamUnavailable` where it cannot be reached or has no room, `UpstreamInvalid` for other answers.
        """
        place, headers = self._places[name], self._headers[name]
        asked = {**body, **({"model": place.model} if place.model else {})}
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
            return WriterTexts(writer=name, texts=texts, usage=shown.get("usage") or {}, seconds=seconds)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UpstreamInvalid(f"writer {name!r} answers with what is no completion") from error

    async def close(self) -> None:
        await self._http.aclose()
