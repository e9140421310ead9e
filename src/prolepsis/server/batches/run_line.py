"""Runs one line as the HTTP request that it stands for, by the code that answers it, without a connection."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from uuid import uuid4

from jiter import from_json
from starlette.requests import Request

from prolepsis.control.store.batches import LineResult
from prolepsis.control.web.body_reader import BODY_BYTES, BodyReader
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.foreign_fields import Ignored
from prolepsis.control.web.refusals import too_large
from prolepsis.server.admission.load_shedding import BACKGROUND_TIER
from prolepsis.server.batches.lines import LineBody
from prolepsis.server.openai.routes import GENERATING
from prolepsis.server.services import Models, Services
from prolepsis.server.stream import never
from prolepsis.server.tracing import ARRIVED, HTTP_REQUEST_ID, TRACE

LATER = (429, 503)
"""Statuses of a server that has no room now."""


class NotNow(Exception):
    """The line did not run, and may after `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


def background(caller: Caller) -> Caller:
    """Return a caller as its lines run: in the tier behind all others."""
    return replace(caller, tier=BACKGROUND_TIER)


async def run_line(line: LineBody, caller: Caller, models: Models) -> LineResult:
    """Return the result of a line; raises `NotNow` where the server refuses it for want of room."""
    name, status = f"batch_req_{uuid4().hex}", 200
    try:
        body = await _answer(name, line, caller, models)
    except Exception as error:  # the edge of a request: every failure becomes its result
        refused = describe_error(error)
        if refused.status in LATER:
            raise NotNow(float(refused.headers.get("retry-after", 1))) from None
        body, status = refused.body, refused.status
    response = {"status_code": status, "request_id": name, "body": body}
    text = _text(name, line.custom_id, response, None)
    return LineResult("completed", text, _usage(body)) if status == 200 else LineResult("failed", text)


def not_run(code: str, message: str, custom_id: str) -> LineResult:
    """Return the result of a line that never ran."""
    error = {"code": code, "message": message}
    return LineResult("failed", _text(f"batch_req_{uuid4().hex}", custom_id, None, error))


def _text(name: str, custom_id: str, response: object, error: object) -> str:
    result = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(result, ensure_ascii=False, separators=(",", ":"))


async def _answer(name: str, line: LineBody, caller: Caller, models: Models) -> Mapping[str, object]:
    """Return the document that a client would get; raises what it would be refused with."""
    if line.url not in GENERATING:
        message = f"url is {line.url[:128]!r}; allowed: {', '.join(GENERATING)}"
        raise RequestRefused(message, code="invalid_url", param="url")
    kind, serve = GENERATING[line.url]
    services = models.of(str(line.body.get("model")), caller)
    body = {"store": False, **line.body}  # the batch's file has the answer
    raw, intake = json.dumps(body, ensure_ascii=False).encode(), services.intake
    if len(raw) > intake.uploads.most_bytes:
        raise too_large("body", f"{intake.uploads.most_bytes} bytes")
    ignored = None if intake.strict_parameters else Ignored()
    parse = partial(BodyReader(kind).parse, raw, intake.uploads.most_members, ignored)
    parsed = await intake.large_work.run(caller.tenant, len(raw), parse, gives_way=False)
    reply = await serve(parsed, _request(name, line.url, len(raw), caller, services), services)
    document: Mapping[str, object] = from_json(bytes(reply.body))
    return document


def _request(name: str, url: str, num_bytes: int, caller: Caller, services: Services) -> Request:
    """Return the request as sign-in and tracing would have let it through."""
    state = {"caller": caller, BODY_BYTES: num_bytes, HTTP_REQUEST_ID: name, ARRIVED: time.monotonic()}
    if (trace := services.tracing.begin(None)) is not None:
        state[TRACE] = trace
    scope = {"type": "http", "method": "POST", "path": url, "query_string": b"", "headers": [], "state": state}
    return Request(scope, never)


def _usage(body: Mapping[str, object]) -> tuple[int, int, int, int]:
    """Return tokens given, cached, answered and reasoned, in either shape of OpenAI's usage."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return (0, 0, 0, 0)
    given, answered = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    details, further = usage.get(f"{given}_tokens_details"), usage.get(f"{answered}_tokens_details")
    cached, reasoned = (details or {}).get("cached_tokens"), (further or {}).get("reasoning_tokens")
    return usage[f"{given}_tokens"], cached or 0, usage[f"{answered}_tokens"], reasoned or 0
