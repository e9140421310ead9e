"""/admin/recording: the traffic of this server as a trace for rehearsals, taken while an admin wants it; no text."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi.responses import Response
from pydantic import Field

from prolepsis.control.correctness.runtime import Share
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import ADMINS, Route, Routes
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.ended import Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.recording import recording
from prolepsis.core.requests import GenerateRequest
from prolepsis.lab.rehearsal.trace import BlockNumbers, Trace, TraceLine, head_text, line_text, trace_line

MOST_BYTES, _BLOCK_BYTES = 64 * 2**20, 128
"""Memory at which a recording ends, and what of it the number of a block takes."""


class RecordingBody(Body):
    """What to record, until the first of its bounds is met."""

    seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    requests: Annotated[int, Field(ge=1, le=20_000)] = 1000
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the requests whose drafts are recorded; all of them get a line."""


@dataclass(frozen=True, slots=True)
class RecordingReply:
    """The recording that the server holds, so far."""

    remaining_s: float = 0.0  # until it takes no further request: 0 after its end, and without a recording
    num_requests: int = 0  # requests in its file; those that run follow when they end
    num_running: int = 0
    num_left_out: int = 0  # requests that ended before their first token, or had several samples


class TrafficRecording:
    """Collects the requests that arrive in its time; times are of the context's monotonic clock."""

    def __init__(self, wanted: RecordingBody, machine: str, now: float, *, names_tenants: bool) -> None:
        """`machine`: fingerprint of what serves. `names_tenants`: the file names tenants, and does not number them."""
        self._began, self._until, self._most = now, now + wanted.seconds, wanted.requests
        self._tenants: dict[str, str] | None = None if names_tenants else {}
        self._share = Share(wanted.share)
        self._blocks = BlockNumbers()
        self._running: set[str] = set()
        self._num_begun = self._num_lines = 0
        self.file = bytearray(gzip.compress(head_text(Trace(lines=(), machine=machine)).encode()))
        """The requests that have ended so far, as `read_trace` reads them."""

    def begin(self, request_id: str, arrived: float) -> Keep:
        """Return what it needs of a request that the engine gets now."""
        if self._num_begun == self._most or not self._began <= arrived < self._until:
            return Keep.FIGURES
        self._running.add(request_id)
        self._num_begun += 1
        return Keep.SHAPES if self._share.draw() else Keep.TOKENS

    def take(self, about: RequestAbout, prompt: PromptEnded) -> None:
        """Add a prompt that has ended, if it belongs to the recording."""
        if prompt.request.request_id not in self._running:
            return
        self._running.remove(prompt.request.request_id)
        tokens, *others = recording(prompt.request, prompt.tokens).tokens
        if tokens and not others:
            self.file += gzip.compress(line_text(self._line(about, prompt, tokens)).encode(), compresslevel=3)
            self._num_lines += 1
        if len(self.file) + _BLOCK_BYTES * len(self._blocks) > MOST_BYTES:
            self._most = self._num_begun

    def shown(self, now: float) -> RecordingReply:
        remaining_s = max(0.0, self._until - now) if self._num_begun < self._most else 0.0
        num_left_out = self._num_begun - self._num_lines - len(self._running)
        return RecordingReply(remaining_s, self._num_lines, len(self._running), num_left_out)

    def _line(self, about: RequestAbout, prompt: PromptEnded, tokens: Sequence[int]) -> TraceLine:
        arrived = about.arrived or prompt.began_at - prompt.waited_s
        stats = replace(prompt.stats, waited_s=prompt.began_at - arrived)
        line, tenant = trace_line(prompt.request, tokens, stats, self._blocks, arrived - self._began), about.tenant
        if tenant and self._tenants is not None:
            tenant = self._tenants.setdefault(tenant, f"tenant-{len(self._tenants) + 1}")
        measured = None if prompt.answer == "unreported" else line.measured
        line = replace(line, tenant=tenant, tier=about.tier, route=about.route, measured=measured)
        return replace(line, structured=about.structured, tools=about.tools, mode=about.asks)


class RecordingFeature(Feature):
    """Holds the recording of one server in memory, until it is removed or another one begins."""

    name = "recording"

    def __init__(self, context: Context) -> None:
        self.current: TrafficRecording | None = None
        self.now = context.monotonic
        self.routes = _routes(self, context)

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        """Return what the recording needs of the request."""
        if self.current is None or not about.is_recorded:
            return Keep.FIGURES
        return self.current.begin(request.request_id, about.arrived or self.now())

    def on_request_end(self, ended: RequestEnded) -> None:
        """Record the prompts of a request."""
        if self.current is not None:
            for prompt in ended.prompts:
                self.current.take(ended.about, prompt)

    def shown(self) -> RecordingReply:
        return self.current.shown(self.now()) if self.current else RecordingReply()


def _routes(feature: RecordingFeature, context: Context) -> Sequence[Route]:
    routes, path = Routes(), "/admin/recording"

    @routes.get(path, roles=ADMINS, summary="The recording of this server's traffic, so far")
    async def shown() -> RecordingReply:
        return feature.shown()

    @routes.post(path, roles=ADMINS, summary="Record traffic for a rehearsal, without text", errors=(409,))
    async def start(body: Annotated[RecordingBody, read_body(RecordingBody)], caller: SignedIn) -> RecordingReply:
        if (now := feature.shown()).remaining_s or now.num_running:
            message = "A recording is under way; allowed: to wait for its end, or to remove it."
            raise RequestRefused(message, code="recording_under_way", status=409)
        machine, named = context.client.info.fingerprint, context.config.record_tenants
        feature.current = TrafficRecording(body, machine, feature.now(), names_tenants=named)
        after = {**body.model_dump(), "names_tenants": named}
        context.emit(AuditEvent(actor=caller.actor, action="recording.started", after=after))
        return feature.shown()

    @routes.get(f"{path}/file", roles=ADMINS, summary="The trace so far", reply=str, streams="application/gzip")
    async def file(caller: SignedIn) -> Response:
        if feature.current is None:
            raise RequestRefused("The server holds no recording.", code="no_recording", status=404)
        context.emit(AuditEvent(actor=caller.actor, action="recording.downloaded"))
        return Response(bytes(feature.current.file), media_type="application/gzip")

    @routes.delete(path, roles=ADMINS, summary="Stop the recording and forget it")
    async def stop(caller: SignedIn) -> RecordingReply:
        last, feature.current = feature.shown(), None
        context.emit(AuditEvent(actor=caller.actor, action="recording.stopped", after={"requests": last.num_requests}))
        return last

    return routes.all
