"""GGUF files give the weights, names, layout and configuration of the model they were written from."""

import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.checkpoint import fit
from prolepsis.engine.models.files.config import LlamaShapedConfig, for_transformers
from prolepsis.engine.models.files.export import export_model
from prolepsis.engine.models.files.gguf import GgufWeights, unpermute
from prolepsis.engine.models.files.gguf_file import GgufFile
from prolepsis.engine.models.files.stored import StoredMatrix
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from tests.engine.models.files.gguf_files import permute, write_gguf
from tests.engine.models.files.vocabularies import Fields, plain_fields, tokens_of, write_vocabulary
from tests.engine.models.tiny import FAMILIES, LLAMA3, LONGROPE, one, reference, run, save_tiny

CPU = torch.device("cpu")


def logits(path: Path, tokens: list[int]) -> torch.Tensor:
    checkpoint = open_checkpoint(path, torch.float32)
    target = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", CPU)
    return run(target, target.make_cache(2), one(tokens, 0, [1, 0]))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("qwen2", {"head_dim": None}),
        ("qwen3", {"head_dim": 32}),
        ("mistral", {"sliding_window": 9}),
        ("phi3", {"sliding_window": 9}),
        FAMILIES["phi3"],
        FAMILIES["granite"],
        ("smollm3", {"num_hidden_layers": 5}),
        FAMILIES["olmo2"],
        FAMILIES["gemma2"],
        ("gemma2", {"sliding_window": 9, "query_pre_attn_scalar": 16, "num_hidden_layers": 3}),
        FAMILIES["gemma3"],
        ("gemma3_text", {"sliding_window": 9, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
    ],
)
def test_it_computes_what_the_model_computes(tmp_path: Path, kind: str, changes: dict[str, object]) -> None:
    if "query_pre_attn_scalar" in changes:
        changes = changes | {"query_pre_attn_scalar": 16}  # llama.cpp takes the size of a head
    model = save_tiny(tmp_path / "model", kind, changes)
    write_gguf(tmp_path / "model.gguf", model, kind.removesuffix("_text"))
    tokens = list(range(3, 60))
    torch.testing.assert_close(logits(tmp_path / "model.gguf", tokens), reference(model, tokens), rtol=1e-4, atol=1e-4)


def test_gemma3_needs_nothing_of_transformers(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "gemma3_text", {"sliding_window": 9, "query_pre_attn_scalar": 16})
    write_gguf(tmp_path / "model.gguf", model, "gemma3")
    config = open_checkpoint(tmp_path / "model.gguf").config
    assert isinstance(config, LlamaShapedConfig)
    assert LeanShape.from_config(config) == LeanShape.from_config(for_transformers(config))


def test_quantised_matrices_come_dequantised(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "llama", {})
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.F16):
        path = tmp_path / f"{kind.name}.gguf"
        write_gguf(path, model, "llama", kind=kind)
        checkpoint = open_checkpoint(path, torch.float32)
        for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"):
            expected = model.state_dict()[name]
            error = (checkpoint.tensor(name) - expected).norm() / expected.norm()
            assert error < (0.1 if kind.name == "Q4_1" else 0.01), kind.name
        assert open_checkpoint(path).tensor("lm_head.weight").dtype == torch.bfloat16


class CountingWeights(GgufWeights):
    num_read = 0

    def stored(self, name: str) -> StoredMatrix:
        self.num_read += 1
        return super().stored(name)


def test_a_matrix_is_read_once_when_it_is_looked_for_and_taken(tmp_path: Path) -> None:
    model, path, name = save_tiny(tmp_path / "model", "llama", {}), tmp_path / "m.gguf", "model.embed_tokens.weight"
    write_gguf(path, model, "llama", kind=gguf.GGMLQuantizationType.Q8_0)
    weights = CountingWeights(GgufFile(path), model.config, torch.bfloat16)
    checkpoint = replace(open_checkpoint(path), stored=weights.matrices)
    checkpoint.matrix(name)
    assert weights.num_read == 1


def test_llama3_scaling_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    rope = LLAMA3 | {"original_max_position_embeddings": 8192}
    changes: dict[str, object] = {"rope_parameters": rope, "head_dim": 64, "max_position_embeddings": 16384}
    model = save_tiny(tmp_path / "model", "llama", changes)
    shape = LeanShape.from_config(model.config)
    plain = 1.0 / 10000.0 ** (torch.arange(0, 64, 2) / 64)
    write_gguf(
        tmp_path / "a.gguf", model, "llama", extra={"rope_freqs.weight": plain / torch.tensor(shape.rope.inv_freq)}
    )
    found = LeanShape.from_config(open_checkpoint(tmp_path / "a.gguf").config)
    torch.testing.assert_close(torch.tensor(found.rope.inv_freq), torch.tensor(shape.rope.inv_freq))
    write_gguf(tmp_path / "b.gguf", model, "llama", extra={"rope_freqs.weight": torch.linspace(1, 3, 32)})
    with pytest.raises(ModelLoadError, match="rope_freqs"):
        open_checkpoint(tmp_path / "b.gguf")


def test_frequencies_of_long_contexts_come_whole_or_not_at_all(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "phi3", {"rope_parameters": LONGROPE})
    factors = {f"rope_factors_{name}.weight": torch.tensor(LONGROPE[f"{name}_factor"]) for name in ("short", "long")}
    changes = {"phi3.rope.scaling.attn_factor": 1.25}
    write_gguf(tmp_path / "a.gguf", model, "phi3", extra=factors, changes={**changes})
    found = open_checkpoint(tmp_path / "a.gguf").config.rope_parameters
    assert found["attention_factor"] == 1.25
    assert LeanShape.from_config(open_checkpoint(tmp_path / "a.gguf").config).rope.scaling == 1.25
    del factors["rope_factors_long.weight"]
    write_gguf(tmp_path / "b.gguf", model, "phi3", extra=factors)
    with pytest.raises(ModelLoadError, match=r"rope_factors_short\.weight but not rope_factors_long\.weight"):
        open_checkpoint(tmp_path / "b.gguf")


def test_unpermute_undoes_permute() -> None:
    rows = torch.randn(24, 5)
    assert torch.equal(unpermute(permute(rows, 3), 3), rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "whole.gguf", save_tiny(folder / "model", "llama", {}), "llama")
    return (folder / "whole.gguf").read_bytes()


@pytest.mark.parametrize("keep", [0, 3, 10, 100, 5000, -10])
def test_a_cut_off_file_is_named(tmp_path: Path, whole: bytes, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:keep])
    with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
        open_checkpoint(path)


@pytest.mark.parametrize(("at", "value"), [(0, b"XXXX"), (4, b"\x63\0\0\0"), (8, b"\xff" * 8), (16, b"\xff" * 8)])
def test_a_broken_header_is_named(tmp_path: Path, whole: bytes, at: int, value: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(whole[:at] + value + whole[at + len(value) :])
    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        open_checkpoint(path)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "nobody-knows")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="nobody-knows"):
        open_checkpoint(tmp_path / "odd.gguf")


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [
        ("llama", {"blk.0.foo.weight": 64}),
        ("llama", {"blk.0.attn_q_norm.weight": 16}),
        ("llama", {"blk.1.ffn_down.bias": 64}),
        ("llama", {"blk.0.attn_q.bias": 64}),
        ("qwen2", {"blk.0.attn_output.bias": 64}),
        ("qwen3", {"blk.0.attn_norm.bias": 64}),
        ("llama", {"rope_factors_long.weight": 8}),
        ("phi3", {"rope_freqs.weight": 8}),
    ],
)
def test_a_tensor_that_is_not_read_is_refused_by_name(tmp_path: Path, architecture: str, extra: dict[str, int]) -> None:
    model = save_tiny(tmp_path / "model", architecture, {})
    tensors = {name: torch.ones(size) for name, size in extra.items()}
    write_gguf(tmp_path / "m.gguf", model, architecture, extra=tensors)
    with pytest.raises(ModelLoadError, match="|".join(re.escape(re.sub(r"blk\.\d\.", "", name)) for name in extra)):
        open_checkpoint(tmp_path / "m.gguf")


def test_biases_of_a_llama_are_computed(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = save_tiny(tmp_path / "model", "llama", {"attention_bias": True, "mlp_bias": True})
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter.data)
    write_gguf(tmp_path / "m.gguf", model, "llama")
    checkpoint = open_checkpoint(tmp_path / "m.gguf", torch.float32)
    assert fit(checkpoint, torch.float32).unexpected == []
    tokens = list(range(3, 20))
    torch.testing.assert_close(reference(fit(checkpoint, torch.float32).model, tokens), reference(model, tokens))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("attention.scale", 2.0), ("logit_scale", 0.5), ("rope.dimension_count", 8)),
        *(("attn_logit_softcapping", 30.0), ("attention.scale", float("nan")), ("rope.scale_linear", 2.0)),
        *(("attention.sliding_window", 8), ("rope.scaling.yarn_beta_fast", 32.0), ("what.nobody_knows", 1)),
    ],
)
def test_a_number_that_would_change_the_result_is_refused_by_name(tmp_path: Path, key: str, value: float) -> None:
    file = written(tmp_path, {f"llama.{key}": value})
    with pytest.raises(ModelLoadError, match=key):
        open_checkpoint(file)


def test_numbers_that_change_nothing_and_keys_of_what_reads_images_are_taken(tmp_path: Path) -> None:
    neutral = {
        "attention.sliding_window": 512,
        "vocab_size": 160,
        "attention.scale": 0.25,
        "logit_scale": 0.0,
        "rope.dimension_count": 16,
        "attention.causal": 1,
        "mm.tokens_per_image": 256,
        "vision.block_count": 27,
        "vision.attention.layer_norm_epsilon": 1e-6,
    }
    open_checkpoint(written(tmp_path, {f"llama.{key}": value for key, value in neutral.items()}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama.attention.head_count": 0}, "head_count is 0; allowed: 1 to"),
        ({"llama.attention.head_count_kv": 3}, "4 heads of queries are no multiple of 3"),
        ({"llama.block_count": 0}, "block_count is 0"),
        ({"llama.block_count": 2**20}, "21 tensors for 1048576 blocks"),
        ({"llama.embedding_length": 3, "llama.attention.key_length": 0}, "an embedding of 3 for 4 heads"),
        ({"llama.attention.layer_norm_rms_epsilon": []}, "lacks the metadata llama.attention.layer_norm_rms_epsilon"),
        ({"llama.attention.layer_norm_rms_epsilon": float("inf")}, "layer_norm_rms_epsilon is inf; expected a number"),
        ({"llama.context_length": 2**31}, "context_length is 2147483648; allowed: 1 to"),
    ],
)
def test_impossible_numbers_are_refused_by_name(
    tmp_path: Path, changes: dict[str, float | str | list[str]], named: str
) -> None:
    file = written(tmp_path, changes)
    with pytest.raises(ModelLoadError, match=named):
        open_checkpoint(file)


def test_numbers_out_of_range_in_the_header_are_no_whole_file(tmp_path: Path, whole: bytes) -> None:
    at = whole.find(b"blk.0.attn_q.weight") + len("blk.0.attn_q.weight") + 4
    for damage in (struct.pack("<Q", 2**62), struct.pack("<QQ", 2**32, 2**32)):
        (tmp_path / "m.gguf").write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        with pytest.raises(ModelLoadError, match="not a whole GGUF file"):
            open_checkpoint(tmp_path / "m.gguf")
    many = whole[: at - 4] + struct.pack("<I", 2**31) + whole[at:]
    (tmp_path / "m.gguf").write_bytes(many)
    with pytest.raises(ModelLoadError, match="dimensions; allowed: up to 4"):
        open_checkpoint(tmp_path / "m.gguf")


def with_sizes(whole: bytes, name: str, rows: int, width: int) -> bytes:
    """Return the bytes of a file with another size of one matrix in its table."""
    at = whole.find(name.encode()) + len(name) + 4
    return whole[:at] + struct.pack("<QQ", width, rows) + whole[at + 16 :]


def test_a_tensor_without_values_is_refused_by_name(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(with_sizes(whole, "blk.0.ffn_down.weight", 2**61, 0))
    with pytest.raises(ModelLoadError, match=r"m\.gguf .*'blk\.0\.ffn_down\.weight' has the shape \[\d+, 0\]; allowed"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("rows", [36, 7])
def test_rows_that_heads_cannot_share_are_refused_by_name(tmp_path: Path, whole: bytes, rows: int) -> None:
    (tmp_path / "m.gguf").write_bytes(with_sizes(whole, "blk.0.attn_q.weight", rows, 64))
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    named = rf"m\.gguf: blk\.0\.attn_q\.weight has {rows} rows; allowed: a multiple of 8, twice its 4 heads"
    with pytest.raises(ModelLoadError, match=named):
        checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")


def test_arrays_are_not_followed_to_any_depth(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQ", 0, 0)
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    (tmp_path / "m.gguf").write_bytes(start + nested)
    with pytest.raises(ModelLoadError, match="nested deeper than 4 levels"):
        GgufFile(tmp_path / "m.gguf")


def written(folder: Path, changes: Mapping[str, float | str | list[str]]) -> Path:
    """Write a tiny Llama with these numbers in its metadata."""
    file = folder / "m.gguf"
    write_gguf(file, save_tiny(folder / "model", "llama", {}), "llama", changes={**changes})
    return file


def vocabulary(path: Path, tokens: dict[str, int], **ends: int) -> GgufFile:
    """Return a file without weights whose tokens have these kinds; `ends`: the ids that it states."""
    stated = {f"tokenizer.ggml.{name}_token_id": token for name, token in ends.items()}
    rows: Fields = {"tokenizer.ggml.tokens": list(tokens), "tokenizer.ggml.token_type": list(tokens.values())}
    return GgufFile(write_vocabulary(path, {**rows, **stated}))


@pytest.mark.parametrize(
    ("tokens", "stated", "ends"),
    [
        ({"a": 1, "<|endoftext|>": 3, "<|im_start|>": 3, "<|im_end|>": 3}, {"eos": 3}, (3, 1)),
        ({"a": 1, "<|endoftext|>": 1, "</s>": 4}, {"eos": 0, "eot": 2**32 - 1}, (0,)),
        ({"a": 1, "<|im_end|>": 4, "<|fim_pad|>": 3, "<|file_sep|>": 3, "<|repo_name|>": 3}, {"eos": 1}, (1, 2, 3, 4)),
        ({"a": 1, "b": 3, "c": 3}, {"fim_pad": 1, "fim_sep": 2}, (1, 2)),
        ({"x": 3, "y": 3, "z": 3, "<eos>": 3, "<end_of_turn>": 3}, {"eos": 0, "eot": 1, "eom": 2}, (0, 1, 2, 3, 4)),
        ({"a": 1, "<|end|>": 3, "<|endoftext|>": 3}, {}, (1, 2)),
        ({"<|end|>": 3, "<|return|>": 3, "<|call|>": 3}, {"eos": 1}, (1, 2)),
    ],
    ids=["qwen", "no added tokens", "coder", "fim", "stated", "phi", "gpt-oss"],
)
def test_stated_and_well_known_control_tokens_end_a_text(
    tmp_path: Path, tokens: dict[str, int], stated: dict[str, int], ends: tuple[int, ...]
) -> None:
    assert vocabulary(tmp_path / "m.gguf", tokens, **stated).end_tokens() == ends


CHANGES: dict[str, object] = {"vocab_size": len(tokens_of(plain_fields()))}
MESSAGES = [{"role": "user", "content": "hello world"}]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = save_tiny(tmp_path / "tiny", "llama", CHANGES)
    write_gguf(tmp_path / "model.gguf", model, "llama")
    return tmp_path / "model.gguf"


def test_a_gguf_file_becomes_a_folder_that_transformers_loads(source: Path, tmp_path: Path) -> None:
    folder = export_model(source, tmp_path / "out" / "tiny")
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16)
    checkpoint = open_checkpoint(source)
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in checkpoint.tensors.items())
    assert tuple(model.generation_config.eos_token_id) == checkpoint.eos_token_ids
    theirs = AutoTokenizer.from_pretrained(str(folder))
    ours = load_tokenizer(source)
    assert theirs("hello world")["input_ids"] == ours.encode("hello world")
    assert theirs.apply_chat_template(MESSAGES, return_dict=False) == ours.apply_chat_template(MESSAGES)
    assert load_tokenizer(folder).fingerprint == ours.fingerprint


def test_a_folder_that_is_there_is_kept_and_a_half_one_never_appears(source: Path, tmp_path: Path) -> None:
    folder = export_model(source, tmp_path / "out")
    (folder / "mark").touch()
    assert export_model(source, folder) == folder
    assert (folder / "mark").exists()
    with pytest.raises(ModelLoadError):
        export_model(tmp_path / "none.gguf", tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf", "out", "tiny"]


def test_a_foreign_folder_is_not_taken_for_an_export(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ModelLoadError, match="is not a model"):
        export_model(source, tmp_path / "mine")


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_tiny(tmp_path / "tiny", "llama", CHANGES)
    file = tmp_path / "tiny" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight"):
        export_model(tmp_path / "tiny", tmp_path / "out")
