"""Early exits: what the first layers, final norm and output give, on both forwards, over the target's own cache."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.engine.models.protocol import KVCache, SequenceInput, pack
from prolepsis.engine.models.targets.early_exit import EarlyExit, make_exit
from prolepsis.engine.models.targets.lean import LeanModel, rms_norm
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeCache, NativeModel
from prolepsis.engine.models.targets.paged_attention import PlainCache
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.tiny import close, one, rounded, tokens
from tests.fakes import TableModel

FORWARDS = ["lean", pytest.param("native", marks=NEEDS_KERNELS)]
LAYERS = 4
LENGTH = 45
PAGES = [2, 0]


@dataclass(frozen=True, slots=True)
class Pair:
    """A target on the forward under test, and the readable one in float32."""

    target: NativeModel | LeanModel
    plain: LeanModel


@cache
def pair(forward: str) -> Pair:
    changes: dict[str, object] = {
        "head_dim": 32,
        "num_hidden_layers": LAYERS,
        "vocab_size": 167,
        "tie_word_embeddings": True,
    }
    with rounded("llama", changes) as (_, checkpoint):
        shape = LeanShape.from_config(checkpoint.config)
        plain = LeanModel(checkpoint, shape, "plain", torch.device("cpu"))
        native = NativeModel(checkpoint, shape, "native", threads=2) if forward == "native" else None
        return Pair(native or plain, plain)


def text(seed: int) -> list[int]:
    return tokens(LENGTH, seed)


def layers_of(cache: KVCache, first: int, end: int) -> list[Tensor]:
    """K/V of layers `first` to `end` - 1."""
    if isinstance(cache, NativeCache):
        return list(cache.tensor[first:end])
    assert isinstance(cache, PlainCache)
    return [*cache.keys[first:end], *cache.values[first:end]]


def same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("num_layers", [1, LAYERS - 1])
@pytest.mark.parametrize("vocab_size", [None, 64, 167])
def test_logits_are_of_what_leaves_the_layer(forward: str, num_layers: int, vocab_size: int | None) -> None:
    p, tokens = pair(forward), text(1)
    batch = pack([one(tokens, 0, PAGES)])
    early = make_exit(p.target, num_layers, vocab_size)
    assert (early.num_layers, early.vocab_size) == (num_layers, {None: 32, 64: 64, 167: 160}[vocab_size])
    _, features = p.plain.forward_features(batch, p.plain.make_cache(3), (num_layers,))
    normed = rms_norm(features.float(), p.plain.ends.final_norm, p.plain.shape.eps)
    expected = normed @ p.plain.ends.embedding[: early.vocab_size].T
    close(early.logits(batch, p.target.make_cache(3)), expected)


@pytest.mark.parametrize("forward", FORWARDS)
def test_likeliest_are_the_largest_logits(forward: str) -> None:
    p = pair(forward)
    early, batch = make_exit(p.target, 2), pack([one(text(2), 0, PAGES)])
    logits = early.logits(batch, p.target.make_cache(3))
    tokens, logprobs = early.likeliest(batch, p.target.make_cache(3), 5)
    values, ids = logits.log_softmax(-1).topk(5)
    assert torch.equal(tokens, ids)
    assert torch.allclose(logprobs, values, atol=1e-4)


@pytest.mark.parametrize("forward", FORWARDS)
def test_an_exit_goes_on_where_the_target_stands_and_writes_what_it_would(forward: str) -> None:
    p, tokens = pair(forward), text(3)
    early = make_exit(p.target, 2)
    whole = early.logits(pack([one(tokens, 0, PAGES)]), alone := p.target.make_cache(3))
    shared = p.target.make_cache(3)
    p.target.forward(pack([SequenceInput(tokens[:-3], 0, PAGES)]), shared)
    steps = [_step(early, shared, tokens, at) for at in range(LENGTH - 3, LENGTH)]
    found, expected = torch.cat(steps), whole[-3:]
    assert torch.equal(found, expected) if forward == "native" else torch.allclose(found, expected, atol=1e-4)
    if forward == "native":
        same(layers_of(shared, 0, 2), layers_of(alone, 0, 2))
    p.target.forward(pack([SequenceInput(tokens, 0, PAGES)]), target := p.target.make_cache(3))
    p.target.forward(pack([SequenceInput(tokens[-3:], LENGTH - 3, PAGES)]), shared)
    if forward == "native":
        same(layers_of(shared, 0, LAYERS), layers_of(target, 0, LAYERS))


@pytest.mark.parametrize("forward", FORWARDS)
def test_layers_above_are_left_alone(forward: str) -> None:
    p = pair(forward)
    cache = p.target.make_cache(3)
    make_exit(p.target, 2).logits(pack([one(text(4), 0, PAGES)]), cache)
    assert all(bool((tensor == 0).all()) for tensor in layers_of(cache, 2, LAYERS))
    assert all(bool((tensor != 0).any()) for tensor in layers_of(cache, 0, 2))


def test_layers_and_forwards_that_cannot_be_are_refused() -> None:
    for num_layers in (0, LAYERS):
        with pytest.raises(ConfigError, match=rf"early_exit_layer is {num_layers}; allowed for plain: 1 to 3"):
            make_exit(pair("lean").target, num_layers)

    deep = TableModel()
    deep.info = replace(deep.info, num_layers=LAYERS)
    with pytest.raises(ModelLoadError, match="the forward table cannot stop early; allowed: native, lean"):
        make_exit(deep, 2)


def _step(early: EarlyExit, cache: KVCache, tokens: list[int], at: int) -> Tensor:
    return early.logits(pack([SequenceInput([tokens[at]], at, PAGES)]), cache)
