"""A pass reads every matrix once, in the form in which the file has it; memory has it as the settings say."""

from pathlib import Path

import gguf
import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.source import open_model
from prolepsis.engine.models.files.weight_bytes import bytes_per_pass, least_loaded_bytes
from tests.engine.models.files.gguf_files import write_gguf
from tests.engine.models.tiny import save_tiny


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
