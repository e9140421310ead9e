"""Which forward a configuration leads to, and what is said when it is not the best one."""

from pathlib import Path

import pytest
import torch

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.models.load import load_model, pick_device, weights_identity
from tests.models.files.test_tokenizer import byte_level
from tests.models.tiny import one, run, save_tiny


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny(folder, "llama", {})
    byte_level().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    save_tiny(folder, "gemma3_text", {"query_pre_attn_scalar": 16})
    byte_level().save_pretrained(folder)
    return folder


def config(folder: Path, **fields: object) -> EngineConfig:
    return EngineConfig.model_validate({"model": str(folder), "device": "cpu", **fields})


def test_the_transformers_forward_can_be_asked_for(llama: Path) -> None:
    loaded = load_model(config(llama, forward="transformers"))
    assert loaded.model.info.forward.startswith("transformers")
    assert loaded.fallback is None
    assert loaded.model.info.eos_token_ids == (2,)
    assert len(loaded.fingerprint) == 16
    logits = run(loaded.model, loaded.model.make_cache(1), one([5, 6], 0, [0]))
    assert (logits.shape, logits.dtype) == ((2, 160), torch.float32)


def test_auto_takes_the_general_forward_where_the_lean_ones_cannot_go(gemma: Path) -> None:
    loaded = load_model(config(gemma))
    assert loaded.model.info.forward.startswith("transformers")
    assert loaded.fallback is not None
    assert "gemma3_text" in loaded.fallback


@pytest.mark.parametrize("forward", ["native", "lean"])
def test_a_forward_that_cannot_run_the_model_is_refused(gemma: Path, forward: str) -> None:
    with pytest.raises(ModelLoadError, match="gemma3_text"):
        load_model(config(gemma, forward=forward))


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelLoadError, match="nobody-knows"):
        load_model(EngineConfig.model_validate({"model": "nobody-knows"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="no CUDA device"):
        pick_device("cuda")
    assert pick_device("auto").type == "cpu"


def test_weights_have_an_identity(llama: Path, gemma: Path) -> None:
    assert weights_identity(llama) == weights_identity(llama) != weights_identity(gemma)
    assert weights_identity(llama / "model.safetensors") != weights_identity(llama / "config.json")
