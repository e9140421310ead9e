"""A head's file: what is written is read again; what does not fit is refused by name."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.stored import Q8_0, quantise
from prolepsis.engine.models.heads.format import (
    CONFIG,
    NAMES,
    STORAGE,
    WEIGHTS,
    HeadConfig,
    HeadStorage,
    HeadWeights,
    head_fault,
    load_head,
    save_head,
    weights_checksum,
)
from tests.engine.models.random_heads import save_random_head
from tests.training.documents import SHAPE, tiny_head


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_random_head(tmp_path / "head", SHAPE, {"version": 3})


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((folder / CONFIG).read_text())
    change(document)
    (folder / CONFIG).write_text(json.dumps(document))


def _edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def test_round_trip(folder: Path) -> None:
    config, weights = load_head(folder)
    assert (config.aux_layers, config.norm_before_fc, config.norm_output) == ((0, 1, 2), True, True)
    assert config.provenance == {"version": 3}
    assert weights.lm_head.dtype == torch.bfloat16
    assert torch.equal(weights.t2d.nonzero().flatten(), weights.target_ids)
    assert len(weights_checksum(folder)) == 64


def test_a_head_from_elsewhere_may_lack_the_newer_options(folder: Path) -> None:
    _edit(folder, lambda d: [d.pop(name) for name in ("norm_before_fc", "norm_output", "norm_before_residual")])
    _edit_weights(folder, lambda t: t.pop("input_norm.weight"))
    config, weights = load_head(folder)
    assert (config.norm_before_fc, config.norm_output, weights.input_norm) == (False, False, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(speculators_model_type="dflash"), "allowed: 'eagle3'"),
        (lambda d: d.update(eagle_aux_hidden_state_layer_ids=None), "which layers"),
        (lambda d: d.update(fc_norm=True), "fc_norm"),
        (lambda d: d.pop("transformer_layer_config"), "not the configuration"),
        (lambda d: d.update(draft_vocab_size=70), "lm_head.weight is"),
    ],
)
def test_configurations_that_are_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    _edit(folder, change)
    with pytest.raises(ModelLoadError, match=message):
        load_head(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "no tensor 'fc.weight'"),
        (lambda t: t["d2t"].add_(1000), "outside the target's"),
        (lambda t: t["t2d"].logical_not_(), "different tokens"),
    ],
)
def test_weights_that_are_refused(folder: Path, change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    _edit_weights(folder, change)
    with pytest.raises(ModelLoadError, match=message):
        load_head(folder)


def test_a_head_of_another_target_is_named(folder: Path) -> None:
    config, _ = load_head(folder)
    assert head_fault(config, SHAPE, len(SHAPE.layers)) is None
    assert "hidden size is 32" in str(head_fault(config, replace(SHAPE, hidden=64), 4))
    assert "vocab size" in str(head_fault(config, replace(SHAPE, vocab=99), 4))
    assert "the target has 1 layers" in str(head_fault(config, SHAPE, 1))


def _compact(folder: Path, config: HeadConfig, weights: HeadWeights, storage: HeadStorage) -> Path:
    save_head(folder, replace(config, storage=storage), weights, {"rope_type": "default", "rope_theta": 10000.0})
    return folder


def test_a_head_in_8_bits_is_the_one_that_the_native_forward_would_make(folder: Path, tmp_path: Path) -> None:
    config, weights = load_head(folder)
    compact = _compact(tmp_path / "compact", config, weights, HeadStorage("q8_0"))
    found, loaded = load_head(compact)
    assert found.storage == HeadStorage("q8_0", "own")
    stored = load_file(compact / WEIGHTS)
    for name in ("fc", "q", "gate", "down", "lm_head"):
        bytes_of_rows = quantise(getattr(weights, name), Q8_0).data
        assert torch.equal(stored[NAMES[name]], bytes_of_rows)
        assert torch.equal(quantise(getattr(loaded, name), Q8_0).data, bytes_of_rows), "nothing is lost a second time"
    assert torch.equal(loaded.norm, weights.norm)
    assert torch.equal(loaded.t2d, weights.t2d)


def test_an_output_head_of_the_target_is_not_stored(folder: Path, tmp_path: Path) -> None:
    config, weights = load_head(folder)
    compact = _compact(tmp_path / "compact", config, weights, HeadStorage("q8_0", "target"))
    assert NAMES["lm_head"] not in load_file(compact / WEIGHTS)
    _, loaded = load_head(compact, lambda ids: ids[:, None].float())
    assert torch.equal(loaded.lm_head[:, 0], weights.target_ids.float())
    with pytest.raises(ModelLoadError, match="no output head: it is that of the target"):
        load_head(compact)


@pytest.mark.parametrize("storage", [{"weights": "q3"}, {"output_head": "none"}, {"more": 1}, 7])
def test_an_unknown_storage_is_refused(folder: Path, storage: object) -> None:
    _edit(folder, lambda d: d.update({STORAGE: storage}))
    with pytest.raises(ModelLoadError, match="not the configuration"):
        load_head(folder)


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
