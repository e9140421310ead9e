"""GGUF files of architectures that only transformers knows run on its forward, without further packages."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.general import GeneralModel
from tests.engine.models.files.vocabularies import plain_fields, tokens_of, write_fields
from tests.engine.models.tiny import one, reference, run


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
