"""One conversation as training sees it: what was asked, what the target said, and its hidden states."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prolepsis.core.events import Aborted, Event, Failed, Finished, Tokens
from prolepsis.core.messages import Abort, Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.step import Engine
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.spec.proposer import Shown
from prolepsis.train.loops import loop_end
from prolepsis.train.prompts import Planner, PromptPlan, chat, turn_prefix, whole_sentences


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens of a prompt and its response, as far as the target computed them (all but the last one emitted)."""

    number: int
    """Of the prompt in its run: the split and resumption go by it."""
    kind: str
    greedy: bool
    tokens: Tensor  # [n] int32
    response_start: int
    features: Tensor  # [n, taps * hidden] bfloat16


class Recorder:
    """A `FeatureConsumer` that keeps what was announced with `watch` until it is taken or dropped."""

    def __init__(self, taps: Sequence[int]) -> None:
        self.taps = tuple(taps)
        self._kept: dict[str, list[Tensor]] = {}
        self._lengths: dict[str, int] = {}

    def watch(self, key: str) -> None:
        """Keep the features of the sample `key` from now on."""
        self._kept[key], self._lengths[key] = [], 0

    def take(self, shown: Sequence[Shown]) -> None:
        """Keep what a step computed; a sample that starts over replaces what was kept of it."""
        for part in shown:
            key = part.sample.key
            if key not in self._kept:
                continue
            if part.start == 0:
                self.watch(key)
            assert part.start == self._lengths[key], "features of a sample come in order and without gaps"
            self._kept[key].append(part.features.clone())  # a view would keep the features of the whole step
            self._lengths[key] += len(part.tokens)

    def collect(self, key: str) -> Tensor:  # [tokens computed, taps * hidden] bfloat16
        """Return what was kept of `key` and forget it."""
        del self._lengths[key]
        return torch.cat(self._kept.pop(key))

    def drop(self, key: str) -> None:
        """Forget `key`."""
        self._kept.pop(key, None)
        self._lengths.pop(key, None)


LOOP_CHECK = 16
"""Tokens between two looks for a loop."""
MIN_TURN = 8
"""Characters of the shortest user turn that is answered."""


@dataclass(frozen=True, slots=True)
class SynthesisLimits:
    """How much is written at once, and how long a text may become."""

    concurrency: int = 48
    turn_tokens: int = 80
    answer_tokens: int = 256
    prompt_tokens: int = 1024


@dataclass(slots=True)
class Writing:
    """A request on its way."""

    plan: PromptPlan
    prompt: list[int]
    user: str
    """The user turn, or what there is of it yet."""
    answering: bool
    tokens: list[int] = field(default_factory=list)
    kept: int | None = None
    """Tokens to keep, where a loop was found."""


class Synthesiser:
    """Keeps the engine busy with prompts `first`, `first + stride`, ... and yields each document as it ends."""

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, recorder: Recorder, planner: Planner, limits: SynthesisLimits
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._planner = planner
        self._limits = limits
        self._live: dict[str, Writing] = {}
        self._seen: set[str] = set()
        self.num_dropped = 0
        """Prompts without a document: turns too short or too long, duplicates, failures."""
        self.num_loops = 0
        """Answers ended where they began to loop."""

    def documents(self, numbers: Iterator[int]) -> Iterator[Document]:
        """Yield documents of the prompts `numbers`, in the order in which they end, while there are any."""
        numbers = iter(numbers)
        while True:
            for number in itertools.islice(numbers, self._limits.concurrency - len(self._live)):
                self._begin(self._planner.plan(number))
            if not self._live:
                return
            for event in self._engine.step():
                document = self._take(event)
                if document is not None:
                    yield document

    def _begin(self, plan: PromptPlan) -> None:
        if not plan.open:
            self._answer(plan, plan.opener)
            return
        prompt = turn_prefix(self._tokenizer, plan.system, plan.opener)
        params = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=self._limits.turn_tokens, seed=plan.number)
        self._submit(f"turn-{plan.number}", Writing(plan, prompt, plan.opener, answering=False), params)

    def _answer(self, plan: PromptPlan, user: str) -> None:
        user = user.strip()
        prompt = self._tokenizer.apply_chat_template(chat(plan.system, user))
        if len(user) < MIN_TURN or user in self._seen or len(prompt) > self._limits.prompt_tokens:
            self.num_dropped += 1
            return
        self._seen.add(user)
        params = SamplingParams(
            temperature=plan.temperature, max_tokens=self._limits.answer_tokens, seed=plan.number + 2**32
        )
        request_id = f"answer-{plan.number}"
        self._recorder.watch(f"{request_id}/0")
        self._submit(request_id, Writing(plan, prompt, user, answering=True), params)

    def _submit(self, request_id: str, writing: Writing, params: SamplingParams) -> None:
        self._live[request_id] = writing
        request = GenerateRequest(request_id, tuple(writing.prompt), params)
        self._engine.send(Submit(request, time.monotonic()))

    def _take(self, event: Event) -> Document | None:
        writing = self._live.get(event.request_id)
        if writing is None:
            return None
        if isinstance(event, Tokens):
            self._grow(event, writing)
            return None
        del self._live[event.request_id]
        if isinstance(event, Failed):
            self._recorder.drop(f"{event.request_id}/0")
            self.num_dropped += 1
            return None
        assert isinstance(event, Finished | Aborted)
        if writing.answering:
            return self._document(event.request_id, writing)
        written = self._tokenizer.decode(writing.tokens)
        if len(writing.tokens) >= self._limits.turn_tokens:
            written = whole_sentences(written)
        self._answer(writing.plan, writing.user.rstrip(" ") + written)
        return None

    def _grow(self, event: Tokens, writing: Writing) -> None:
        before = len(writing.tokens)
        writing.tokens += event.token_ids
        if event.finish_reason or before // LOOP_CHECK == len(writing.tokens) // LOOP_CHECK:
            return
        if (end := loop_end(writing.tokens)) is not None:
            writing.kept = end
            self.num_loops += 1
            self._engine.send(Abort(event.request_id, "loop"))

    def _document(self, request_id: str, writing: Writing) -> Document | None:
        features = self._recorder.collect(f"{request_id}/0")
        start = len(writing.prompt)
        whole = [*writing.prompt, *writing.tokens]
        length = min(len(features), len(whole) if writing.kept is None else start + writing.kept)
        if length - start < 2:
            self.num_dropped += 1
            return None
        self._planner.learn(writing.plan.kind, self._tokenizer.decode(writing.tokens))
        return Document(
            number=writing.plan.number,
            kind=writing.plan.kind,
            greedy=writing.plan.temperature == 0.0,
            tokens=torch.tensor(whole[:length], dtype=torch.int32),
            response_start=start,
            features=features[:length],
        )
