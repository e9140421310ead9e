"""What is read of a model before vLLM loads it, and what is said where vLLM is missing."""

import json
from pathlib import Path

import pytest

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.core.extras import Extra
from prolepsis.vllm.start import eos_token_ids, model_folder, start_vllm
from tests.train.targets import save_target


def test_ending_tokens_are_those_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert eos_token_ids(tmp_path) == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert eos_token_ids(tmp_path) == (2, 7)


def test_a_folder_is_served_as_it_is(tmp_path: Path) -> None:
    assert model_folder(tmp_path) == tmp_path


def test_settings_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"^strict "):
        start_vllm(EngineConfig(model="no such model", engine="vllm", strict="on"))


@pytest.mark.skipif(Extra("", "", "vllm").is_installed, reason="vLLM is installed here")
def test_a_missing_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="engine is 'vllm', which is not installed"):
        start_vllm(EngineConfig(model=str(save_target(tmp_path)), engine="vllm"))
