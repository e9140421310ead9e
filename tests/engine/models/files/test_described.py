"""What files say of their model, as clients ask for it."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.files import sha256_of
from prolepsis.core.model_files import ModelFiles
from prolepsis.engine.models.files.described import bytes_per_pass, described, least_loaded_bytes
from prolepsis.engine.models.files.quality import MeasuredQuality, measured_quality, record_quality
from prolepsis.engine.models.files.source import open_model
from tests.engine.models.files.gguf_files import write_gguf, write_parts
from tests.engine.models.tiny import BASE, save_tiny

SHAPE = {"embedding_length": BASE["hidden_size"], "block_count": BASE["num_hidden_layers"]}


def test_a_file_is_described_by_its_header(tmp_path: Path) -> None:
    model, file = save_tiny(tmp_path / "model", "llama", {}), tmp_path / "m.gguf"
    changes: dict[str, Any] = {"general.size_label": "1.5B", "general.file_type": 15, "llama.rope.freq_base": 1e4}
    write_gguf(file, model, "llama", kind=gguf.GGMLQuantizationType.Q8_0, changes=changes)
    os.utime(file, (5.0, 5.0))
    found = described(open_model(file), "ab" * 32)
    assert (found.format, found.architecture, found.parameter_size) == ("gguf", "llama", "1.5B")
    assert (found.quantization, found.digest, found.modified) == ("Q4_K_M", "ab" * 32, 5.0)
    assert found.num_bytes == file.stat().st_size
    assert {key: found.facts[f"llama.{key}"] for key in SHAPE} == SHAPE
    assert found.facts["general.parameter_count"] == sum(p.numel() for p in model.parameters())
    assert not any(key.startswith("tokenizer.") for key in found.facts)
    json.dumps(found.facts, allow_nan=False)


@pytest.mark.parametrize(("stated", "expected"), [(None, "Q8_0"), (7, "Q8_0"), (0, "F32"), (999, "Q8_0")])
def test_a_file_that_names_no_format_has_that_of_most_weights(
    tmp_path: Path, stated: int | None, expected: str
) -> None:
    model = save_tiny(tmp_path / "model", "llama", {})
    changes: dict[str, Any] = {} if stated is None else {"general.file_type": stated}
    write_gguf(tmp_path / "m.gguf", model, "llama", kind=gguf.GGMLQuantizationType.Q8_0, changes=changes)
    assert described(open_model(tmp_path / "m.gguf")).quantization == expected


def test_all_parts_of_a_model_count(tmp_path: Path) -> None:
    parts = write_parts(tmp_path, save_tiny(tmp_path / "model", "llama", {}))
    assert described(open_model(parts[0])).num_bytes == sum(part.stat().st_size for part in parts)


def test_numbers_that_json_has_no_form_for_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write_gguf(file, save_tiny(tmp_path / "model", "llama", {}), "llama", changes={"general.x": float("nan")})
    assert "general.x" not in described(open_model(file)).facts


@pytest.mark.parametrize(("kind", "architecture"), [("llama", "llama"), ("qwen2", "qwen2"), ("gemma3_text", "gemma3")])
def test_a_folder_is_described_by_its_configuration_and_weights(tmp_path: Path, kind: str, architecture: str) -> None:
    model = save_tiny(tmp_path, kind, {}).bfloat16()
    model.save_pretrained(tmp_path)
    found = described(tmp_path)
    assert (found.format, found.architecture, found.quantization) == ("safetensors", architecture, "BF16")
    assert found.facts == {"general.parameter_count": model.num_parameters()}
    assert found.num_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_without_weights_the_configuration_is_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    found = described(tmp_path)
    assert (found.format, found.architecture, found.num_bytes, found.parameter_size) == ("", "qwen2", 0, "")
    assert described(tmp_path / "none") == ModelFiles(facts={"general.parameter_count": 0})


@pytest.mark.parametrize(
    ("number", "expected"), [(134_515_008, "135M"), (1_543_714_304, "1.5B"), (7_615_616_512, "7.6B")]
)
def test_parameters_are_shown_as_people_say_them(tmp_path: Path, number: int, expected: str) -> None:
    entry = {"dtype": "BF16", "shape": [number], "data_offsets": [0, 0]}
    head = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    assert described(tmp_path).parameter_size == expected


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_counts_where_it_is_the_output_head_too(tmp_path: Path, tied: bool) -> None:
    model = save_tiny(tmp_path / "model", "llama", {"tie_word_embeddings": tied})
    expected = sum(4 * p.numel() for name, p in model.named_parameters() if tied or "embed_tokens" not in name)
    assert bytes_per_pass(tmp_path / "model") == expected
    write_gguf(tmp_path / "m.gguf", model, "llama")
    assert bytes_per_pass(tmp_path / "m.gguf") == expected


def test_quantised_weights_count_as_they_are_stored(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "llama", {"tie_word_embeddings": True})
    write_gguf(tmp_path / "m.gguf", model, "llama", kind=gguf.GGMLQuantizationType.Q8_0)
    sizes = {True: 34 / 32, False: 4}
    expected = sum(p.numel() * sizes[p.ndim == 2] for p in model.parameters())
    assert bytes_per_pass(tmp_path / "m.gguf") == expected
    assert least_loaded_bytes(open_model(tmp_path / "m.gguf"), "q8") == least_loaded_bytes(tmp_path / "m.gguf", "q8")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x05")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is not a whole"):
        bytes_per_pass(tmp_path)


def test_loaded_weights_take_what_the_setting_says(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "llama", {"tie_word_embeddings": True})
    count = sum(p.numel() for p in model.parameters())
    expected = {"auto": 2 * count, "bf16": 2 * count, "q8": count * 34 / 32, "q4": count * 20 / 32}
    for weights, num_bytes in expected.items():
        assert least_loaded_bytes(tmp_path / "model", weights) == pytest.approx(num_bytes, abs=1)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    (tmp_path / "quality.json").write_text("[]")
    return tmp_path / "quality.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_bytes(b"weights")
    return tmp_path / "m.gguf"


def measured(model: Path, rounding: str = "q4_1 weights, int8 activations", kl: float = 0.012) -> MeasuredQuality:
    return MeasuredQuality(model.name, sha256_of(model), rounding, kl, 0.951, 12.34, 12.3, 20480, "texts", "abc")


def test_figures_are_found_by_the_bytes_of_the_file(record: Path, model: Path, tmp_path: Path) -> None:
    record_quality([measured(model), measured(model, "q4_1 weights, bf16 activations")], record)
    assert [one.computation.split()[-2] for one in measured_quality(model, record)] == ["int8", "bf16"]
    other = tmp_path / "elsewhere" / "m.gguf"
    other.parent.mkdir()
    other.write_bytes(b"other weights")
    assert measured_quality(other, record) == []
    assert measured_quality(tmp_path / "missing" / "m.gguf", record) == []
    assert measured_quality(tmp_path, record) == []


def test_new_figures_replace_those_of_the_same_file_and_computation(record: Path, model: Path) -> None:
    others = replace(measured(model), sha256="00ff")
    record_quality([measured(model), others], record)
    record_quality([measured(model, kl=0.02)], record)
    assert [one.kl for one in measured_quality(model, record)] == [0.02]
    assert "00ff" in record.read_text()


def test_figures_are_shown_in_words(model: Path) -> None:
    text = measured(model).describe()
    for part in ("KL 0.012 nats", "95.1%", "perplexity 12.34 (float32 12.30)", "20480 tokens of texts"):
        assert part in text
