"""The head's arithmetic against a slot computed by hand, number by number."""

import math

import pytest
import torch

from tests.training.documents import SHAPE, tiny_head


def _norm(values: list[float], weight: list[float]) -> list[float]:
    scale = 1.0 / math.sqrt(sum(v * v for v in values) / len(values) + SHAPE.eps)
    return [v * scale * w for v, w in zip(values, weight, strict=True)]


def _times(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]


@pytest.mark.parametrize("norm_output", [True, False])
@pytest.mark.parametrize("norm_before_residual", [True, False])
def test_the_first_slot_computed_by_hand(norm_output: bool, norm_before_residual: bool) -> None:
    head = tiny_head(norm_output=norm_output, norm_before_residual=norm_before_residual)
    w = {name: getattr(head.weights, name).tolist() for name in ("v", "o", "gate", "up", "down")}
    norms = {n: getattr(head.weights, n).tolist() for n in ("embed_norm", "hidden_norm", "post_norm", "norm")}
    embedding, g = torch.randn(1, SHAPE.hidden), torch.randn(1, SHAPE.hidden)
    x = head.enter(embedding, g)
    rotary = head.rotary(torch.tensor([0]))
    _, values = head.keys_values(x, rotary)
    alone = values.repeat_interleave(SHAPE.heads // SHAPE.kv_heads, dim=1).flatten(1)  # one key has all the weight
    out, fed_back = head.ends(head.leave(g, alone))

    normed_g = _norm(g[0].tolist(), norms["hidden_norm"])
    joined = _norm(embedding[0].tolist(), norms["embed_norm"]) + normed_g
    value = _times(w["v"], joined)
    per_head = [value[8 * (h // 2) + i] for h in range(4) for i in range(8)]
    residual = normed_g if norm_before_residual else g[0].tolist()
    hidden = [r + a for r, a in zip(residual, _times(w["o"], per_head), strict=True)]
    inner = _norm(hidden, norms["post_norm"])
    gated = [a / (1 + math.exp(-a)) * b for a, b in zip(_times(w["gate"], inner), _times(w["up"], inner), strict=True)]
    hidden = [h + d for h, d in zip(hidden, _times(w["down"], gated), strict=True)]
    by_hand = _norm(hidden, norms["norm"])
    torch.testing.assert_close(out[0], torch.tensor(by_hand), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fed_back[0], torch.tensor(by_hand if norm_output else hidden), rtol=1e-4, atol=1e-5)


def test_fc_reads_the_normed_hidden_states() -> None:
    head = tiny_head()
    features = torch.randn(3, 3 * SHAPE.hidden)
    assert head.weights.input_norm is not None
    normed = torch.tensor([_norm(row.tolist(), head.weights.input_norm.tolist()) for row in features])
    torch.testing.assert_close(head.fuse(features), normed @ head.weights.fc.t(), rtol=1e-4, atol=1e-5)


def test_a_head_without_a_norm_before_fc() -> None:
    head = tiny_head(norm_before_fc=False)
    features = torch.randn(3, 3 * SHAPE.hidden)
    torch.testing.assert_close(head.fuse(features), features @ head.weights.fc.t())
