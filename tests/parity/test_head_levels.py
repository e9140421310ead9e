"""Levels of a draft head: both forwards against the formulas of `models.head_levels`, written out."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.proposers.head_tree import (
    TREE_PARAMS,
    HeadPass,
    HeadTree,
    grow_in_one_call,
    grow_over_levels,
)
from prolepsis.engine.models.heads.base import SHORTLIST, Lookahead, TreeHead
from prolepsis.engine.models.heads.format import WEIGHTS, HeadWeights, load_head
from prolepsis.engine.models.heads.lean import LeanHead
from prolepsis.engine.models.heads.levels import LEVELS, LevelWeights, load_levels, save_levels
from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.protocol import Batch, SequenceInput, pack
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from tests.engine.drafting.sequences import FakeSequence
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import DRAFT_VOCAB, random_head, random_levels, save_random_head
from tests.engine.models.tiny import close, rounded

FORWARDS = ["lean", pytest.param("native", marks=NEEDS_KERNELS)]
COUNT, WIDTH, ROWS = 3, 64, 2
LENGTH = 20


class HeadCase:
    """A head with levels on a forward, and what it is made of in float32."""

    def __init__(self, forward: str) -> None:
        with rounded("llama", {"head_dim": 32}) as (_, checkpoint):
            shape = LeanShape.from_config(checkpoint.config)
            config, weights = random_head(shape, norm_output=False)  # so that the states given back are z
            levels = random_levels(shape.hidden, COUNT, WIDTH)
            self.embedding = checkpoint.tensor("model.embed_tokens.weight")
            self.head: NativeHead | LeanHead
            if forward == "native":
                self.head = NativeHead("head", config, weights, NativeModel(checkpoint, shape, "t", threads=2), levels)
            else:
                target = LeanModel(checkpoint, shape, "t", torch.device("cpu"))
                self.head = LeanHead("head", config, weights, target, levels)
        self.eps, self.hidden, self.vocab = shape.eps, shape.hidden, shape.vocab
        self.weights: HeadWeights = weights
        self.levels: LevelWeights = levels.to(torch.float32)

    def batch(self) -> tuple[Batch, Tensor]:
        """Two sequences; the first keeps its last row, so does the second."""
        generator = torch.Generator().manual_seed(4)
        tokens = torch.randint(3, self.vocab, (2, LENGTH), generator=generator).tolist()
        features = torch.randn(2 * LENGTH, 3 * self.hidden, generator=generator).bfloat16()
        features[[0, LENGTH]] = 0.0
        return pack([SequenceInput(tokens[0], 0, [0]), SequenceInput(tokens[1], 0, [2])]), features

    def norm(self, x: Tensor) -> Tensor:
        return x * (x.pow(2).mean() + self.eps).rsqrt() * self.weights.norm.float()

    def ahead(self, z: Tensor, level: int) -> Tensor:
        x = self.levels.enter[level] @ self.norm(z)
        return z + self.levels.leave[level] @ (x / (1 + torch.exp(-x)))

    def conditioned(self, z: Tensor, level: int, token: int) -> Tensor:
        p, e = self.ahead(z, level), self.embedding[token]
        x = self.levels.state @ self.norm(p) + self.levels.token @ (e * (e.pow(2).mean() + self.eps).rsqrt())
        return p + self.levels.out @ (x / (1 + torch.exp(-x)))

    def logits(self, state: Tensor) -> Tensor:
        return self.weights.lm_head.float() @ self.norm(state)


@cache
def head_case(forward: str) -> HeadCase:
    return HeadCase(forward)


def looked(case: HeadCase) -> Lookahead:
    batch, features = case.batch()
    return case.head.look_ahead(batch, case.head.make_cache(4), features, 6)


@pytest.mark.parametrize("forward", FORWARDS)
def test_the_first_level_is_that_of_a_pass_that_does_not_look_ahead(forward: str) -> None:
    case = head_case(forward)
    batch, features = case.batch()
    found, plain = looked(case), case.head.committed(batch, case.head.make_cache(4), features, 6)
    assert torch.equal(found.first.tokens, plain.tokens)
    torch.testing.assert_close(found.first.logprobs, plain.logprobs)
    torch.testing.assert_close(found.first.states, plain.states)


@pytest.mark.parametrize("forward", FORWARDS)
def test_states_and_shortlists_of_all_levels(forward: str) -> None:
    case = head_case(forward)
    found = looked(case)
    assert found.ahead.shape == (COUNT * ROWS, case.hidden)
    for level in range(COUNT):
        for row in range(ROWS):
            at = level * ROWS + row
            expected = case.ahead(found.first.states[row], level)
            close(found.ahead[at], expected, 0.04)
            close(found.entered[at], case.levels.state @ case.norm(expected), 0.04)
            logits = case.logits(expected)
            kept = logits[found.shortlist[at].long()]
            assert len(set(found.shortlist[at].tolist())) == min(SHORTLIST, DRAFT_VOCAB)
            close(kept, logits.sort(descending=True).values[: len(kept)], 0.04)


@pytest.mark.parametrize("forward", FORWARDS)
def test_tokens_after_a_drafted_token(forward: str) -> None:
    case = head_case(forward)
    found = looked(case)
    ids = case.weights.target_ids
    drafted = [(0, int(ids[3])), (0, int(ids[40])), (1 * ROWS + 1, int(ids[3])), (2 * ROWS, int(ids[60]))]
    tokens, logprobs = case.head.follow(found, [place for place, _ in drafted], [token for _, token in drafted], 8)
    assert tokens.shape == logprobs.shape == (4, 8)
    draft_ids = {int(token): i for i, token in enumerate(ids)}
    for j, (place, token) in enumerate(drafted):
        expected = case.logits(case.conditioned(found.first.states[place % ROWS], place // ROWS, token)).log_softmax(-1)
        at = torch.tensor([draft_ids[int(t)] for t in tokens[j]])
        assert (logprobs[j] - expected[at]).abs().max() < 0.1
        assert (logprobs[j] - expected.sort(descending=True).values[:8]).abs().max() < 0.1, "the likeliest come first"
    assert (logprobs[0] - logprobs[1]).abs().max() > 0.2, "the drafted token matters"


@NEEDS_KERNELS
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=1.3, top_k=4),
    ],
)
@pytest.mark.parametrize("threshold", [0.0, 0.05])
def test_trees_grown_in_one_call_are_those_grown_level_by_level(params: SamplingParams, threshold: float) -> None:
    case = head_case("native")
    head = case.head
    assert isinstance(head, TreeHead)
    batch, features = case.batch()
    first, second = batch.token_ids.tolist()[:LENGTH], batch.token_ids.tolist()[LENGTH:]
    sequences = [
        FakeSequence(first, 15, "r0/0", params=params, noise_key=77),
        FakeSequence(second, 12, "r1/0", params=params, noise_key=2**64 - 5),
    ]
    tree_params = replace(TREE_PARAMS, min_survival=0.001)  # a random head is sure of nothing
    shapes = [(4, 14), (3, 5)]
    first_pass = HeadPass([], batch, head.make_cache(4), features)

    def trees() -> list[HeadTree]:
        return [
            HeadTree(s, DRAFT_HEAD, *shape, threshold, tree_params) for s, shape in zip(sequences, shapes, strict=True)
        ]

    grown = grow_in_one_call(head, trees(), first_pass)
    expected = grow_over_levels(head, trees(), replace(first_pass, cache=head.make_cache(4)))
    for found, draft in zip(grown, expected, strict=True):
        assert draft is not None
        assert found is not None
        assert len(draft.tokens) > 1
        assert (found.tokens, found.parents, found.buckets) == (draft.tokens, draft.parents, draft.buckets)
        assert found.survival == pytest.approx(draft.survival, rel=1e-4)


@NEEDS_KERNELS
def test_a_loaded_head_does_not_keep_its_files_in_memory(tmp_path: Path) -> None:
    with rounded("llama", {"head_dim": 32}) as (_, checkpoint):
        shape = LeanShape.from_config(checkpoint.config)
        target = NativeModel(checkpoint, shape, "t", threads=2)
    folder = save_random_head(tmp_path / "head", shape)
    save_levels(folder, random_levels(shape.hidden, COUNT, WIDTH), {})

    def load() -> NativeHead:
        config, weights = load_head(folder)
        levels = load_levels(folder, shape.hidden)
        mapped = Path("/proc/self/maps").read_text()
        assert str(folder / WEIGHTS) in mapped
        assert str(folder / LEVELS) in mapped
        return NativeHead("head", config, weights, target, levels)

    head = load()
    mapped = Path("/proc/self/maps").read_text()
    assert head.info.levels == COUNT
    assert str(folder) not in mapped
