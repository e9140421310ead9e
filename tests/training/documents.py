"""A tiny head, a tiny target's ends, and random documents for them."""

from dataclasses import replace
from typing import Any

import torch

from prolepsis.engine.models.heads.format import HeadConfig, HeadWeights
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.engine.models.targets.lean_shape import LayerShape, LeanShape, Rope
from prolepsis.training.batches import TargetEnds
from prolepsis.training.data import TrainingDocument
from tests.engine.models.random_heads import random_head

HIDDEN, VOCAB = 32, 160
SHAPE = LeanShape(
    hidden=HIDDEN,
    layers=(LayerShape(Rope((1.0, 0.3, 0.1, 0.03)), score_scale=8**-0.5),) * 4,
    heads=4,
    kv_heads=2,
    head_dim=8,
    intermediate=48,
    eps=1e-5,
    tied=True,
    max_positions=512,
    vocab=VOCAB,
)


def tiny_head(**flags: Any) -> HeadLayer:
    """Return a random float32 head for a target of shape `SHAPE`."""
    config, weights = random_head(SHAPE, **flags)
    return HeadLayer(config, wide(weights))


def wide(weights: HeadWeights) -> HeadWeights:
    """Return `weights` in float32."""
    values = {name: getattr(weights, name) for name in HeadWeights.__slots__}
    return HeadWeights(**{n: v.float() if v is not None and v.is_floating_point() else v for n, v in values.items()})


def tiny_ends(head: HeadLayer, seed: int = 5) -> TargetEnds:
    """Return random weights of the target's ends, cut to the vocabulary of `head`."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    norm = torch.rand(HIDDEN, generator=generator) + 0.5
    return TargetEnds(embedding, norm, embedding[head.weights.target_ids], SHAPE.eps)


def random_document(
    length: int, response_start: int, *, number: int = 1, seed: int = 0, kind: str = "chat"
) -> TrainingDocument:
    """Return a document of random tokens and hidden states of three layers and the last layer."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    return TrainingDocument(
        number=number,
        kind=kind,
        greedy=True,
        tokens=torch.randint(VOCAB, (length,), generator=generator, dtype=torch.int32),
        response_start=response_start,
        features=torch.randn(length, 4 * HIDDEN, generator=generator).bfloat16(),
    )


def with_config(head: HeadLayer, **changes: Any) -> HeadLayer:
    """Return `head` with another configuration."""
    config: HeadConfig = replace(head.config, **changes)
    return HeadLayer(config, head.weights)
