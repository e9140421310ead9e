"""A model in several GGUF files is read as one, whichever is named, and parts that are not of one model are refused."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_file import GgufFile, part_paths
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.general import GeneralModel
from tests.engine.models.files.gguf_files import write_gguf, write_parts
from tests.engine.models.files.vocabularies import plain_fields, tokens_of, write_fields
from tests.engine.models.tiny import one, reference, run, save_tiny


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    model = save_tiny(tmp_path / "model", "llama", {})
    write_gguf(tmp_path / "whole.gguf", model, "llama")
    paths = write_parts(tmp_path, model)
    assert len(paths) == 3
    return paths


def test_parts_are_one_model_whichever_is_named(parts: list[Path]) -> None:
    whole = open_checkpoint(parts[0].with_name("whole.gguf"), torch.float32)
    for path in parts:
        checkpoint = open_checkpoint(path, torch.float32)
        assert checkpoint.source == parts[0]
        assert checkpoint.config == whole.config
        assert sorted(checkpoint.tensors) == sorted(whole.tensors)
        for name in whole.tensors:
            assert torch.equal(checkpoint.tensor(name), whole.tensor(name))


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    for path in (parts[0], parts[2]):
        with pytest.raises(ModelLoadError, match=r"lacks m-00002-of-00003\.gguf: 1 of 3 parts"):
            GgufFile(path)


def test_a_part_by_another_name_is_refused(parts: list[Path]) -> None:
    other = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(ModelLoadError, match=r"one of 3 parts of a model .*NAME-00001-of-00003\.gguf"):
        GgufFile(other)
    shutil.copy(parts[2], parts[1])
    shutil.move(other, parts[0])
    with pytest.raises(ModelLoadError, match=r"says that it is part 3 of 3, .* expected: part 2 of 3"):
        GgufFile(parts[0])


def test_a_part_of_another_model_is_refused(parts: list[Path]) -> None:
    folder = parts[0].parent / "other"
    folder.mkdir()
    others = write_parts(folder, save_tiny(folder / "model", "llama", {"num_hidden_layers": 3}))
    shutil.copy(others[1], parts[1])
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf says that it is part 2 of 4, of a model of 30"):
        GgufFile(parts[0])


def test_a_part_that_is_cut_off_is_named(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-40])
    with pytest.raises(ModelLoadError, match=r"m-00002-of-00003\.gguf is not a whole GGUF file"):
        GgufFile(parts[2])


def test_names_say_which_files_belong_together(tmp_path: Path) -> None:
    assert part_paths(tmp_path / "m.gguf") == [tmp_path / "m.gguf"]
    assert [path.name for path in part_paths(tmp_path / "a-00002-of-00002.gguf")] == [
        "a-00001-of-00002.gguf",
        "a-00002-of-00002.gguf",
    ]
    assert part_paths(tmp_path / "a-00003-of-00002.gguf") == [tmp_path / "a-00003-of-00002.gguf"]


def write_starcoder2(path: Path, extra: str | None = None) -> PreTrainedModel:
    """Write a random float32 model, which has biases and layer norms, and return it; `extra`: one more tensor."""
    fields = plain_fields()
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": None, "tie_word_embeddings": False}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    config = AutoConfig.for_model("starcoder2", vocab_size=len(tokens_of(fields)), **sizes, **heads, **ends)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    writer = gguf.GGUFWriter(path, "starcoder2")
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_context_length, 512),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
    ):
        add(value)
    writer.add_layer_norm_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    write_fields(writer, fields)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.STARCODER2, 2)
    for name, tensor in model.state_dict().items():
        base, _, end = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(base)}.{end}", np.ascontiguousarray(tensor.numpy()))
    if extra is not None:
        writer.add_tensor(extra, np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert isinstance(model, PreTrainedModel)
    return model


def test_it_computes_what_the_model_computes(tmp_path: Path) -> None:
    model = write_starcoder2(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf", torch.float32)
    target = GeneralModel(checkpoint, "tiny", torch.device("cpu"), torch.float32)
    tokens = list(range(3, 20))
    logits = run(target, target.make_cache(1), one(tokens, 0, [0]))
    torch.testing.assert_close(logits, reference(model, tokens), rtol=1e-4, atol=1e-4)


def test_an_architecture_that_none_knows_is_refused_with_those_read_here(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "nobody-knows")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"'nobody-knows', which transformers cannot read: .*read here: llama, "):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["blk.0.foo.weight", "rope_freqs.weight"])
def test_a_tensor_that_transformers_leaves_out_is_refused_by_name(tmp_path: Path, name: str) -> None:
    write_starcoder2(tmp_path / "m.gguf", extra=name)
    with pytest.raises(ModelLoadError, match=f"tensor {name} is not read here .*: 64 of "):
        open_checkpoint(tmp_path / "m.gguf")
