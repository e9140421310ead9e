"""Texts of a writer for a client's request: those that have the form asked for, as output policies let them pass."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prolepsis.control.web.fields import Body
from prolepsis.engine.text.grammar.accepted import accepts
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.server.output.pipeline import SourceSpan, text_of
from prolepsis.server.output.policy import AnswerFacts
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.services import Services
from prolepsis.server.writers import TextWriter, WriterText

_PENALTIES = ("frequency_penalty", "presence_penalty")
_FIELDS = {
    *("messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
    *("response_format", "structured_outputs", *_PENALTIES),
}
"""Fields that every OpenAI endpoint knows, and those that ask for a form: what else a body has stays here."""


def asked_of_writer(body: Body, **changes: object) -> Mapping[str, Any]:
    """Return the body that a writer gets for a client's body."""
    return {**body.model_dump(mode="json", include=_FIELDS, exclude_none=True, by_alias=True), **changes}


def allowed_writer(name: str | None, prepared: PreparedRequest, services: Services) -> TextWriter:
    """Return a writer that the request's rule allows; raises `InvalidParameter` where it allows none of the name."""
    terms = prepared.speculation.terms
    return services.writers.named(name, terms.writers if terms else None)


@dataclass(frozen=True, slots=True)
class SiftedTexts:
    """The texts that are left, each once, as output policies show them."""

    texts: list[WriterText] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of the others, by why: `empty`, `duplicate`, `form`, `policy`."""
    num_rewritten: int = 0  # by output policies


async def sifted(texts: Sequence[WriterText], prepared: PreparedRequest, services: Services) -> SiftedTexts:
    """Check texts as an answer of the target would have been held to; raises `InvalidGrammar`."""
    grammar, schema, tenant = prepared.requests[0].grammar, prepared.checked_schema, prepared.context.caller.tenant
    left, dropped, num_rewritten, work = dict[str, WriterText](), Counter[str](), 0, services.intake.large_work

    def has_form(text: str) -> bool:
        return (grammar is None or accepts(grammar, text)) and (schema is None or broken(schema, text) is None)

    for index, written in enumerate(texts):
        text = written.text
        if not text.strip():
            dropped["empty"] += 1
        elif grammar is not None and not await work.off_loop(tenant, partial(has_form, text)):
            dropped["form"] += 1
        elif not (shown := await _shown(text, index, prepared, services)):
            dropped["policy"] += 1
        elif shown in left:
            dropped["duplicate"] += 1
        else:
            num_rewritten += shown != text
            left[shown] = WriterText(shown, written.finish_reason)
    return SiftedTexts(list(left.values()), dropped, num_rewritten)


async def _shown(text: str, index: int, prepared: PreparedRequest, services: Services) -> str:
    """Return what output policies leave of a text; empty: they stop it."""
    caller, request = prepared.context.caller, prepared.requests[0]
    facts = AnswerFacts(
        request_id=request.request_id,
        index=index,
        route=prepared.context.route,
        tenant=caller.tenant,
        tier=caller.tier,
        key_id=caller.key_id,
        model=prepared.body.model,
        structured=request.grammar is not None,
    )
    if (pipeline := services.output.pipeline(facts)) is None:
        return text
    passed = await pipeline.take([[SourceSpan(text, 0, len(text))]], ended=True)
    return "" if passed.stopped_by is not None else text_of([span for spans in passed.tokens for span in spans])
