"""Runs one line as the HTTP request that it stands for, by the code that answers it, without a connection."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from uuid import uuid4

from jiter import from_json
from starlette.requests import Request
from starlette.types import Message

from prolepsis.control.store.batches import LineResult
from prolepsis.control.web.body_reader import BodyReader
from prolepsis.control.web.caller import Caller, caller_of
from prolepsis.control.web.errors import describe_error
from prolepsis.control.web.intake import Intake
from prolepsis.control.web.reply_headers import WARNING, reply_headers
from prolepsis.server.admission.load_shedding import BACKGROUND_TIER
from prolepsis.server.answering.stream import never
from prolepsis.server.batches.lines import LineBody, parse_line
from prolepsis.server.batches.verified import WrittenLine
from prolepsis.server.front.tracing import ARRIVED, HTTP_REQUEST_ID, TRACE
from prolepsis.server.openai.routes import GENERATING
from prolepsis.server.services import Models, Services

MOST_RESULT = 2**24
"""Characters of a line's result."""
LineWriter = Callable[[Any, Request, Services], Awaitable[tuple[bytes, WrittenLine]]]
"""Answers a line that a writer may write: returns the JSON that a client would get, and who wrote it."""
LATER = (429, 503)
"""Statuses of a server that has no room now."""


class NotNow(Exception):
    """The line did not run, and may after `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


async def run_line(
    raw: bytes, custom_id: str, caller: Caller, models: Models, verified: LineWriter | None = None
) -> LineResult:
    """Return the result of a line of a file, which runs in the tier behind all others.

    `verified` answers in place of the target alone. Raises `NotNow` where the server refuses it for want of room.
    """
    name, status, answer, bodies = f"batch_req_{uuid4().hex}", 200, b"", list[bytes]()
    found: WrittenLine | None = None
    request, intake = _request(name, bodies, caller), next(iter(models.by_name.values())).intake
    work = partial(intake.large_work.run, caller.tenant)
    try:
        line, content = await work(len(raw), partial(_parsed, raw, intake), gives_way=False)
        bodies.append(content)
        request.scope["path"] = line.url
        answer, found = await _answer(line, request, models, verified)
        body: Mapping[str, Any] = await work(len(answer), partial(from_json, answer))
    except Exception as error:  # the edge of a request: every failure becomes its result
        refused = describe_error(error)
        if refused.status in LATER:
            raise NotNow(float(refused.headers.get("retry-after", 1))) from None
        body, status = refused.body, refused.status
    warning = reply_headers(request).get(WARNING)
    response = {"status_code": status, "request_id": name, "body": body}
    more = {**(found.shown if found else {}), **({"warning": warning} if warning else {})}
    write = partial(_text, name, custom_id, response, None, **more)
    text = await work(len(answer), write)
    if len(text) > MOST_RESULT:
        message = f"The result has {len(text)} characters; allowed: {MOST_RESULT}, with fewer tokens or top_logprobs."
        return not_run("result_too_large", message, custom_id)
    kept = json.dumps(asdict(found)) if found else None
    return LineResult("completed", text, _usage(body), kept) if status == 200 else LineResult("failed", text)


def _parsed(raw: bytes, intake: Intake) -> tuple[LineBody, bytes]:
    line = parse_line(raw, intake.uploads)
    given = {"store": False, **line.body}  # the batch's file has the answer
    return line, json.dumps(given, ensure_ascii=False).encode()


def not_run(code: str, message: str, custom_id: str) -> LineResult:
    error = {"code": code, "message": message}
    return LineResult("failed", _text(f"batch_req_{uuid4().hex}", custom_id, None, error))


def _text(name: str, custom_id: str, response: object, error: object, **more: object) -> str:
    result = {"id": name, "custom_id": custom_id, "response": response, "error": error, **more}
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))


async def _answer(
    line: LineBody, request: Request, models: Models, verified: LineWriter | None
) -> tuple[bytes, WrittenLine | None]:
    """Return the JSON that a client would get, and who wrote it; raises what it would be refused with."""
    kind, serve = GENERATING[line.url]
    services = models.of(str(line.body.get("model")), caller_of(request))
    if (trace := services.tracing.begin(None)) is not None:
        request.scope["state"][TRACE] = trace
    body = await BodyReader(kind).read(request, services.intake)
    if verified is not None:
        return await verified(body, request, services)
    return bytes((await serve(body, request, services)).body), None


def _request(name: str, body: list[bytes], caller: Caller) -> Request:
    """Return the request as sign-in would have let it through, with the `body` that is in the list by then."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body.pop()} if body else await never()

    state = {"caller": replace(caller, tier=BACKGROUND_TIER), HTTP_REQUEST_ID: name, ARRIVED: time.monotonic()}
    scope = {"type": "http", "method": "POST", "path": "", "query_string": b"", "headers": [], "state": state}
    return Request(scope, receive)


def _usage(body: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return tokens given, cached, answered and reasoned, in either shape of OpenAI's usage."""
    usage = body["usage"]
    given, answered = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    details, further = usage.get(f"{given}_tokens_details") or {}, usage.get(f"{answered}_tokens_details") or {}
    reasoned = further.get("reasoning_tokens") or 0
    return usage[f"{given}_tokens"], details.get("cached_tokens") or 0, usage[f"{answered}_tokens"], reasoned
