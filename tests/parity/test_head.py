"""Draft heads: both forwards against a plain computation over the whole sequence, through pages, chains and trees."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.engine.models.heads.format import HeadConfig, HeadWeights
from prolepsis.engine.models.heads.lean import LeanHead
from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import random_head
from tests.engine.models.tiny import FAMILIES, close, rounded

FLAGS: dict[str, dict[str, Any]] = {
    "default": {},
    "foreign": {"norm_before_fc": False, "norm_output": False},
    "norm-before-residual": {"norm_before_residual": True},
    "groups-of-three": {"sizes": {"heads": 9, "kv_heads": 3, "intermediate": 32}},
    "one-group": {"sizes": {"heads": 5, "kv_heads": 1}},
    "two-rotations": {},  # of the target, whose embeddings are scaled and whose norms are offset too
}
FORWARDS = ["lean", *(pytest.param(name, marks=NEEDS_KERNELS) for name in ("native", "native-8-bit"))]
MATRICES = ("fc", "q", "k", "v", "o", "gate", "up", "down", "lm_head")
LENGTH = 45


@dataclass(frozen=True, slots=True)
class HeadCase:
    """A head, its weights in float32 as the forward keeps them, its target's embedding, and the head on a forward."""

    config: HeadConfig
    weights: HeadWeights
    embedding: Tensor
    head: NativeHead | LeanHead


@cache
def head_case(forward: str, flags: str) -> HeadCase:
    kind, changes = FAMILIES["gemma3"] if flags == "two-rotations" else ("llama", {})
    with rounded(kind, {**changes, "head_dim": 32}) as (_, checkpoint):
        shape = LeanShape.from_config(checkpoint.config)
        config, weights = random_head(shape, **FLAGS[flags])
        embedding = checkpoint.tensor("model.embed_tokens.weight")
        head: NativeHead | LeanHead
        if forward.startswith("native"):
            target = NativeModel(checkpoint, shape, "target", threads=2)
            head = NativeHead("head", config, weights, target, eight_bit=forward == "native-8-bit")
        else:
            head = LeanHead("head", config, weights, LeanModel(checkpoint, shape, "target", torch.device("cpu")))
        wide = {f.name: getattr(weights, f.name) for f in fields(HeadWeights)}
        exact = {k: t.float() if t is not None and t.is_floating_point() else t for k, t in wide.items()}
        if forward == "native-8-bit":
            exact |= {name: in_eight_bits(exact[name]) for name in MATRICES}
        return HeadCase(config, HeadWeights(**exact), embedding, head)


def in_eight_bits(weight: Tensor) -> Tensor:
    """A matrix [n, k] rounded to 255 steps of each 64 of its k."""
    padded = F.pad(weight, (0, -weight.shape[1] % 64)).view(len(weight), -1, 64)
    steps = padded.abs().amax(-1, keepdim=True) / 127
    rounded: Tensor = (padded / steps.clamp_min(1e-30)).round() * steps
    return rounded.flatten(1)[:, : weight.shape[1]]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def plain(case: HeadCase, tokens: list[int], g: Tensor) -> tuple[Tensor, Tensor]:
    """The head's definition over a whole chain in float32: logits and states after every token; g [T, hidden]."""
    c, w, shape = case.config, case.weights, case.config.shape
    normed = norm(g, w.hidden_norm, shape.eps)
    x = torch.cat([norm(case.embedding[tokens], w.embed_norm, shape.eps), normed], dim=1)
    q, k, v = (F.linear(x, weight).view(len(tokens), -1, shape.head_dim) for weight in (w.q, w.k, w.v))
    angles = torch.arange(len(tokens))[:, None] * torch.tensor(shape.rope.inv_freq)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def rotated(y: Tensor) -> Tensor:
        first, second = y.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    group = shape.heads // shape.kv_heads
    scores = torch.einsum("qhd,khd->hqk", rotated(q), rotated(k).repeat_interleave(group, 1)) * shape.head_dim**-0.5
    scores = scores.masked_fill(torch.ones(len(tokens), len(tokens)).triu(1).bool(), -torch.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(group, 1)).flatten(1)
    x = (normed if c.norm_before_residual else g) + F.linear(mixed, w.o)
    n = norm(x, w.post_norm, shape.eps)
    x = x + F.linear(F.silu(F.linear(n, w.gate)) * F.linear(n, w.up), w.down)
    out = norm(x, w.norm, shape.eps)
    return F.linear(out, w.lm_head), out if c.norm_output else x


def start(case: HeadCase, features: Tensor) -> Tensor:
    """g of committed tokens."""
    given = features.float()
    if case.weights.input_norm is not None:
        given = norm(given, case.weights.input_norm, case.config.shape.eps)
    return F.linear(given, case.weights.fc)


def inputs(seed: int, case: HeadCase) -> tuple[list[int], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(3, case.config.shape.vocab, (LENGTH,), generator=generator).tolist()
    features = torch.randn(LENGTH, 3 * case.config.shape.hidden, generator=generator)
    features[0] = 0.0  # slot 0 has no token before it
    return tokens, features.bfloat16()


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("flags", FLAGS)
def test_committed_tokens_in_chunks(forward: str, flags: str) -> None:
    case = head_case(forward, flags)
    tokens, features = inputs(1, case)
    expected, states = plain(case, tokens, start(case, features))
    cache = case.head.make_cache(3)
    found: list[tuple[Tensor, Tensor]] = []
    for first, end in ((0, 20), (20, 21), (21, LENGTH)):
        chunk = SequenceInput(tokens[first:end], first, [2, 0], keep_last=end - first)
        found.append(case.head.logits(pack([chunk]), cache, features[first:end], None))
    close(torch.cat([logits for logits, _ in found]), expected, 0.04)
    close(torch.cat([after for _, after in found]), states, 0.04)


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("flags", FLAGS)
def test_a_drafted_tree_is_each_of_its_chains(forward: str, flags: str) -> None:
    case = head_case(forward, flags)
    tokens, features = inputs(2, case)
    g = start(case, features)
    _, states = plain(case, tokens, g)
    cache = case.head.make_cache(4)
    case.head.committed(pack([SequenceInput(tokens, 0, [1, 3])]), cache, features, 4)
    drafted, parents = [5, 9, 11, 7], [-1, 0, -1, 2]  # two chains: 5 9 and 11 7
    given = {-1: states[-1]}
    expected: list[Tensor] = []
    for node, parent in enumerate(parents):
        path = [parent, node] if parent >= 0 else [node]
        chain_g = torch.stack([given[parents[i]] for i in path])
        logits, after = plain(case, [*tokens, *(drafted[i] for i in path)], torch.cat([g, chain_g]))
        given[node] = after[-1]
        expected.append(logits[-1])
    batch = pack([SequenceInput(drafted, LENGTH, [1, 3], parents, keep_last=4)])
    found = case.head.drafted(batch, cache, torch.stack([given[p] for p in parents]), 4)
    logprobs = torch.stack(expected).log_softmax(-1)
    draft_ids = {int(t): i for i, t in enumerate(case.weights.target_ids)}
    at = torch.tensor([[draft_ids[int(t)] for t in row] for row in found.tokens])
    assert (found.logprobs - logprobs.gather(1, at)).abs().max() < 0.1
    assert (found.logprobs[:, 0] - logprobs.max(1).values).abs().max() < 0.1, "the likeliest comes first"


@NEEDS_KERNELS
def test_eight_bits_keep_the_likeliest_token_in_half_the_memory() -> None:
    exact, rounded = head_case("native", "default"), head_case("native-8-bit", "default")
    tokens, features = inputs(3, exact)
    batch = pack([SequenceInput(tokens, 0, [0, 1], keep_last=LENGTH)])
    expected, found = (case.head.logits(batch, case.head.make_cache(2), features, None)[0] for case in (exact, rounded))
    assert (expected.argmax(1) == found.argmax(1)).float().mean() > 0.9
    assert rounded.head.info.weight_bytes < 0.6 * exact.head.info.weight_bytes


@NEEDS_KERNELS
@pytest.mark.parametrize("forward", ["native", "native-8-bit"])
def test_a_row_has_the_same_bits_alone_and_among_others(forward: str) -> None:
    case = head_case(forward, "default")
    tokens, features = inputs(4, case)
    cache = case.head.make_cache(2)
    together, states = case.head.logits(
        pack([SequenceInput(tokens, 0, [0, 1], keep_last=LENGTH)]), cache, features, None
    )
    for first in range(LENGTH):
        batch = pack([SequenceInput(tokens[first : first + 1], first, [0, 1])])
        logits, after = case.head.logits(batch, cache, features[first : first + 1], None)
        assert torch.equal(logits[0], together[first])
        assert torch.equal(after[0], states[first])
