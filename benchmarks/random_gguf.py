"""Writes GGUF files with the shapes of published models, random weights and the mixture of formats of Q4_K_M.

    python -m benchmarks.random_gguf SHAPE FOLDER

It writes FOLDER/random-SHAPE.gguf, which is served as random-SHAPE; what memory or disk have no room for is refused.
Random bytes are weights in every format; only the scales of the blocks are set, so that activations stay near 1. A
file is written at the speed of the disk.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from prolepsis.core.files import require_space
from prolepsis.engine.kv.machine import host_memory
from prolepsis.engine.kv.memory import MemoryUse, Room
from prolepsis.engine.models.files.rope import rope_frequencies

Value = int | float | list[bool]

_SCALES = {Kind.Q4_K: (0, 225), Kind.Q5_K: (0, 450), Kind.Q6_K: (208, 1400), Kind.Q5_0: (0, 9), Kind.Q8_0: (0, 74)}
"""Of each format: where the block's float16 scale stands, and the standard deviation of weights of scale 1."""
_WITHOUT_BLOCKS_OF_256 = {Kind.Q4_K: Kind.Q5_0, Kind.Q5_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0}
"""Formats that stand in for others where rows are no multiple of 256, as in llama.cpp's files."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a published model, and how its family differs from Llama in a GGUF file."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    rope_base: float
    tied: bool = True
    query_norms: bool = False
    biased: bool = False
    """Queries, keys and values have biases, as in Qwen 2."""
    norms_after: bool = False
    fused: bool = False
    llama3_factor: float | None = None
    more: dict[str, Value] = field(default_factory=dict)
    """Further metadata of the architecture."""


_GRANITE: dict[str, Value] = {
    "attention.scale": 0.015625,
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
}
_PHI4: dict[str, Value] = {"rope.dimension_count": 96, "rope.scaling.original_context_length": 4096}


def _qwen3(layers: int, hidden: int, heads: int, intermediate: int, *, tied: bool) -> ModelShape:
    sizes = (layers, hidden, heads, 8, 128, intermediate, 151936, 40960)
    return ModelShape("qwen3", *sizes, 1e6, tied=tied, query_norms=True)


SHAPES = {
    "smollm2-135m": ModelShape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "gemma-3-1b": ModelShape(
        *("gemma3", 26, 1152, 4, 1, 256, 6912, 262144, 32768, 1e6),
        norms_after=True,
        query_norms=True,
        more={"attention.sliding_window": 512},
    ),
    "llama-3.2-1b": ModelShape("llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, llama3_factor=32.0),
    "qwen2.5-coder-1.5b": ModelShape("qwen2", 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e6, biased=True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144, tied=True),
    "granite-3.3-2b": ModelShape("granite", 40, 2048, 32, 8, 64, 8192, 49159, 131072, 1e7, more=_GRANITE),
    "smollm3-3b": ModelShape("smollm3", 36, 2048, 16, 4, 128, 11008, 128256, 65536, 5e6),
    "llama-3.2-3b": ModelShape("llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, llama3_factor=32.0),
    "phi-4-mini": ModelShape("phi3", 32, 3072, 24, 8, 128, 8192, 200064, 131072, 1e4, fused=True, more=_PHI4),
    "gemma-3-4b": ModelShape(
        *("gemma3", 34, 2560, 8, 4, 256, 10240, 262144, 131072, 1e6),
        norms_after=True,
        query_norms=True,
        more={"attention.sliding_window": 1024, "rope.scaling.factor": 8.0},
    ),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "mistral-7b": ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, tied=False),
    "llama-3.1-8b": ModelShape(
        "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, tied=False, llama3_factor=8.0
    ),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288, tied=False),
}
"""By name, the smallest first. Sources: the config.json of each model at its publisher."""


def write_random(path: Path, shape: ModelShape, seed: int = 0) -> None:
    """Write the model to `path`."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name(f"random {path.stem.removeprefix('random-')}")
    _write_metadata(writer, shape)
    tensors = list(_tensors(shape))
    for name, size, kind in tensors:
        stored = size if kind == Kind.F32 else gguf.quant_shape_to_byte_shape(size, kind)
        dtype = np.dtype(np.float32 if kind == Kind.F32 else np.uint8)
        writer.add_tensor_info(name, stored, dtype, _bytes(size, kind), None if kind == Kind.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.default_rng(seed)
    for name, size, kind in tensors:
        if name == "rope_freqs.weight":
            writer.write_tensor_data(_divisors(shape))
        elif kind == Kind.F32:
            spread = 0.0 if name.startswith("rope_factors") else 0.1
            mean = 0.0 if name.endswith(".bias") else 1.0
            writer.write_tensor_data((mean + generator.normal(0, spread, size)).astype(np.float32))
        else:
            writer.write_tensor_data(_matrix(size, kind, generator))
    writer.close()


def weight_bytes(shape: ModelShape) -> int:
    """Return the bytes of the file's weights."""
    return sum(_bytes(size, kind) for _, size, kind in _tensors(shape))


def _bytes(size: tuple[int, ...], kind: Kind) -> int:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return math.prod(size) // int(block) * int(block_bytes)


def _tensors(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...], Kind]]:
    """Yield name, size and format of each tensor."""
    output = Kind.Q6_K
    yield "token_embd.weight", (shape.vocab, shape.hidden), _fitting(output if shape.tied else Kind.Q4_K, shape.hidden)
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.hidden), _fitting(output, shape.hidden)
    yield "output_norm.weight", (shape.hidden,), Kind.F32
    if shape.llama3_factor is not None:
        yield "rope_freqs.weight", (shape.head_dim // 2,), Kind.F32
    if shape.architecture == "phi3":
        for length in ("long", "short"):
            yield f"rope_factors_{length}.weight", (int(str(shape.more["rope.dimension_count"])) // 2,), Kind.F32
    for i in range(shape.layers):
        for name, size, kind in _layer(shape, i):
            fitting = kind if kind == Kind.F32 else _fitting(kind, size[-1])
            yield f"blk.{i}.{name}" if name.endswith(".bias") else f"blk.{i}.{name}.weight", size, fitting


def _layer(shape: ModelShape, i: int) -> Iterator[tuple[str, tuple[int, ...], Kind]]:
    eighth = shape.layers // 8
    is_finer = i < eighth or i >= 7 * shape.layers // 8 or (i - eighth) % 3 == 2
    better = Kind.Q6_K if is_finer else Kind.Q4_K
    rows, kv_rows, hidden, inner = (
        *(shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim),
        *(shape.hidden, shape.intermediate),
    )
    norms = ["attn_norm", "ffn_norm", *(("post_attention_norm", "post_ffw_norm") if shape.norms_after else ())]
    yield from ((norm, (hidden,), Kind.F32) for norm in norms)
    if shape.query_norms:
        yield from ((norm, (shape.head_dim,), Kind.F32) for norm in ("attn_q_norm", "attn_k_norm"))
    if shape.biased:
        sizes = {"q": rows, "k": kv_rows, "v": kv_rows}
        yield from ((f"attn_{name}.bias", (size,), Kind.F32) for name, size in sizes.items())
    if shape.fused:
        yield "attn_qkv", (rows + 2 * kv_rows, hidden), Kind.Q5_K
        yield "ffn_up", (2 * inner, hidden), Kind.Q4_K
    else:
        yield "attn_q", (rows, hidden), Kind.Q4_K
        yield "attn_k", (kv_rows, hidden), Kind.Q4_K
        yield "attn_v", (kv_rows, hidden), better
        yield "ffn_gate", (inner, hidden), Kind.Q4_K
        yield "ffn_up", (inner, hidden), Kind.Q4_K
    yield "attn_output", (hidden, rows), Kind.Q4_K
    yield "ffn_down", (hidden, inner), better


def _fitting(kind: Kind, width: int) -> Kind:
    return kind if width % 256 == 0 else _WITHOUT_BLOCKS_OF_256[kind]


def _divisors(shape: ModelShape) -> NDArray[np.float32]:
    """Return what llama.cpp divides the angles of Llama 3 by."""
    plain = {"rope_type": "default", "rope_theta": shape.rope_base}
    scaled = plain | {
        "rope_type": "llama3",
        "factor": shape.llama3_factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    before, after = (np.array(rope_frequencies(rope, shape.head_dim)[0]) for rope in (plain, scaled))
    divisors: NDArray[np.float32] = (before / after).astype(np.float32)
    return divisors


def _matrix(size: tuple[int, ...], kind: Kind, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return random blocks whose weights deviate by 0.7 over the root of their row's width, around 0."""
    rows, width = size
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.frombuffer(generator.bytes(rows * width // block * block_bytes), np.uint8).reshape(-1, block_bytes).copy()
    at, deviation = _SCALES[kind]
    scale = 0.7 / width**0.5 / deviation
    data[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    if kind in (Kind.Q4_K, Kind.Q5_K):  # the minimum takes the mean of the codes away
        data[:, 2:4] = np.array([scale * (7.5 if kind == Kind.Q4_K else 15.5)], np.float16).view(np.uint8)
    return data.reshape(rows, -1)


def _write_metadata(writer: gguf.GGUFWriter, shape: ModelShape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    for key, value in shape.more.items():
        kinds = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
        writer.add_key_value(f"{shape.architecture}.{key}", value, kinds[type(value)])
    if "rope.scaling.factor" in shape.more:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    tokens, merges = _vocabulary(shape.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *[1] * (len(tokens) - 2)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}")


def _vocabulary(size: int) -> tuple[list[str], list[str]]:
    """Return the tokens, all bytes and texts that nothing is made of, and the merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = ["h e", "l l", "he ll"]
    known = ["<s>", "</s>", *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    return [*known, *(f"t{i}" for i in range(len(known), size))], merges


def main() -> None:
    """Write the model that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    size, memory = weight_bytes(SHAPES[given.shape]), host_memory()
    Room(memory.place, memory.free).check(MemoryUse(f"random weights of {given.shape}", size))
    given.folder.mkdir(parents=True, exist_ok=True)
    require_space(given.folder, size)
    file = given.folder / f"random-{given.shape}.gguf"
    write_random(file, SHAPES[given.shape])
    print(file)


if __name__ == "__main__":
    main()
