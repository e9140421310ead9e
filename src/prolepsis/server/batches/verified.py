"""Batches whose lines a writer writes: the target checks a random share, and writes lines that it would not have.

Lines that the target writes for another reason, such as an output policy, are no part of the agreement that is stated.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from uuid import uuid4

import structlog
from fastapi import Request
from msgspec.json import encode

from prolepsis.control.statistics.finite import share_interval
from prolepsis.control.store.batches import BatchLine, StoredBatch
from prolepsis.control.web.fields import Body
from prolepsis.core.config import TARGET
from prolepsis.core.errors import InvalidParameter, UpstreamInvalid, UpstreamUnavailable
from prolepsis.core.facts import position
from prolepsis.server.answering.usage import Json
from prolepsis.server.batches.bodies import VerifyBody
from prolepsis.server.openai.decisions import scored_texts
from prolepsis.server.openai.routes import GENERATING
from prolepsis.server.openai.written import written
from prolepsis.server.preparing.bodies import ChatBody
from prolepsis.server.preparing.prepare import prepare_chat
from prolepsis.server.preparing.prepared import PreparedRequest, context_of
from prolepsis.server.services import Services
from prolepsis.server.writers import CHAT_ROUTE, DEVICE_MS, WriterTexts

_MAX_STRATA = 32  # of a batch; further ones are one, other
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class WrittenLine:
    """Who wrote a line's text, and at what cost; kept with its result."""

    stratum: str
    writer: str = TARGET
    agrees: bool | None = None
    """Whether the writer's text is one that the target would have written; None: not known, or not counted."""
    writer_s: float = 0.0
    target_s: float = 0.0

    @property
    def shown(self) -> Json:
        """Fields of the line's result."""
        is_verified = self.writer == TARGET or self.agrees is not None
        return {"writer": self.writer, "verified": is_verified, "agrees": self.agrees}


async def answer_line(
    batch: StoredBatch, line: BatchLine, body: Body, request: Request, services: Services
) -> tuple[bytes, WrittenLine]:
    """Return the answer to a line: a writer's, or the target's, which alone answers for a second time."""
    assert isinstance(body, ChatBody), "other batches are not verified"
    verify, prepared = VerifyBody(**batch.document["verify"]), await prepare_chat(body, context_of(request), services)
    found, text = WrittenLine((body.metadata or {}).get("stratum", "all")), ""
    if line.written:
        found = WrittenLine(**{**json.loads(line.written), "writer": TARGET})
    elif (left := await _written(verify, body, prepared, services)) is not None:
        found.writer_s = left.seconds
        text = left.texts[0].text if left.texts and not left.num_rewritten else ""
        is_shown = bool(text) and position(batch.batch_id, line.custom_id) >= 100 * verify.share
        if text and not is_shown and verify.by == "score":
            [tokens], stats = await scored_texts(request, prepared, [text], services)
            found.target_s = stats.device.total
            found.agrees = is_shown = sum(token.rank == 1 for token in tokens) >= verify.similarity * len(tokens)
        if is_shown:
            found.writer = left.writer
            return encode(_reply(left, body)), found
    _, serve = GENERATING[CHAT_ROUTE]
    response = await serve(body, request, services)
    found.target_s += float(response.headers[DEVICE_MS]) / 1e3
    if text and found.agrees is None:
        own = json.loads(bytes(response.body))["choices"][0]["message"]["content"] or ""
        first, second = (given.casefold().strip().rstrip(".!").split() for given in (text, str(own)))
        work = SequenceMatcher(None, first, second, autojunk=False).ratio
        found.agrees = await services.intake.large_work.off_loop(batch.tenant, work) >= verify.similarity
    return bytes(response.body), found


async def _written(
    verify: VerifyBody, body: ChatBody, prepared: PreparedRequest, services: Services
) -> WriterTexts | None:
    """Return what a writer writes for a line, None where the target has to write it."""
    try:
        if not (body.tools or body.logprobs or body.prompt_logprobs is not None or body.echo or (body.n or 1) > 1):
            return await written(verify.writer, body, 1, prepared, services)
    except (InvalidParameter, UpstreamUnavailable, UpstreamInvalid) as error:
        log.warning("writer_failed", error=str(error))
    return None


def _reply(left: WriterTexts, body: ChatBody) -> Json:
    message = {"role": "assistant", "content": left.texts[0].text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": left.texts[0].finish_reason}
    counts = {name: int(left.usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")}
    usage = {**counts, "total_tokens": sum(counts.values())}
    shown = {"id": f"chatcmpl-{uuid4().hex}", "object": "chat.completion", "created": int(time.time())}
    return {**shown, "model": body.model, "choices": [choice], "usage": usage}


def agreement(lines: Mapping[int, str], at_least: float | None) -> tuple[Json, list[int]]:
    """Return what is known of each stratum, with bounds of 95 percent, and the lines to be written by the target."""
    strata, stated, again = defaultdict[str, dict[int, WrittenLine]](dict), Json(), list[int]()
    for number, text in lines.items():
        line = WrittenLine(**json.loads(text))
        if line.writer != TARGET or line.agrees is not None:
            name = line.stratum if line.stratum in strata or len(strata) < _MAX_STRATA else "other"
            strata[name][number] = line
    for name, of in strata.items():
        checked = [line.agrees for line in of.values() if line.agrees is not None]
        low, high = share_interval(len(of), len(checked), sum(checked))
        stated[name] = {"lines": len(of), "checked": len(checked), "agree": sum(checked), "low": low, "high": high}
        if at_least is not None and sum(checked) < at_least * max(1, len(checked)):
            again += [number for number, line in of.items() if line.agrees is None]
    return stated, again


def cost(lines: Iterable[str]) -> Json:
    """Return the seconds that a batch took, and what the target would have taken by those that it wrote as a check."""
    found = [WrittenLine(**json.loads(text)) for text in lines]
    writer_s, target_s = sum(line.writer_s for line in found), sum(line.target_s for line in found)
    own = [line.target_s for line in found if line.writer == TARGET and line.agrees is not None]
    every_s = len(found) * sum(own) / len(own) if own else None
    ratio = (writer_s + target_s) / every_s if every_s else None
    return {"writer_s": writer_s, "target_s": target_s, "against_all_s": every_s, "ratio": ratio}
