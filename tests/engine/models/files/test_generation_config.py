"""What generation_config.json says of ends and of sampling, and which recommendation holds."""

import json
import math
from pathlib import Path

import pytest

from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.models.files.generation_config import FILE, generation_eos, generation_sampling
from prolepsis.engine.models.files.recommended_sampling import default_sampling


def write(folder: Path, **document: object) -> Path:
    (folder / FILE).write_text(json.dumps(document))
    return folder


def test_a_folder_without_the_file_says_nothing(tmp_path: Path) -> None:
    assert generation_eos(tmp_path) == []
    assert generation_sampling(tmp_path) is None
    assert generation_sampling(tmp_path / "model.gguf") is None


def test_ends_are_one_token_or_several(tmp_path: Path) -> None:
    assert generation_eos(write(tmp_path, eos_token_id=2)) == [2]
    assert generation_eos(write(tmp_path, eos_token_id=[2, 3])) == [2, 3]
    assert generation_sampling(tmp_path) is None


def test_parameters_that_are_not_named_are_openais(tmp_path: Path) -> None:
    write(tmp_path, temperature=0.6, top_k=20, top_p=None, do_sample=True)
    assert generation_sampling(tmp_path) == SamplingDefaults(temperature=0.6, top_k=20, source=FILE)


@pytest.mark.parametrize(
    "document",
    [{"temperature": 7}, {"top_p": "high"}, {"top_k": [1]}, {"top_k": math.inf}, {"top_k": 2**31}, {"min_p": 10**400}],
)
def test_values_that_sampling_cannot_take_are_named(tmp_path: Path, document: dict[str, object]) -> None:
    with pytest.raises(ModelLoadError, match=FILE):
        generation_sampling(write(tmp_path, **document))


def test_an_invalid_file_is_named(tmp_path: Path) -> None:
    for text in ("[]", "nonsense"):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(ModelLoadError, match="not a JSON object"):
            generation_sampling(tmp_path)


def test_the_default_models_recommendation_is_in_the_catalogue(tmp_path: Path) -> None:
    config = EngineConfig(model_dir=tmp_path)
    assert default_sampling(config) == SamplingDefaults(temperature=0.2, top_p=0.9, source="catalogue")
    folder = tmp_path / DEFAULT_MODEL
    folder.mkdir()
    manifest = {"name": DEFAULT_MODEL, "source": "s", "path": ".", "size": 1, "sha256": {}, "licence": None}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "pulled_at": "2026-01-01"}))
    write(folder, temperature=0.5)
    assert default_sampling(config) == SamplingDefaults(temperature=0.5, source=FILE)


def test_a_setting_turns_recommendations_off(tmp_path: Path) -> None:
    folder = write(tmp_path, temperature=0.5)
    assert default_sampling(EngineConfig(model=str(folder))).temperature == 0.5
    assert default_sampling(EngineConfig(model=str(folder), default_sampling="openai")) == SamplingDefaults()
