"""The events of an answer whose client drafts: `started`, then `tokens` and `corrected`, last `done`."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict

from msgspec import UNSET, to_builtins

from prolepsis.core.client_draft import MAX_CLIENT_DRAFT_TOKENS
from prolepsis.core.config import CLIENT
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.remote.verify_events import Corrected, Done, DraftCounts, Drafting, Emitted, Started
from prolepsis.server.answering.answer import Parts
from prolepsis.server.answering.usage import Json, metrics, usage
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.services import Services
from prolepsis.server.text.deltas import Delta
from prolepsis.server.verify.streams import VerifyStream, VerifyStreams


async def verify_events(
    prepared: PreparedRequest, parts: Parts, stream: VerifyStream, streams: VerifyStreams, services: Services
) -> AsyncGenerator[Json, None]:
    """Yield the events of one answer. The first comes before the engine has begun, so that its client can draft.

    `parts` begin with an empty one when the request leaves the queue: what refuses it comes before the first event.
    """
    last: Delta | None = None
    with streams.opened(stream):
        async with aclosing(parts):
            texts = await _texts(prepared, stream, services)
            await anext(parts)
            yield to_builtins(_started(prepared, stream, services, texts))
            async for part in parts:
                if not isinstance(part, Delta):
                    yield to_builtins(_done(prepared, stream, last, part))
                    continue
                yield to_builtins(_tokens(stream, part))
                if last is None:
                    stream.offer()  # again: a draft may have come before the request ran
                last = part


async def _texts(prepared: PreparedRequest, stream: VerifyStream, services: Services) -> list[str]:
    token_ids, decode = stream.request.prompt_token_ids, services.tokenizer.decode

    def texts() -> list[str]:
        return [decode([token]) for token in token_ids]

    return await services.intake.large_work.off_loop(prepared.context.caller.tenant, texts)


def _started(prepared: PreparedRequest, stream: VerifyStream, services: Services, texts: Sequence[str]) -> Started:
    """Return what a client drafts from: the prompt's tokens and their texts."""
    refusal = stream.refusal()
    return Started(
        id=stream.id,
        model=prepared.body.model,
        system_fingerprint=services.client.info.fingerprint,
        seed=prepared.seed,
        prompt_token_ids=stream.request.prompt_token_ids,
        prompt_token_strs=tuple(texts),
        drafts=Drafting(refusal is None, refusal, MAX_CLIENT_DRAFT_TOKENS),
    )


def _tokens(stream: VerifyStream, delta: Delta) -> Emitted:
    num_accepted, is_corrected = stream.send(delta.token_ids)
    texts = tuple(token.text for token in delta.tokens)
    kind = Corrected if is_corrected else Emitted
    return kind(delta.position, tuple(delta.token_ids), texts, delta.text, num_accepted)


def _done(prepared: PreparedRequest, stream: VerifyStream, last: Delta | None, stats: RequestStats) -> Done:
    counts = stats.proposers.get(CLIENT, ProposerCounts())
    return Done(
        finish_reason=last.finish_reason if last else None,
        stop_reason=last.stop_reason if last else None,
        usage=usage(stats, has_prediction=prepared.has_prediction),
        seed=prepared.seed,
        drafts=DraftCounts(
            stream.num_drafts, stream.num_late, counts.num_drafts, counts.num_draft_tokens, counts.num_accepted
        ),
        effective=asdict(stats.mode),
        metrics=metrics(stats, prepared.speculation) if prepared.speculation.requested.metrics else UNSET,
    )
