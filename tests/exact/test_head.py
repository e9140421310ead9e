"""Draft heads through the whole engine: what they see of the target, and that their trees change no token."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prolepsis.core.plan import SpecPlan
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.base import Candidates, DraftHead
from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.step import Engine
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import random_head, random_levels
from tests.exact.oracle import CONFIG, PARAMS, PROMPT, Oracle, ask, at_any_price, plain, serve, target
from tests.fakes import outputs, terminals

pytestmark = NEEDS_KERNELS


def with_head(head: DraftHead, threads: int = 1, **changes: object) -> Engine:
    return at_any_price(assemble(CONFIG.model_copy(update={"threads": threads, **changes}), target(threads), head=head))


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


def heads(threads: int) -> dict[str, DraftHead]:
    model = target(threads).model
    assert isinstance(model, NativeModel)
    config, weights = random_head(model.shape)
    return {  # the second is sure of itself, so that it drafts deep trees
        "random": NativeHead("random", config, weights, model),
        "peaked": NativeHead("peaked", config, replace(weights, lm_head=weights.lm_head * 40), model),
        "levelled": NativeHead(
            "levelled", config, replace(weights, lm_head=weights.lm_head * 10), model, random_levels(model.shape.hidden)
        ),
    }


@pytest.mark.parametrize(
    ("kind", "memory", "threads"), [("random", "1MiB", 1), ("peaked", "192KiB", 1), ("levelled", "192KiB", 2)]
)
def test_any_head_beside_any_neighbours_changes_nothing(kind: str, memory: str, threads: int) -> None:
    for plan in (SpecPlan(fixed_depth=6), SpecPlan()):
        engine = with_head(heads(threads)[kind], threads, kv_memory=memory)
        sources = [ask(name) for name in PARAMS]
        texts = outputs(serve(engine, *sources, ask("sampled", "three", n=3), plan=plan))
        assert {name: texts[name, 0] for name in PARAMS} == {name: plain(name)[0] for name in PARAMS}
        assert texts["three", 0] == plain("sampled")[0]
        assert len({tuple(texts["three", i]) for i in range(3)}) == 3


@pytest.mark.parametrize("kind", ["random", "levelled"])
def test_a_head_that_computes_no_numbers_changes_nothing(kind: str) -> None:
    model = target(1).model
    assert isinstance(model, NativeModel)
    config, weights = random_head(model.shape)
    damaged = replace(weights, norm=weights.norm * torch.nan)
    levels = random_levels(model.shape.hidden) if kind == "levelled" else None
    for plan in (SpecPlan(fixed_depth=6), SpecPlan()):
        engine = with_head(NativeHead(kind, config, damaged, model, levels))
        texts = outputs(serve(engine, *(ask(name) for name in PARAMS), plan=plan))
        assert {name: texts[name, 0] for name in PARAMS} == {name: plain(name)[0] for name in PARAMS}


def test_a_head_that_fails_now_and_then_costs_drafts_only() -> None:
    text = plain("greedy")[0]

    class Faulty(Oracle):
        """Raises in every second pass; what it is shown afterwards may have gaps."""

        num_passes = 0

        def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
            self.num_passes += 1
            if self.num_passes % 2 == 0:
                raise RuntimeError("a pass of the head failed")
            return self._after(batch, [()] * batch.num_tokens, count)

    head = Faulty([(*PROMPT, *text)])
    engine = with_head(head)
    events = serve(engine, ask("greedy"), plan=SpecPlan(fixed_depth=3))
    assert outputs(events)["greedy", 0] == text
    assert head.num_passes >= 2
    assert engine.speculation.proposers.failures["draft_head"] > 0
