"""The identity of weights is of what they compute with: no name, no place and no layout of their files is in it."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from transformers import PreTrainedModel

from prolepsis.core.config import DEFAULT_MODEL, EngineConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.requests import SamplingDefaults
from prolepsis.engine.models.files.gguf_file import GgufFile
from prolepsis.engine.models.files.identity import weights_identity
from prolepsis.engine.models.files.naming import catalogue_model, model_name
from prolepsis.engine.models.files.recommended_sampling import default_sampling
from prolepsis.engine.models.files.safetensors_files import INDEX
from prolepsis.engine.models.files.source import open_model
from prolepsis.engine.models.files.store import KNOWN, MANIFEST, KnownModel
from prolepsis.engine.models.load import identity_of
from tests.engine.models.files.gguf_files import write_gguf, write_parts
from tests.engine.models.files.vocabularies import TEMPLATE_KEY
from tests.engine.models.tiny import random_model, save_tiny


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROLEPSIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "identities"


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return random_model("llama", {})


@pytest.fixture
def file(tmp_path: Path, model: PreTrainedModel) -> Path:
    write_gguf(tmp_path / "m.gguf", model, "llama")
    return tmp_path / "m.gguf"


def linked(file: Path, name: str) -> Path:
    link = file.with_name(name)
    link.symlink_to(file)
    return link


NAMES: dict[str, Callable[[Path], Path]] = {
    "another name": lambda file: file.rename(file.with_name("my own.gguf")),
    "a copy": lambda file: Path(shutil.copy(file, file.with_name("copy.gguf"))),
    "a blob of Ollama": lambda file: file.rename(file.with_name(f"sha256-{'0f' * 32}")),
    "another ending": lambda file: file.rename(file.with_name("model.bin")),
    "a link": lambda file: linked(file, "link.gguf"),
    "a link without an ending": lambda file: linked(file, "coder"),
    "a relative path": lambda file: Path(os.path.relpath(file)),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_one_identity_under_every_name(file: Path, name: str) -> None:
    before = weights_identity(file)
    path = NAMES[name](file)
    assert weights_identity(path) == weights_identity(open_model(path)) == before
    assert identity_of(path) == before[:32]


def test_parts_have_the_identity_of_the_whole_file(tmp_path: Path, file: Path, model: PreTrainedModel) -> None:
    paths = write_parts(tmp_path, model)
    link = linked(paths[0], "first.gguf")
    assert {weights_identity(path) for path in (*paths, link)} == {weights_identity(file)}
    with paths[-1].open("r+b") as part:
        part.seek(-1, 2)
        part.write(b"x")
    assert weights_identity(paths[0]) != weights_identity(file)


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"general.name": "another name"}, True),
        ({TEMPLATE_KEY: "another template"}, True),
        ({"tokenizer.ggml.eos_token_id": 3}, True),
        ({"llama.rope.freq_base": 20000.0}, False),
        ({"llama.attention.layer_norm_rms_epsilon": 1e-5}, False),
    ],
)
def test_of_metadata_only_what_computes_is_part_of_it(
    tmp_path: Path, file: Path, model: PreTrainedModel, changes: dict[str, float | str | list[str]], is_same: bool
) -> None:
    write_gguf(tmp_path / "other.gguf", model, "llama", changes=changes)
    assert (weights_identity(tmp_path / "other.gguf") == weights_identity(file)) is is_same


def test_other_bytes_and_types_are_another_identity(tmp_path: Path, file: Path, model: PreTrainedModel) -> None:
    write_gguf(tmp_path / "seed.gguf", random_model("llama", {}, seed=8), "llama")
    write_gguf(tmp_path / "q8.gguf", model, "llama", kind=gguf.GGMLQuantizationType.Q8_0)
    assert len({weights_identity(path) for path in (file, tmp_path / "seed.gguf", tmp_path / "q8.gguf")}) == 3


def changed_config(folder: Path, **changes: object) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, **changes}, indent=1))


def sharded(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    homes = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(homes.values()):
        save_file({name: tensors[name] for name in tensors if homes[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": homes}))


def one_tensor_renamed(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["another.weight"] = tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors")


FOLDERS: dict[str, tuple[Callable[[Path], object], bool]] = {
    "shards": (sharded, True),
    "a file beside": (lambda folder: (folder / "adapter.safetensors").write_bytes(b"x"), True),
    "where it is from": (
        lambda folder: changed_config(folder, _name_or_path="x", transformers_version="9", prolepsis={"version": 2}),
        True,
    ),
    "rotations": (lambda folder: changed_config(folder, rope_parameters={"rope_theta": 5.0}), False),
    "a tensor's name": (one_tensor_renamed, False),
}


@pytest.mark.parametrize("change", FOLDERS)
def test_a_folder_has_the_identity_of_its_tensors_and_configuration(tmp_path: Path, change: str) -> None:
    save_tiny(tmp_path / "m", "llama", {})
    copy = shutil.copytree(tmp_path / "m", tmp_path / "copy")
    assert weights_identity(copy) == weights_identity(tmp_path / "m")
    alter, is_same = FOLDERS[change]
    alter(copy)
    assert (weights_identity(copy) == weights_identity(tmp_path / "m")) is is_same


def test_files_are_read_once(file: Path, kept: Path) -> None:
    found = weights_identity(file)
    assert not kept.exists(), "a file that was just written may be written again"
    os.utime(file, (1e9, 1e9))
    assert weights_identity(file) == found
    (one,) = kept.iterdir()
    one.write_text("ab" * 32)
    assert weights_identity(linked(file, "link.gguf")) == "ab" * 32, "the weights were read again"
    one.write_text("half a dig")
    assert weights_identity(file) == found
    one.write_text("ab" * 32)
    os.utime(file, (1e9, 1e9 + 1))
    assert weights_identity(file) == found, "of another time"


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.bin").write_bytes(b"GGLA, with more behind it")
    os.mkfifo(tmp_path / "pipe")
    for name, fault in (("notes.bin", "is not a whole GGUF file: starts with b'GGLA'"), ("pipe", "is not a model")):
        with pytest.raises(ModelLoadError, match=f"{name} {fault}.* a folder with config.json"):
            weights_identity(tmp_path / name)


def test_long_reads_are_logged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.engine.models.files.identity._SLOW_S", -1.0)
    with capture_logs() as lines:
        found = weights_identity(file)
    assert [(line["event"], line["weights"]) for line in lines] == [("weights_identified", found[:16])]


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
