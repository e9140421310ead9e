"""The answer to a prepared request: deltas for its client, and one account of it when it has ended."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import HTTPConnection

from prolepsis.control.web.errors import RequestAborted
from prolepsis.control.web.feature import announce_end, most_kept
from prolepsis.core.errors import GrammarFailed, InvalidGrammar, TokensOutOfPlace
from prolepsis.core.events import Aborted, Event, Failed, Terminal, Tokens
from prolepsis.core.messages import Abort
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.engine.text.stream import StopStrings
from prolepsis.server.admission.group import CachedAnswer, RequestGroup, replayed
from prolepsis.server.answering.account import PromptAccount, RequestAccount, about
from prolepsis.server.answering.answer_check import AnswerCheck
from prolepsis.server.answering.pacing import paced
from prolepsis.server.answering.stream import close, led, merged
from prolepsis.server.answering.usage import summed
from prolepsis.server.front.tracing import ANNOUNCED, ANSWER_ID, FAILED
from prolepsis.server.output.filtered import FilteredSample
from prolepsis.server.output.policy import AnswerFacts
from prolepsis.server.preparing.bodies import CompletionBody
from prolepsis.server.preparing.prepare import ModelParts
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import ChoiceText, Delta, Positions
from prolepsis.server.text.shown_tokens import ShownPrompt

Parts = AsyncGenerator[Delta | RequestStats, None]


async def answer(
    http: HTTPConnection, prepared: PreparedRequest, model: ModelParts, *, tells_start: bool = False
) -> Parts:
    """Yield the deltas of all samples, last the stats of the whole request; ending it early aborts the request.

    `tells_start`: an empty delta comes first, once the request leaves the queue.

    Raises what the engine or admission refuses or fails the request with. However it ends, `RequestEnded` is announced
    once.
    """
    http.scope["state"][ANSWER_ID] = prepared.answer_id
    account = RequestAccount(
        about(prepared),
        whole=not prepared.stream,
        check=partial(AnswerCheck.of, prepared),
        judge=model.speculation.health.judge_answer,
    )
    answering = _Answering(prepared, model, account, tells_start)
    stats, positions = list[RequestStats](), Positions()
    with model.admission.admit(http, prepared.requests, deterministic=prepared.may_be_stored) as group:
        streams = [answering.prompt(group, number) for number in range(len(prepared.requests))]
        parts = led(streams) if prepared.one_prefix else merged(streams)
        try:
            async for part in parts:
                if isinstance(part, Delta):
                    positions.check(part.index, part.position, part.num_tokens)
                    yield part
                else:
                    stats.append(part)
            await model.intake.round_robin.turn(account.about.tenant)  # a full batch may end in one step
        except BaseException as error:
            account.fail(error)
            http.scope["state"][FAILED] = True
            if isinstance(error, InvalidGrammar | GrammarFailed):
                error.param = prepared.asked.field or error.param
            raise
        finally:
            try:
                await parts.aclose()
            finally:
                http.scope["state"][ANNOUNCED] = True
                announce_end(model.features, account.ended())
    yield summed(stats)


class _Sample:
    """One sample on its way to the client: its text, and what the output policies let through."""

    def __init__(self, choice: ChoiceText, filtered: FilteredSample) -> None:
        self.choice = choice
        self.filtered = filtered

    async def take(self, event: Tokens) -> Delta | None:
        delta = self.choice.take(event)
        shown = None if delta is None else await self.filtered.take(delta)
        self.choice.finished |= self.filtered.stopped
        return shown


@dataclass(frozen=True, slots=True)
class _Answering:
    """One HTTP request that is answered."""

    prepared: PreparedRequest
    model: ModelParts
    account: RequestAccount
    tells_start: bool

    async def prompt(self, group: RequestGroup, number: int) -> Parts:
        """Yield one prompt's deltas, last its stats: everything that the engine generates for clients passes here."""
        client = self.model.client
        async with self.model.admission.start(group, number) as request:
            prompt = self.account.begin(request, group.items[number])
            samples, events = self._samples(number, request, prompt), self._events(request, prompt)
            try:
                if self.tells_start:
                    yield Delta(number * request.n, "", first=False)
                async for event in events:
                    if not request.paced:
                        prompt.see(event)
                    if isinstance(event, Tokens):
                        sample = samples[event.index]
                        delta = await sample.take(event)
                        if delta is not None:
                            delta = await prompt.sending(delta)
                            yield delta
                            prompt.sent(delta)
                        if sample.choice.finished and _is_over(samples, event):
                            client.send(Abort(request.request_id))
                    else:
                        stats = _stats_of(event, samples)
                        prompt.num_shown_tokens = stats.num_output_tokens
                        yield prompt.timed(prompt.delivery.filled(stats), self.account.about.arrived)
            except BaseException as error:
                prompt.fail(error)
                raise
            finally:
                if prompt.progress.ended is None:
                    client.send(Abort(request.request_id))
                await close(events)

    def _samples(self, number: int, request: GenerateRequest, prompt: PromptAccount) -> Sequence[_Sample]:
        model, body = self.model, self.prepared.body
        first, samples, shown = number * request.n, list[_Sample](), None
        skips = body.skip_special_tokens is not False
        if self.prepared.echoes or request.params.prompt_logprobs is not None:
            has_text, hides = self.prepared.echoes, skips
            if isinstance(body, CompletionBody) and body.echo and not isinstance(body.prompt[number], str):
                hides = body.skip_special_tokens is True  # what was given as tokens is echoed whole
            shown = ShownPrompt(request.prompt_token_ids, model.tokenizer, has_text=has_text, skip_special_tokens=hides)
        stop = StopStrings.of(request.params.stop)
        for index in range(first, first + request.n):
            pipeline = (
                model.output.pipeline(answer_facts(self.prepared, request, index)) if model.output.loaded else None
            )
            filtered = FilteredSample(pipeline, prompt.delivery.lost)
            choice = ChoiceText(
                index,
                request,
                model.tokenizer,
                stop,
                skip_special_tokens=skips,
                include_stop=bool(body.include_stop_str_in_output),
                prompt=shown,
                predict_s=self.prepared.predict_s,
            )
            samples.append(_Sample(choice, filtered))
        return samples

    def _events(self, request: GenerateRequest, prompt: PromptAccount) -> AsyncIterator[Event]:
        """Return the engine's events, or the stored answer's; paced events are observed when they arrive."""
        stored, model = prompt.progress.stored, self.model
        if stored is not None:
            events: AsyncIterator[Event] = _stored(stored, request.request_id)
        else:
            events = model.client.generate(prompt.keep(most_kept(model.features, self.account.about, request)))
        return paced(events, prompt.see) if request.paced else events


def answer_facts(prepared: PreparedRequest, request: GenerateRequest, index: int) -> AnswerFacts:
    """Return what output policies are told of one sample of a prepared request."""
    caller = prepared.context.caller
    return AnswerFacts(
        request_id=request.request_id,
        index=index,
        route=prepared.context.route,
        tenant=caller.tenant,
        tier=caller.tier,
        key_id=caller.key_id,
        model=prepared.body.model,
        structured=request.grammar is not None or bool(prepared.tools.callable),
    )


async def _stored(answer: CachedAnswer, request_id: str) -> AsyncGenerator[Event, None]:
    for event in replayed(answer, request_id):
        yield event


def _is_over(samples: Sequence[_Sample], event: Tokens) -> bool:
    """Return whether the client has had all that it will get, after an event of which the engine does not say so."""
    is_cut = event.finish_reason is None or any(sample.filtered.stopped for sample in samples)
    return is_cut and all(sample.choice.finished for sample in samples)


def _stats_of(event: Terminal, samples: Sequence[_Sample]) -> RequestStats:
    """Return the stats of a request whose text is complete, or raise what ended it before.

    Tokens after the one at which an output policy stopped an answer are not the client's.
    """
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Aborted) and not all(sample.choice.finished for sample in samples):
        raise RequestAborted(f"The request was aborted: {event.reason}.")
    if not all(sample.choice.finished for sample in samples):
        raise TokensOutOfPlace("the engine finished the request, and the end of a sample never came")
    if not any(sample.filtered.stopped for sample in samples):
        return event.stats
    num_tokens = sum(sample.filtered.num_tokens for sample in samples)
    return replace(event.stats, num_output_tokens=min(event.stats.num_output_tokens, num_tokens))
