"""Answers to the same requests, plain and speculated in turns: whether they are the same, and how long they took."""

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import ceil

import httpx2

from prolepsis.core.ask import TimedAnswer, ask
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpecMode, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.lab.check.verdict import LEAST, AnswerComparison
from prolepsis.lab.exact import FirstDifference, classified, difference
from prolepsis.lab.measure.arrivals import in_flight
from prolepsis.lab.measure.prompts import EncodedPrompt
from prolepsis.remote.verify_events import refusal_of

AT_ONCE = 4
_TEMPERATURE = 0.8  # of prompts that come again; the first time they are answered greedily
_FEWEST, _MOST = 48, 128  # tokens of an answer
_DECODED = 3  # times that a prompt is decoded, where some at once count as half


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A sample, answered greedily in its first round, sampled with a seed of its own in each further one."""

    sample: EncodedPrompt
    round: int = 0
    max_tokens: int = _FEWEST

    def request(self, mode: SpecMode, at_once: int) -> GenerateRequest:
        """Return its request to an engine; caches and indexes see those of its mode, load and round."""
        scope, temperature = f"check {mode} {at_once} {self.round}", _TEMPERATURE if self.round else 0.0
        return GenerateRequest(
            request_id=f"{scope} {self.sample.category} {self.sample.id}",
            prompt_token_ids=self.sample.token_ids,
            params=SamplingParams(temperature=temperature, seed=self.round, max_tokens=self.max_tokens),
            cache_salt=scope,
            speculation=SpeculationChoice(mode),
        )


Answer = Callable[[CheckedRequest, SpecMode, int], Awaitable[TimedAnswer]]
"""Answers a case plainly ("off") or speculated ("auto"), with so many at once."""


def engine_answers(client: EngineClient) -> Answer:
    return lambda case, mode, at_once: ask(client, case.request(mode, at_once))


def server_answers(http: httpx2.AsyncClient, model: str, salt: str) -> Answer:
    """Return what asks a chat API; `salt` keeps away what earlier checks left in the server's caches."""

    async def answer(case: CheckedRequest, mode: SpecMode, at_once: int) -> TimedAnswer:
        request, began = case.request(mode, at_once), time.perf_counter()
        body = {
            "model": model,
            "messages": [{"role": "user", "content": case.sample.text}],
            **{name: getattr(request.params, name) for name in ("max_tokens", "temperature", "seed")},
            "cache_salt": f"{salt} {request.cache_salt}",
            "return_token_ids": True,
            "speculation": {"mode": mode, "metrics": True},
        }
        reply = await http.post("/v1/chat/completions", json=body)
        if reply.status_code != httpx2.codes.OK:
            raise refusal_of(reply)
        seconds, document = time.perf_counter() - began, reply.json()
        tokens, drafts = document["choices"][0]["token_ids"], document["metrics"]["speculative_decoding"]
        steps = RequestStats(num_steps=len(tokens) - drafts["num_accepted_draft_tokens"])
        return TimedAnswer(tuple(tokens), seconds, None, steps)

    return answer


def turns(samples: Sequence[EncodedPrompt], max_tokens: int) -> Iterator[tuple[str, list[CheckedRequest]]]:
    """Yield what is answered at once, with a name of its prompts, for ever: each alone, then some of each class."""
    classes = dict.fromkeys(sample.category for sample in samples)
    own = [[sample for sample in samples if sample.category == name] for name in classes]

    def cases(group: Sequence[EncodedPrompt], number: int, size: int) -> list[CheckedRequest]:
        places = range(number * size, (number + 1) * size)
        return [CheckedRequest(group[place % len(group)], place // len(group), max_tokens) for place in places]

    for number in count():
        for group in own:
            yield from ((case.sample.id, [case]) for case in cases(group, number, min(AT_ONCE, len(group))))
        for group in own:
            yield f"group {number % ceil(len(group) / AT_ONCE)}", cases(group, number, AT_ONCE)


def answer_length(seconds: float, tokens_per_second: float, sizes: Sequence[int]) -> int:
    """Return the most tokens of an answer with which `LEAST` prompts of each class, if there are, can be compared."""
    num_decodings = _DECODED * sum(min(size, LEAST) for size in sizes)
    return max(_FEWEST, min(_MOST, int(seconds * tokens_per_second / num_decodings)))


@dataclass(slots=True)
class ComparedAnswers:
    """Comparisons so far, and the answers that differ; `client` says of which class a difference is."""

    answer: Answer
    client: EngineClient | None = None
    comparisons: list[AnswerComparison] = field(default_factory=list)
    differences: list[tuple[str, FirstDifference]] = field(default_factory=list)  # with the prompt's id
    num_answers: int = 0  # that were held against a plain one
    num_looping: int = 0  # prompts whose plain answer ends in a loop, which is easy to guess
    _alone: dict[CheckedRequest, TimedAnswer] = field(default_factory=dict)  # plain answers
    _chance: random.Random = field(default_factory=lambda: random.Random(0))

    async def warm_up(self, samples: Sequence[EncodedPrompt]) -> float:
        """Let the engine learn what drafts are worth, from a prompt of each class; return plain tokens a second."""
        classes = {sample.category: CheckedRequest(sample) for sample in samples}
        await in_flight([partial(self.answer, case, "auto", 0) for case in classes.values()], AT_ONCE)
        shortest = min(classes.values(), key=lambda case: len(case.sample.token_ids) or len(case.sample.text))
        plain = await self.answer(shortest, "off", 0)
        return len(plain.token_ids) / plain.seconds

    async def compare(self, unit: str, cases: Sequence[CheckedRequest]) -> None:
        """Answer cases plainly and speculated, in an order by chance."""
        answers, walls, at_once = dict[SpecMode, list[TimedAnswer]](), dict[SpecMode, float](), len(cases)
        modes: list[SpecMode] = ["off", "auto"]
        for mode in self._chance.sample(modes, 2):
            began = time.perf_counter()
            answers[mode] = await in_flight([partial(self.answer, case, mode, at_once) for case in cases], at_once)
            walls[mode] = time.perf_counter() - began
        comparison = AnswerComparison(
            traffic_class=cases[0].sample.category,
            at_once=at_once,
            unit=unit,
            num_tokens=sum(len(answer.token_ids) for answer in answers["off"]),
            num_steps=sum(answer.stats.num_steps for answer in answers["auto"]),
            plain_s=walls["off"],
            speculated_s=walls["auto"],
        )
        self.comparisons.append(comparison)
        for case, plain, speculated in zip(cases, answers["off"], answers["auto"], strict=True):
            if case not in self._alone and self.client is not None:
                from prolepsis.training.synthesis import loop_end  # asks for torch, which a server's client may lack

                self.num_looping += loop_end(plain.token_ids) is not None
            alone = self._alone.setdefault(case, plain)
            await self._hold(case, f"speculated, {at_once} at once", alone, speculated)
            if alone is not plain:
                await self._hold(case, f"plain, {at_once} at once", alone, plain)

    async def _hold(self, case: CheckedRequest, run: str, plain: TimedAnswer, answer: TimedAnswer) -> None:
        self.num_answers += 1
        if (first := difference(run, plain.token_ids, answer.token_ids)) is not None:
            request = case.request("off", -len(self.differences))  # of a scope of its own: nothing is reused
            if self.client is not None:
                first = await classified(self.client, request, answer.token_ids, first)
            self.differences.append((case.sample.id, first))
