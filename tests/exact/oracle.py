"""A tiny target on the native forward, and a head that proves what it is shown and what it reads."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch import Tensor

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Event, Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.build import assemble
from prolepsis.engine.drafting.explore import Explore, Kind
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.base import Candidates, HeadInfo
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.models.protocol import Batch, KVCache, SequenceInput, pack
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.step import Engine
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.tiny import save_tiny
from tests.fakes import Letters, TableCache, drain, outputs, slot_of, submit, terminals

CONFIG = EngineConfig(
    kv_memory="192KiB", max_model_len=192, max_step_tokens=48, max_requests=6, strict="off", threads=1, proposers=()
)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=70, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=70, seed=11, ignore_eos=True),
    "truncated": SamplingParams(temperature=0.8, top_k=9, top_p=0.9, max_tokens=70, seed=5, ignore_eos=True),
    "ends": SamplingParams(max_tokens=70, stop_token_ids=tuple(range(20, 24)), seed=3, ignore_eos=True),
}
PROMPT = tuple(3 + (7 * i) % 150 for i in range(75))
AUX_LAYERS = (0, 1, 2)
HIDDEN = 64


@cache
def target(threads: int = 1) -> LoadedModel:
    with TemporaryDirectory() as folder:
        save_tiny(Path(folder), "llama", {"head_dim": 32})
        checkpoint = open_checkpoint(Path(folder), torch.bfloat16)
        model = NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", threads)
    return LoadedModel(model, cast(ModelTokenizer, Letters()), "tiny", "tiny", "tiny")


def at_any_price(engine: Engine) -> Engine:
    """Let an engine draft although a pass of a tiny model takes less time than drafts for it."""
    engine.speculation.decisions.payback = None
    engine.speculation.proposers.explore = explore = Generous()
    for effort in engine.speculation.proposers._efforts.values():
        effort._explore = explore
    return engine


class Generous(Explore):
    """Lets a costly proposer draft at each step, however long a busy machine made its first calls."""

    def grant(self, kind: Kind, cost: float) -> bool:
        return True


def serve(engine: Engine, *sources: GenerateRequest, plan: SpecPlan | None = None) -> list[Event]:
    engine.send(ApplyPlan(plan or SpecPlan()))
    submit(engine, *sources)
    events = drain(engine)
    assert all(isinstance(end, Finished) for end in terminals(events).values())
    engine.scheduler.check()
    return events


def ask(name: str, request_id: str | None = None, n: int = 1, prompt: Sequence[int] = PROMPT) -> GenerateRequest:
    return GenerateRequest(request_id or name, tuple(prompt), PARAMS[name], n=n)


@cache
def plain(name: str, n: int = 1, prompt: tuple[int, ...] = PROMPT) -> list[list[int]]:
    texts = outputs(serve(assemble(CONFIG, target()), ask(name, n=n, prompt=prompt)))
    return [texts[name, i] for i in range(n)]


class Oracle:
    """A head that knows each text by what it has read of it.

    It proves that it is shown the target's hidden states, and that all slots it reads hold what it wrote itself of the
    text it continues with: from the text's start, or from a page boundary on, where it did not see what is before.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        name: str = "oracle",
        aux_layers: tuple[int, ...] = AUX_LAYERS,
        *,
        page_bytes: int = 256,
    ) -> None:
        self.texts = [tuple(text) for text in texts]
        self.num_checked = 0
        self._aux_layers = aux_layers
        self._info = HeadInfo(name, aux_layers, len(aux_layers) * HIDDEN, page_bytes=page_bytes, weight_bytes=0)

    @property
    def info(self) -> HeadInfo:
        return self._info

    def make_cache(self, num_pages: int) -> KVCache:
        return TableCache(num_pages)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        zeros = torch.zeros(self._info.feature_size)
        for t, (token, position) in enumerate(zip(batch.token_ids.tolist(), batch.positions.tolist(), strict=True)):
            places = [
                (text, base + position)
                for text in self.texts
                for base in range(0, len(text) - position, PAGE_SIZE)
                if text[base + position] == token
            ]
            assert places, "a committed token is one of a text"
            expected = [features_of(text, self._aux_layers)[place - 1] for text, place in places if place]
            expected += [zeros] if position == 0 else []
            assert any(torch.equal(features[t].float(), e.float()) for e in expected), f"slot {position}"
            self.num_checked += 1
        return self._after(batch, self._contexts(batch, cache), count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        return self._after(batch, self._contexts(batch, cache), count)

    def _contexts(self, batch: Batch, cache: KVCache) -> list[tuple[int, ...]]:
        """Check the slots before the batch's tokens, write those of its tokens; return what each of these follows."""
        assert isinstance(cache, TableCache)
        contexts: list[tuple[int, ...]] = []
        tokens, positions = batch.token_ids.tolist(), batch.positions.tolist()
        for s, (first, end) in enumerate(pairwise(batch.starts.tolist())):
            cached, pages = int(batch.cached[s]), batch.pages[s].tolist()
            read = [cache.slots[slot_of(pages, i)] for i in range(cached)]
            assert [position for _, position in read] == list(range(cached)), "slots that it wrote"
            before = tuple(token for token, _ in read)
            assert self._places(before), "of one text"
            for i in range(first, end):
                cache.slots[slot_of(pages, cached + i - first)] = (tokens[i], positions[i])
                parent = int(batch.parents[i])
                contexts.append((*(contexts[first + parent] if parent >= 0 else before), tokens[i]))
        return contexts

    def _places(self, context: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
        """Return where in which texts `context` ends, if it begins at a page boundary of theirs."""
        size = len(context)
        return [
            (text, base + size)
            for text in self.texts
            for base in range(0, len(text) - size + 1, PAGE_SIZE)
            if text[base : base + size] == context
        ]

    def _after(self, batch: Batch, contexts: Sequence[tuple[int, ...]], count: int) -> Candidates:
        """The tokens that follow the rows' contexts in the texts, then others; every seventh position is wrong."""
        rows = batch.logit_rows.tolist()
        tokens: list[list[int]] = []
        for context in (contexts[row] for row in rows):
            length = len(context)
            right = {text[place] for text, place in self._places(context) if place < len(text)}
            rest = [token for token in range(160) if token not in right]
            tokens.append([*right, *rest][:count] if (length - 1) % 7 else rest[:count])
        logprobs = torch.tensor([0.6, 0.2, 0.1]).log().tolist() + [-6.0] * (count - 3)
        return Candidates(torch.tensor(tokens), torch.tensor([logprobs] * len(rows)), torch.zeros(len(rows), HIDDEN))


@cache
def features_of(tokens: tuple[int, ...], aux_layers: tuple[int, ...] = AUX_LAYERS) -> Tensor:
    model = target().model
    assert isinstance(model, NativeModel)
    pages = list(range(-(-len(tokens) // 32)))
    batch = pack([SequenceInput(list(tokens), 0, pages)])
    return model.forward_features(batch, model.make_cache(len(pages)), aux_layers)[1]
