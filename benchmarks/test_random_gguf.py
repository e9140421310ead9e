"""Files of random weights load as their family does, under a name that says what they are."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import random_gguf
from benchmarks.random_gguf import SHAPES, ModelShape, main, weight_bytes, write_random
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import MemoryPlanError
from prolepsis.engine.kv.machine import FreeMemory
from prolepsis.engine.models.load import load_model
from tests.engine.models.tiny import one, run


def tiny(name: str) -> ModelShape:
    return replace(SHAPES[name], layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=256, vocab=300)


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-1.5b"])
def test_a_file_is_a_model_called_random(tmp_path: Path, name: str) -> None:
    shape, file = tiny(name), tmp_path / f"random-{name}.gguf"
    write_random(file, shape)
    model = load_model(EngineConfig(model=str(file), forward="lean", device="cpu")).model
    logits = run(model, model.make_cache(1), one(list(range(5, 25)), 0, [0]))
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.01
    assert model.info.name == f"random-{name}"
    assert file.stat().st_size > weight_bytes(shape)


def test_biases_are_counted() -> None:
    sizes = [weight_bytes(replace(SHAPES["qwen2.5-coder-1.5b"], biased=biased)) for biased in (False, True)]
    assert sizes[1] - sizes[0] == 28 * (1536 + 2 * 256) * 4


def test_what_the_memory_has_no_room_for_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_gguf, "host_memory", lambda: FreeMemory("this machine", 1 << 20, 0))
    monkeypatch.setattr(sys, "argv", ["random_gguf", "llama-3.1-8b", str(tmp_path)])
    with pytest.raises(MemoryPlanError, match="random weights of llama"):
        main()
    assert not list(tmp_path.iterdir())
