"""Draft heads through the whole engine: what they see of the target, and that their trees change no token."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
import torch
from torch import Tensor

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Event, Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.sampling_params import SamplingParams
from prolepsis.engine.build import assemble
from prolepsis.engine.step import Engine
from prolepsis.models.batch import Batch, SequenceInput, pack
from prolepsis.models.draft_head import Candidates, DraftHead, HeadInfo
from prolepsis.models.lean_shape import LeanShape
from prolepsis.models.load import LoadedModel
from prolepsis.models.native import NativeModel
from prolepsis.models.native_head import NativeHead
from prolepsis.models.plain_cache import LayerKV, PlainCache
from prolepsis.models.protocol import KVCache
from prolepsis.models.tokenizer import Tokenizer
from prolepsis.models.weights import open_checkpoint
from tests.fakes import Letters, drain, outputs, submit, terminals
from tests.models.heads import random_head
from tests.models.kernels import why_not
from tests.models.tiny import save_tiny

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native forward here: {why_not()}")

CONFIG = EngineConfig(
    kv_memory="192KiB", max_model_len=192, max_step_tokens=48, max_requests=6, strict="off", threads=2, proposers=()
)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=70, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=70, seed=11, ignore_eos=True),
    "truncated": SamplingParams(temperature=0.8, top_k=9, top_p=0.9, max_tokens=70, seed=5, ignore_eos=True),
    "ends": SamplingParams(max_tokens=70, stop_token_ids=tuple(range(20, 24)), seed=3, ignore_eos=True),
}
PROMPT = tuple(3 + (7 * i) % 150 for i in range(75))
TAPS = (0, 1, 2)


@cache
def target() -> LoadedModel:
    with TemporaryDirectory() as folder:
        save_tiny(Path(folder), "llama", {"head_dim": 32})
        checkpoint = open_checkpoint(Path(folder), torch.bfloat16)
        model = NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", threads=2)
    return LoadedModel(model, cast(Tokenizer, Letters()), "tiny", "tiny")


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
def plain(name: str, n: int = 1) -> list[list[int]]:
    texts = outputs(serve(assemble(CONFIG, target()), ask(name, n=n)))
    return [texts[name, i] for i in range(n)]


class Oracle:
    """A head that knows each text by what it has read of it, and proves that it is shown the target's hidden states."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.texts = [tuple(text) for text in texts]
        self.num_checked = 0
        self._kv = [LayerKV(1, 2, 2)]
        self._seen: dict[tuple[int, ...], Tensor] = {}

    @property
    def info(self) -> HeadInfo:
        size = len(TAPS) * 64
        return HeadInfo("oracle", TAPS, size, 160, page_bytes=256, weight_bytes=0)

    def make_cache(self, num_pages: int) -> KVCache:
        return PlainCache(self._kv, num_pages, torch.float32, torch.device("cpu"))

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        for t, (token, position) in enumerate(zip(batch.token_ids.tolist(), batch.positions.tolist(), strict=True)):
            texts = [text for text in self.texts if len(text) > position and text[position] == token]
            assert texts, "a committed token is one of a text"
            expected = [features_of(text)[position - 1] if position else torch.zeros(192) for text in texts]
            assert any(torch.equal(features[t].float(), e.float()) for e in expected), f"slot {position}"
            self.num_checked += 1
        return self._after(batch, count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        return self._after(batch, count)

    def _after(self, batch: Batch, count: int) -> Candidates:
        """The tokens that follow the rows' positions in the texts, then others; every seventh position is wrong."""
        rows = batch.logit_rows.tolist()
        tokens: list[list[int]] = []
        for position in (int(batch.positions[row]) for row in rows):
            right = dict.fromkeys(text[position + 1] for text in self.texts if len(text) > position + 1)
            rest = [token for token in range(160) if token not in right]
            tokens.append([*right, *rest][:count] if position % 7 else rest[:count])
        logprobs = torch.tensor([0.6, 0.2, 0.1]).log().tolist() + [-6.0] * (count - 3)
        return Candidates(torch.tensor(tokens), torch.tensor([logprobs] * len(rows)), torch.zeros(len(rows), 64))


@cache
def features_of(tokens: tuple[int, ...]) -> Tensor:
    model = target().model
    assert isinstance(model, NativeModel)
    pages = list(range(-(-len(tokens) // 32)))
    batch = pack([SequenceInput(list(tokens), 0, pages)])
    return model.forward_features(batch, model.make_cache(len(pages)), TAPS)[1]


def with_head(head: DraftHead, **changes: object) -> Engine:
    return assemble(CONFIG.model_copy(update=changes), target(), head=head)


@pytest.mark.parametrize("name", PARAMS)
def test_a_head_that_is_mostly_right_sees_true_features_and_changes_nothing(name: str) -> None:
    text = plain(name)[0]
    oracle = Oracle([(*PROMPT, *text)])
    events = serve(with_head(oracle), ask(name), plan=SpecPlan(fixed_depth=6))
    assert outputs(events)[name, 0] == text
    (end,) = terminals(events).values()
    assert end.stats.num_accepted > 20, "drafts were accepted"
    assert oracle.num_checked >= len(PROMPT) + 30


def test_prefix_hits_go_on_from_the_features_of_the_page_before() -> None:
    texts = {name: plain(name)[0] for name in ("greedy", "sampled")}
    oracle = Oracle([(*PROMPT, *text) for text in texts.values()])
    engine = with_head(oracle, kv_memory="1MiB")
    for name, text in texts.items():
        events = serve(engine, ask(name), plan=SpecPlan(fixed_depth=6))
        assert outputs(events)[name, 0] == text
    (end,) = terminals(events).values()
    assert end.stats.num_cached_tokens >= 64, "the second request found the first one's pages"


def heads() -> dict[str, DraftHead]:
    model = target().model
    assert isinstance(model, NativeModel)
    config, weights = random_head(model.shape)
    return {  # the second is sure of itself, so that it drafts deep trees
        "random": NativeHead("random", config, weights, model),
        "peaked": NativeHead("peaked", config, replace(weights, lm_head=weights.lm_head * 40), model),
    }


@pytest.mark.parametrize(("kind", "memory"), [("random", "1MiB"), ("peaked", "192KiB")])
def test_any_head_beside_any_neighbours_changes_nothing(kind: str, memory: str) -> None:
    for plan in (SpecPlan(fixed_depth=6), SpecPlan()):
        engine = with_head(heads()[kind], kv_memory=memory)
        sources = [ask(name) for name in PARAMS]
        texts = outputs(serve(engine, *sources, ask("sampled", "three", n=3), plan=plan))
        assert {name: texts[name, 0] for name in PARAMS} == {name: plain(name)[0] for name in PARAMS}
        assert texts["three", 0] == plain("sampled")[0]
        assert len({tuple(texts["three", i]) for i in range(3)}) == 3


def test_a_head_that_fails_now_and_then_costs_drafts_only() -> None:
    text = plain("greedy")[0]

    class Faulty(Oracle):
        """Raises in every fifth pass; what it is shown afterwards may have gaps."""

        num_passes = 0

        def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
            self.num_passes += 1
            if self.num_passes % 5 == 0:
                raise RuntimeError("a pass of the head failed")
            return self._after(batch, count)

    head = Faulty([(*PROMPT, *text)])
    engine = with_head(head)
    events = serve(engine, ask("greedy"), plan=SpecPlan(fixed_depth=3))
    assert outputs(events)["greedy", 0] == text
    assert head.num_passes >= 5
    assert engine.speculation.proposers.failures["draft_head"] > 0
