"""Initial weights of a head: the best linear prediction of the target's states, placed in the head's layer.

Ridge regression predicts the target's last state after token s from the embedding of token s and the hidden states at
s - 1. The part for the hidden states becomes fc. The part for the embedding, cut to the rank of the values, becomes
values and output projection of one head in each group; this head attends to its own slot only, another head of the
group to the slots nearby, the others anywhere. Norms begin as the inverse spread of their inputs, since hidden states
have a few dimensions a hundred times larger than the others. All weights are scaled by the target's final norm: the
input that a drafted slot feeds back has passed the head's final norm, and should look like the output of fc.

Legend: n rows, d hidden size, e head dimension, x the layer's normed input [n, 2d].
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.engine.models.heads.format import HeadConfig, HeadWeights, offsets
from prolepsis.engine.models.targets.lean import rms_norm
from prolepsis.training.batches import TargetEnds
from prolepsis.training.data import MAX_LENGTH, TrainingDocument

ROWS = 30_000
RIDGE = 30.0
FOCUS = 20.0
"""Score of a slot with itself in a head that attends to its own slot."""
FOCUS_PAIRS = 4
"""Number of the fastest rotary pairs used; the sum of their cosines falls off within a few positions."""
HEAD_FOCUS = (1.0, 0.25, 0.0)
"""Focus of the heads of a group, in turn."""


@dataclass(frozen=True, slots=True)
class RegressionRows:
    """Inputs and outputs of the regression."""

    features: Tensor  # [n, aux_layers * d] at token s - 1
    embeddings: Tensor  # [n, d] of token s
    states: Tensor  # [n, d] the target's last state at token s, of unit root mean square


def initial_weights(
    config: HeadConfig, ends: TargetEnds, documents: Iterable[TrainingDocument], target_ids: Tensor, seed: int = 0
) -> HeadWeights:
    """Return float32 weights of a head over the draft vocabulary `target_ids` ([D] int64, rising)."""
    rows = regression_rows(documents, ends, len(config.aux_layers))
    d, eps = config.shape.hidden, config.shape.eps
    random = _Random(seed)
    features, input_norm = rows.features, None
    if config.norm_before_fc:
        features, input_norm = whitened(features, eps)
    embeddings, embed_norm = whitened(rows.embeddings, eps)
    linear = ridge(torch.cat([features, embeddings], dim=1), rows.states)
    fc, of_embedding = ends.final_norm[:, None] * linear[:, :-d], linear[:, -d:]
    g = features @ fc.t()
    normed, hidden_norm = whitened(g, eps)
    mean = torch.cat([embeddings, normed], dim=1).mean(0)
    q, k = focused(config, mean / mean.square().sum(), random)
    values, out = low_rank(of_embedding, config.shape.kv_heads * config.shape.head_dim)
    out = ends.final_norm[:, None] * out
    _, post_norm = whitened(g + embeddings @ (out @ values).t(), eps)
    d2t, t2d = offsets(target_ids, config.shape.vocab)
    wide = config.shape.intermediate
    return HeadWeights(
        fc=fc,
        input_norm=input_norm,
        embed_norm=embed_norm,
        hidden_norm=hidden_norm,
        q=q,
        k=k,
        v=torch.cat([values, random(len(values), d, 0.02)], dim=1),
        o=spread_over_groups(config, out, random),
        post_norm=post_norm,
        gate=random(wide, d, 0.04),
        up=random(wide, d, 0.04),
        down=random(d, wide, 0.01),
        norm=torch.full((d,), float((rows.states * ends.final_norm).square().mean().sqrt())),
        lm_head=ends.head.clone(),
        d2t=d2t,
        t2d=t2d,
    )


def regression_rows(documents: Iterable[TrainingDocument], ends: TargetEnds, num_layers: int) -> RegressionRows:
    """Take rows of responses from `documents` until there are `ROWS`."""
    hidden = ends.embedding.shape[1]
    parts: list[RegressionRows] = []
    total = 0
    for document in documents:
        features, tokens = document.features[:MAX_LENGTH].float(), document.tokens[:MAX_LENGTH].long()
        first = min(max(1, document.response_start - 1), len(tokens))
        unit = rms_norm(features[first:, -hidden:], torch.ones(hidden), ends.eps)
        read = features[first - 1 : -1, -(num_layers + 1) * hidden : -hidden]
        parts.append(RegressionRows(read, ends.embedding[tokens[first:]], unit))
        total += len(unit)
        if total >= ROWS:
            break
    return RegressionRows(*(torch.cat([getattr(part, name) for part in parts]) for name in RegressionRows.__slots__))


def whitened(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the RMS norm of `x` [n, m] with the weight [m] that makes each dimension's mean square 1; that weight."""
    plain = rms_norm(x, torch.ones(x.shape[1]), eps)
    weight = plain.square().mean(0).sqrt().clamp_min(1e-3).reciprocal()
    return plain * weight, weight


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """Return the [out, in] matrix that minimises |x W' - y|^2 + RIDGE |W|^2."""
    gram = x.t() @ x + RIDGE * torch.eye(x.shape[1])
    solution: Tensor = torch.linalg.solve(gram, x.t() @ y)
    return solution.t()


def focused(config: HeadConfig, probe: Tensor, random: "_Random") -> tuple[Tensor, Tensor]:
    """Return query and key projections whose scores fall with distance; `probe` @ x is about 1 for every slot."""
    shape = config.shape
    constant = torch.zeros(shape.head_dim)
    pairs = min(FOCUS_PAIRS, shape.head_dim // 2)
    constant[:pairs] = (FOCUS * shape.head_dim**0.5 / pairs) ** 0.5
    direction = constant[:, None] * probe
    group, width = shape.heads // shape.kv_heads, len(probe)
    keys = [direction + random(shape.head_dim, width, 0.01) for _ in range(shape.kv_heads)]
    queries = []
    for head in range(shape.heads):
        focus = HEAD_FOCUS[head % group % len(HEAD_FOCUS)]
        queries.append(focus * direction + random(shape.head_dim, width, 0.01 if focus else 0.03))
    return torch.cat(queries), torch.cat(keys)


def low_rank(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return (values [rank, d], out [d, rank]) whose product out @ values is nearest to `matrix` [d, d]."""
    left, sizes, right = torch.linalg.svd(matrix)
    root = sizes[:rank].sqrt()
    missing = max(0, rank - len(sizes))
    values = torch.nn.functional.pad(root[:, None] * right[:rank], (0, 0, 0, missing))
    return values, torch.nn.functional.pad(left[:, :rank] * root, (0, missing))


def spread_over_groups(config: HeadConfig, out: Tensor, random: "_Random") -> Tensor:
    """Return the output projection [d, h * e]: `out` ([d, k * e]) at the first head of each group, noise elsewhere."""
    shape = config.shape
    group, e = shape.heads // shape.kv_heads, shape.head_dim
    matrix = random(shape.hidden, shape.heads * e, 0.01)
    for kv in range(shape.kv_heads):
        matrix[:, kv * group * e : (kv * group + 1) * e] = out[:, kv * e : (kv + 1) * e]
    return matrix


class _Random:
    """Normal noise from one seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=self._generator) * scale
