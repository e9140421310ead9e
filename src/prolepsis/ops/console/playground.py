"""The page for newcomers: asks one prompt plain and with drafts at the same moment, and says how clients connect.

The page's script asks by itself and shows tokens as they come. Without scripts the form is sent, and this module asks.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from starlette.types import ASGIApp

from prolepsis.control.web.errors import describe_error
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit
from prolepsis.core.errors import UserError

PLAYGROUND = "/console/playground"
PANES = {"off": "Plain", "auto": "With speculation"}
"""Titles by the mode that a request of the pane asks for."""
FIELDS = {
    "prompt": "Write a Python function that returns the median of a list of numbers, with a docstring. "
    "Then write it again with type hints.",
    "model": "",
    "max_tokens": "200",
    "temperature": "0",
    "system": "",
    "tools": "",
}
"""What the form has at first."""
NUM_COLOURS = 5


@dataclass(frozen=True, slots=True)
class PlaygroundAnswer:
    seconds: float
    num_tokens: int
    origins: Sequence[Mapping[str, str | None]]  # pieces of the text, each with the proposer that had drafted it

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.num_tokens / self.seconds

    @property
    def text(self) -> str:
        return "".join(str(piece["text"]) for piece in self.origins)


def playground_pages(app: Callable[[], ASGIApp], models: Sequence[str], *, asks_for_key: bool) -> FeaturePages:
    """`app` answers the requests, so that keys, roles and limits count as they do for every client."""

    async def shown(visit: Visit) -> Page:
        answers, state = dict[str, PlaygroundAnswer](), ""
        if visit.form:
            try:
                answers = await _race(app(), visit.form)
                plain, drafted = answers["off"], answers["auto"]
                same = "are the same" if plain.text == drafted.text else "differ"
                state = f"With speculation {drafted.rate / plain.rate:.2f}x as fast; the answers {same}."
            except Exception as error:  # contained: the form says what is wrong, and keeps what was typed
                state = f"Not possible: {describe_error(error)}"
        pieces = (piece for answer in answers.values() for piece in answer.origins)
        names = dict.fromkeys(name for piece in pieces if (name := piece["drafted_by"]))
        values = {
            "panes": PANES,
            "fields": {**FIELDS, **visit.form},
            "answers": answers,
            "colours": {name: f"by{number % NUM_COLOURS}" for number, name in enumerate(names)},
            "state": state,
            "models": models,
            "asks_for_key": asks_for_key,
        }
        return Page("playground.html", "Playground", values, live=False)

    return FeaturePages(
        (
            PageRoute(PLAYGROUND, "Playground", shown, in_navigation=True),
            PageRoute(PLAYGROUND, "Ask the playground", shown, method="POST"),
        )
    )


async def _race(app: ASGIApp, form: Mapping[str, str]) -> dict[str, PlaygroundAnswer]:
    """Return the answer of each pane. Raises `UserError` with what the server says."""
    seed, key = secrets.randbits(32), form.get("key", "").strip()
    bodies = [_body(form, mode, seed) for mode in PANES]
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        answers = await asyncio.gather(*(_answer(http, body) for body in bodies))
    return dict(zip(PANES, answers, strict=True))


def _body(form: Mapping[str, str], mode: str, seed: int) -> dict[str, Any]:
    messages = [{"role": role, "content": form[name]} for role, name in (("system", "system"), ("user", "prompt"))]
    body = {
        "model": form["model"],
        "messages": [message for message in messages if message["content"].strip()],
        "seed": seed,
        "cache_salt": f"playground-{secrets.token_hex(8)}",
        "speculation": {"mode": mode, "origins": True},
    }
    for name in ("max_tokens", "temperature", "tools"):
        if text := form[name].strip():
            try:
                body[name] = json.loads(text)
            except ValueError as error:
                raise UserError(f"{name} is not JSON: {error}.") from None
    return body


async def _answer(http: httpx2.AsyncClient, body: Mapping[str, Any]) -> PlaygroundAnswer:
    began = time.perf_counter()
    reply = await http.post("/v1/chat/completions", json=body)
    document = reply.json()
    if reply.status_code != httpx2.codes.OK:
        raise UserError(document["error"]["message"])
    origins = [piece for choice in document["choices"] for piece in choice["origins"]]
    return PlaygroundAnswer(time.perf_counter() - began, document["usage"]["completion_tokens"], origins)
