"""Keeps requests to learn from, of tenants and callers who agreed: as token ids, redacted, chosen, within bounds."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from prolepsis.control.audit.requests import Decode
from prolepsis.control.learning.choosing import SHARE_OF_REST, Chooser
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.redaction.values import redacted_text
from prolepsis.control.store.examples import ExampleBounds, ExampleItem, ExampleTable, example_id
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.ended import Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.learning import Example
from prolepsis.core.recording import recording
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stored_text import storable
from prolepsis.core.telemetry.declare import counter

Encode = Callable[[str], Sequence[int]]
"""Returns the tokens of a text, control tokens by their names; called from the writer's thread, as is `Decode`."""
Outcome = Literal["kept", "not_chosen", "busy", "redacted", "shaped", "too_long", "too_short", "unfinished"]
UPKEEP = "examples"  # the turn of deleting what is not to be kept any more: one replica does it for all
UPKEEP_S = 3600.0
LEAST_ANSWER = 16  # tokens of an answer that shows something


class CaptureFeature(Feature):
    """Queues examples for the store's writer, whose thread redacts them; and has old ones deleted."""

    name = "learning_capture"
    period_s = 600.0

    def __init__(
        self,
        context: Context,
        encode: Encode,
        decode: Decode,
        blocks: Callable[[], Mapping[str, LearningTerms]],
        *,
        is_sure: Callable[[], bool] = lambda: True,
        draw: Callable[[], float] = random.random,
        thread_time: Callable[[], float] = time.thread_time,
        max_pending_tokens: int = 100_000,
    ) -> None:
        """`blocks`: terms of learning by rule, of the policy in use; nothing is deleted unless it `is_sure`.

        `max_pending_tokens` bounds the memory of examples that are not made yet.
        """
        self._context = context
        self._writer = context.store.writer
        self._encode, self._decode = encode, decode
        self._blocks, self._is_sure = blocks, is_sure
        self._draw, self._thread_time = draw, thread_time
        self._max_pending = max_pending_tokens
        self._began = context.monotonic()
        self._chooser = Chooser()
        self._pending = 0
        self._lock = threading.Lock()  # of the two before it
        text = "Requests whose tenant and caller agreed to learning, by what became of them"
        self._outcomes = counter(context.registry, "learning_examples", text, "rule", "outcome")

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        return Keep.TOKENS if about.learns and self._writer.is_on else Keep.FIGURES

    def on_request_end(self, ended: RequestEnded) -> None:
        """Queue an example of each prompt that the engine answered and that is to be kept; count the others."""
        rule, tenant = ended.about.learns, ended.about.tenant
        terms = self._blocks().get(rule) if rule and self._writer.is_on else None
        if terms is None or tenant not in terms.tenants:  # or they agree no longer
            return
        for prompt in ended.prompts:
            if prompt.answer == "cached":
                continue
            example = self._example(ended.about, prompt)
            if outcome := unfit(prompt, example, terms) or self._not_taken(example):
                self._count(rule, outcome)
                continue
            item = ExampleItem(partial(self._made, example), tenant, example.at, partial(self._count, rule))
            if not self._writer.offer(item):
                self._release(example)

    async def tick(self) -> None:
        """Delete what is not to be kept any more, if it is this replica's turn."""
        if not (self._writer.is_on and self._is_sure()):
            return
        bounds = {
            rule: ExampleBounds(terms.days, int(terms.megabytes * 1_000_000), frozenset(terms.tenants))
            for rule, terms in self._blocks().items()
        }
        database = self._context.database
        with suppress(StoreUnavailable):  # the writer reports it
            if await asyncio.to_thread(PeriodicWork(database).take, UPKEEP, UPKEEP_S):
                await asyncio.to_thread(ExampleTable(database, self._context.wall).prune, bounds)

    def _example(self, about: RequestAbout, prompt: PromptEnded) -> Example:
        request, stats = prompt.request, prompt.stats
        return Example(
            example_id=example_id(request.request_id),
            tokenizer=self._context.client.info.tokenizer,
            rule=about.learns,
            tenant=about.tenant,
            traffic_class=request.traffic_class,
            at=self._context.wall() - about.age_s,
            prompt=request.prompt_token_ids,
            answer=recording(request, prompt.tokens).tokens[0],
            greedy=request.params.greedy,
            tokens_a_pass=stats.acceptance_length if stats.mode.mode == "on" else None,
            by_chance=self._draw() < SHARE_OF_REST,
        )

    def _not_taken(self, example: Example) -> Outcome | None:
        """Return why an example is not taken; None: it is, and its memory counts from now on."""
        num_tokens = len(example.prompt) + len(example.answer)
        with self._lock:
            if not self._chooser.choose(example.traffic_class, example.tokens_a_pass, by_chance=example.by_chance):
                return "not_chosen"
            elapsed_s = self._context.monotonic() - self._began
            if not self._chooser.has_time(elapsed_s) or self._pending + num_tokens > self._max_pending:
                return "busy"
            self._pending += num_tokens
        return None

    def _made(self, example: Example) -> Example | None:
        began = self._thread_time()
        try:
            clean = redacted_example(example, self._encode, self._decode)
        finally:
            with self._lock:
                self._chooser.spent_s += self._thread_time() - began
            self._release(example)
        if clean is None:
            self._count(example.rule, "redacted")
        return clean

    def _release(self, example: Example) -> None:
        with self._lock:  # an example that cannot be made is tried twice
            self._pending = max(0, self._pending - len(example.prompt) - len(example.answer))

    def _count(self, rule: str, outcome: str) -> None:
        self._outcomes.labels(rule, outcome).inc()


def unfit(prompt: PromptEnded, example: Example, terms: LearningTerms) -> Outcome | None:
    """Return why nothing is to be learnt from an answer, whatever it shows; None: it may be."""
    request, params = prompt.request, prompt.request.params
    is_bound = request.grammar is not None or bool(params.logit_bias or params.allowed_token_ids)
    is_bound |= params.has_penalties or params.min_tokens > 0 or params.ignore_eos
    if prompt.end != "finished" or prompt.answer != "complete":
        return "unfinished"
    if is_bound or prompt.stats.continued or "content_filter" in prompt.finish_reasons:
        return "shaped"  # its tokens are not of the target's own distribution, or the client had not all of them
    if len(example.prompt) > terms.max_prompt_tokens:
        return "too_long"
    return "too_short" if len(example.answer) < LEAST_ANSWER else None


def redacted_example(example: Example, encode: Encode, decode: Decode) -> Example | None:
    """Return an example with marks in its prompt; None: something was found in the answer, or across their border.

    Takes milliseconds per thousand characters: not for an event loop.
    """
    whole = storable(decode((*example.prompt, *example.answer)))
    shown = redacted_text(whole)
    if shown == whole:
        return example
    prompt = storable(decode(example.prompt))
    clean = redacted_text(prompt)
    if not whole.startswith(prompt) or shown != clean + whole[len(prompt) :]:
        return None
    return replace(example, prompt=tuple(encode(clean)), was_redacted=True)
