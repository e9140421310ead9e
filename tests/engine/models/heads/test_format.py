"""A head's file: what is written is read again; what does not fit is refused by name."""

import json
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
from tests.training.documents import SHAPE


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
