"""A model that is given by a path is served under a name, and found in the catalogue where it is in it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.models.files.gguf_file import GgufFile
from prolepsis.engine.models.files.identity import weights_identity
from prolepsis.engine.models.files.naming import catalogue_model, model_name
from prolepsis.engine.models.files.recommended_sampling import default_sampling
from prolepsis.engine.models.files.store import KNOWN, MANIFEST, KnownModel

CODER = "qwen2.5-coder-1.5b-instruct"


def write(path: Path, name: str | None = None, **sampling: float) -> Path:
    """Write a GGUF file with metadata only."""
    writer = gguf.GGUFWriter(path, "llama")
    if name is not None:
        writer.add_name(name)
    for key, value in sampling.items():
        kind = gguf.GGUFValueType.INT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32
        writer.add_key_value(f"general.sampling.{key}", value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def named(path: Path) -> str:
    return model_name(str(path), GgufFile(path), path.parent)


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("Qwen2.5 Coder 1.5B Instruct GGUF", CODER),
        ("Llama-3.2-1B Instruct", "llama-3.2-1b-instruct"),
        ("Phi 4 (mini)", "phi-4-mini"),
        (None, "some-file.Q8_0"),
        ("", "some-file.Q8_0"),
        ("model", "some-file.Q8_0"),
        ("../..", "some-file.Q8_0"),
        ("0123456789abcdef0123456789abcdef01234567", "some-file.Q8_0"),
    ],
)
def test_a_file_has_the_name_that_it_states_or_its_own(stated: str | None, name: str, tmp_path: Path) -> None:
    assert named(write(tmp_path / "some file.Q8_0.gguf", stated)) == name


def test_a_folder_has_its_own_name_wherever_it_is_called_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "My Model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert model_name(".", Path(), tmp_path) == model_name(str(folder), folder, tmp_path) == "My-Model"


def test_names_of_the_catalogue_and_of_the_store_stay(tmp_path: Path) -> None:
    assert model_name(DEFAULT_MODEL, tmp_path, tmp_path) == DEFAULT_MODEL
    (tmp_path / "owner--tiny").mkdir()
    manifest = {"name": "owner/tiny", "source": "s", "path": ".", "size": 1, "sha256": {}, "licence": None}
    (tmp_path / "owner--tiny" / MANIFEST).write_text(json.dumps({**manifest, "pulled_at": "2026-01-01"}))
    assert model_name("owner/tiny", tmp_path, tmp_path) == "owner/tiny"


def test_a_known_file_is_known_by_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, stated = KNOWN[DEFAULT_MODEL].package, "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert package is not None
    path = write(tmp_path / package.name, stated)
    os.truncate(path, package.size)  # a sparse file of the known name and size
    assert catalogue_model(str(path), GgufFile(path)) is None
    other = write(tmp_path / "sha256-00ff", stated)
    of_other = replace(package, name="m.gguf", size=other.stat().st_size)
    known = KnownModel("tiny", "", "mit", None, of_other, weights_identity(other))
    monkeypatch.setitem(KNOWN, "tiny", known)
    assert named(other) == "tiny"
    assert named(write(tmp_path / "other.gguf", f"{stated} more")) == "smollm2-135m-8k-lc100k-mix1-ep2-more"


def sampling(path: Path, text: str = "model") -> SamplingDefaults:
    return default_sampling(EngineConfig(model=str(path), default_sampling=text, model_dir=path.parent))


def test_what_a_file_recommends_counts_before_the_catalogue(tmp_path: Path) -> None:
    stated = write(tmp_path / "a.gguf", CODER, temp=0.6, top_p=0.95, top_k=-1, min_p=0.05, penalty_repeat=1.1)
    assert sampling(stated) == SamplingDefaults(0.6, 0.95, 0, 0.05, 1.1, "gguf")
    catalogue = SamplingDefaults(0.7, 0.8, 20, repetition_penalty=1.05, source="catalogue")
    assert sampling(write(tmp_path / "b.gguf", CODER)) == catalogue
    assert sampling(write(tmp_path / "c.gguf", "another")) == SamplingDefaults()
    assert sampling(stated, "temperature=0").source == "operator, others gguf"
    assert sampling(stated, "openai") == SamplingDefaults()


def test_a_recommendation_that_sampling_cannot_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"a\.gguf: temperature is 7\.0; allowed: 0 to 2"):
        sampling(write(tmp_path / "a.gguf", "a", temp=7.0))
