"""Texts of a writer for a client's request: those that have the form asked for, as output policies let them pass."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.server.answering.answer import answer_facts
from prolepsis.server.output.pipeline import SourceSpan, text_of
from prolepsis.server.output.policy import AnswerFacts
from prolepsis.server.preparing.bodies import ChatBody
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.services import Services
from prolepsis.server.writers import WriterText, WriterTexts

_FIELDS = {
    *("messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"),
    *("frequency_penalty", "presence_penalty", "response_format", "structured_outputs"),
}
"""Fields that every OpenAI endpoint knows, and those that ask for a form: what else a body has stays here."""


async def written(
    name: str | None, body: ChatBody, num: int, prepared: PreparedRequest, services: Services
) -> WriterTexts:
    """Let a writer that the request's rule allows write `num` texts, but those that no answer of the target could be.

    Raises `InvalidParameter` where none is allowed or a form cannot be checked, and what `Writers.write` raises.
    """
    terms, tenant, work = prepared.speculation.terms, prepared.context.caller.tenant, services.intake.large_work
    writer = services.writers.allowed(name, terms.writers if terms else None)
    asked = body.model_dump(mode="json", include=_FIELDS, exclude_none=True, by_alias=True)
    answer = await services.writers.write(writer, {**asked, "n": num})
    left, dropped, num_rewritten = dict[str, WriterText](), Counter[str](), 0
    for index, found in enumerate(answer.texts):
        text = found.text
        if not text.strip():
            dropped["empty"] += 1
        elif not await work.off_loop(tenant, partial(_has_form, text, prepared)):
            dropped["form"] += 1
        elif not (shown := await _shown(text, answer_facts(prepared, prepared.requests[0], index), services)):
            dropped["policy"] += 1
        elif shown in left:
            dropped["duplicate"] += 1
        else:
            num_rewritten += shown != text
            left[shown] = WriterText(shown, found.finish_reason)
    return replace(answer, texts=list(left.values()), dropped=dropped, num_rewritten=num_rewritten)


async def _shown(text: str, facts: AnswerFacts, services: Services) -> str:
    """Return what output policies leave of a text; empty: they stop it."""
    if (pipeline := services.output.pipeline(facts)) is None:
        return text
    passed = await pipeline.take([[SourceSpan(text, 0, len(text))]], ended=True)
    return "" if passed.stopped_by is not None else text_of([span for spans in passed.tokens for span in spans])


def _has_form(text: str, prepared: PreparedRequest) -> bool:
    grammar = prepared.requests[0].grammar
    if grammar is None:
        return True
    if grammar.kind == "choice":
        return text in json.loads(grammar.source)
    if grammar.kind == "json_schema":
        return broken(prepared.asked.form.checked or json.loads(grammar.source), text) is None
    message = f"a {grammar.kind} is given with a writer; allowed: a choice, a JSON schema, or no form"
    raise InvalidParameter(message, param=prepared.asked.field)
