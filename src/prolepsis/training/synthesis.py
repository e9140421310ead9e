"""The target writes its own training text: user turns, then its answers, many at once through the engine.

A document takes two requests: `turn-N`, in which the target completes the planned user turn, and `answer-N`, its answer
under the chat template if the model has one, whose hidden states are recorded.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Aborted, Event, Failed, Finished, Tokens
from prolepsis.core.messages import Abort, Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.build import assemble
from prolepsis.engine.drafting.proposer import HiddenStates
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.step import Engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.training.data import DataManifest, ShardWriter, TrainingDocument, shards_of
from prolepsis.training.prompts import (
    OwnPrompt,
    PlannedPrompt,
    PromptPlanner,
    turn_prefix,
    whole_sentences,
    whole_turn,
    words_of,
)

LOOP_CHECK = 16
"""Tokens between two checks for a loop."""
MAX_PERIOD = 80
MIN_REPEATS = 3
MIN_REPEATED = 24
"""Tokens that repeat the period before them; a shorter repetition is a refrain, not a loop."""
MIN_TURN = 8
"""Characters of the shortest user turn that is answered."""


@dataclass(frozen=True, slots=True)
class SynthesisLimits:
    """Requests at once, and the longest texts, in tokens."""

    concurrency: int = 48
    turn_tokens: int = 80
    answer_tokens: int = 256
    prompt_tokens: int = 1024

    @property
    def context(self) -> int:
        """Longest prompt and answer together."""
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True, slots=True)
class DataRequest:
    """The text to generate."""

    folder: Path
    tokens: int  # prompt and response tokens with features, over all shards of the folder
    aux_layers: tuple[int, ...]
    prompts: Sequence[OwnPrompt] = ()  # the user's own prompts; they come first
    seed: int = 0
    limits: SynthesisLimits = field(default_factory=SynthesisLimits)
    tokens_per_shard: int = 65536


def generate(config: EngineConfig, request: DataRequest, progress: Callable[[int], None]) -> None:
    """Write shards until the folder holds `request.tokens`, existing ones included; `progress` receives that sum."""
    if sum(shard.num_tokens for shard in shards_of(request.folder)) >= request.tokens:
        progress(request.tokens)
        return
    engine_config = plain(config, request.limits.context)
    loaded = load_model(engine_config)
    recorder = FeatureRecorder(request.aux_layers)
    engine = assemble(engine_config, loaded, consumers=[recorder])
    words = words_of(loaded.tokenizer, loaded.model.info.vocab_size)
    planner = PromptPlanner(request.seed, request.prompts, words)
    synthesis = Synthesiser(engine, loaded.tokenizer, recorder, planner, request.limits)
    numbers = missing_numbers(request.folder, itertools.count())
    write_shards(request, manifest_of(loaded, request), synthesis.documents(numbers), progress)


def missing_numbers(folder: Path, numbers: Iterable[int]) -> Iterator[int]:
    """Yield those of `numbers` whose documents the shards in `folder` lack."""
    done = {number for shard in shards_of(folder) for number in shard.numbers}
    return (number for number in numbers if number not in done)


def write_shards(
    request: DataRequest, manifest: DataManifest, documents: Iterable[TrainingDocument], progress: Callable[[int], None]
) -> None:
    """Write `documents` until the folder holds `request.tokens`, existing ones included."""
    writer = ShardWriter(request.folder, manifest, tokens_per_shard=request.tokens_per_shard)
    total = sum(shard.num_tokens for shard in shards_of(request.folder))
    progress(total)
    for document in documents if total < request.tokens else ():
        total += writer.add(document)
        progress(total)
        if total >= request.tokens:
            break
    writer.flush()


def plain(config: EngineConfig, context: int) -> EngineConfig:
    """Return `config` for generating: without drafts, and without the prefix cache, so that every token is computed."""
    changes = {"num_speculative_tokens": 0, "prefix_cache": False, "strict": "off", "max_model_len": context}
    return config.model_copy(update=changes)


def manifest_of(loaded: LoadedModel, request: DataRequest) -> DataManifest:
    """Return the origin of the shards."""
    info = loaded.model.info
    hidden = getattr(loaded.model, "shape").hidden  # noqa: B009  every forward with hidden states has a shape
    return DataManifest(info.name, loaded.identity, request.aux_layers, hidden, info.vocab_size)


class FeatureRecorder:
    """A `HiddenStateConsumer` that keeps the hidden states of watched sequences: training needs no second pass."""

    def __init__(self, aux_layers: Sequence[int]) -> None:
        self.aux_layers = tuple(aux_layers)
        self._kept: dict[str, list[Tensor]] = {}
        self._lengths: dict[str, int] = {}

    def watch(self, key: str) -> None:
        """Keep the features of the sample `key` from now on."""
        self._kept[key], self._lengths[key] = [], 0

    def take(self, states: Sequence[HiddenStates]) -> None:
        """Keep the features of a step; a sample that starts over replaces its earlier ones."""
        for part in states:
            key = part.sequence.key
            if key not in self._kept:
                continue
            if part.start == 0:
                self.watch(key)
            assert part.start == self._lengths[key], "features of a sample come in order and without gaps"
            self._kept[key].append(part.features.clone())  # a view would keep the features of the whole step
            self._lengths[key] += len(part.tokens)

    def collect(self, key: str) -> Tensor:  # [tokens computed, aux_layers * hidden] bfloat16
        """Return the features of `key` and forget it."""
        del self._lengths[key]
        return torch.cat(self._kept.pop(key))

    def drop(self, key: str) -> None:
        """Forget `key`."""
        self._kept.pop(key, None)
        self._lengths.pop(key, None)


@dataclass(slots=True)
class Writing:
    """A request in flight."""

    plan: PlannedPrompt
    prompt: list[int]
    user: str  # the user turn written so far
    answering: bool
    tokens: list[int] = field(default_factory=list)
    kept: int | None = None  # tokens to keep if a loop was found


class Synthesiser:
    """Keeps the engine busy with prompts and yields each document as it ends."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: ModelTokenizer,
        recorder: FeatureRecorder,
        planner: PromptPlanner,
        limits: SynthesisLimits,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._recorder = recorder
        self._planner = planner
        self._limits = limits
        self._live: dict[str, Writing] = {}
        self._seen: set[str] = set()

    def documents(self, numbers: Iterator[int]) -> Iterator[TrainingDocument]:
        """Yield the documents of the prompts `numbers`, in the order in which they end."""
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

    def _begin(self, plan: PlannedPrompt) -> None:
        if not plan.open:
            self._answer(plan, plan.opener)
            return
        prompt = turn_prefix(self._tokenizer, plan.system, plan.opener)
        params = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=self._limits.turn_tokens, seed=plan.number)
        self._submit(f"turn-{plan.number}", Writing(plan, prompt, plan.opener, answering=False), params)

    def _answer(self, plan: PlannedPrompt, user: str) -> None:
        """Submit the answer, except to a user turn that is too short, too long or a duplicate."""
        user = user.strip()
        prompt = whole_turn(self._tokenizer, plan.system, user)
        if len(user) < MIN_TURN or user in self._seen or len(prompt) > self._limits.prompt_tokens:
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

    def _take(self, event: Event) -> TrainingDocument | None:
        writing = self._live.get(event.request_id)
        if writing is None:
            return None
        if isinstance(event, Tokens):
            before = len(writing.tokens)
            writing.tokens += event.token_ids
            is_due = not event.finish_reason and before // LOOP_CHECK != len(writing.tokens) // LOOP_CHECK
            if is_due and (end := loop_end(writing.tokens)) is not None:
                writing.kept = end
                self._engine.send(Abort(event.request_id, "loop"))
            return None
        del self._live[event.request_id]
        if isinstance(event, Failed):
            self._recorder.drop(f"{event.request_id}/0")
            return None
        assert isinstance(event, Finished | Aborted)
        if writing.answering:
            return self._document(event.request_id, writing)
        written = self._tokenizer.decode(writing.tokens)
        if len(writing.tokens) >= self._limits.turn_tokens:
            written = whole_sentences(written)
        self._answer(writing.plan, writing.user.rstrip(" ") + written)
        return None

    def _document(self, request_id: str, writing: Writing) -> TrainingDocument | None:
        features = self._recorder.collect(f"{request_id}/0")
        start = len(writing.prompt)
        whole = [*writing.prompt, *writing.tokens]
        length = min(len(features), len(whole) if writing.kept is None else start + writing.kept)
        if length - start < 2:
            return None
        self._planner.add_passage(writing.plan.kind, self._tokenizer.decode(writing.tokens))
        return TrainingDocument(
            number=writing.plan.number,
            kind=writing.plan.kind,
            greedy=writing.plan.temperature == 0.0,
            tokens=torch.tensor(whole[:length], dtype=torch.int32),
            response_start=start,
            features=features[:length],
        )


def loop_end(tokens: Sequence[int]) -> int | None:
    """Return the number of tokens to keep of a text whose end repeats itself, as small models' greedy texts do.

    A loop is a tail of at least `MIN_REPEATS` equal stretches. One repetition is kept, since the target does loop.
    Returns None for a text without a loop.
    """
    for period in range(1, min(MAX_PERIOD, len(tokens) // MIN_REPEATS) + 1):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        if same >= max((MIN_REPEATS - 1) * period, MIN_REPEATED):
            first = len(tokens) - same - period
            return min(len(tokens), first + max(2 * period, MIN_REPEATED))
    return None
