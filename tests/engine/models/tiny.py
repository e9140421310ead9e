"""Tiny random models of real architectures, and a driver that feeds them through pages in awkward ways."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.protocol import KVCache, SequenceInput, TargetModel, pack

BASE: dict[str, object] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3: dict[str, object] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
MOE: dict[str, object] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
WINDOWS: dict[str, object] = {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA: dict[str, object] = {"query_pre_attn_scalar": 24, "tie_word_embeddings": True}
LONGROPE: dict[str, object] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 1.0,
}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "mistral-window": ("mistral", {"sliding_window": 40}),
    "qwen3-window": ("qwen3", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "gemma2": (
        "gemma2",
        {**WINDOWS, **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3_text",
        {
            **WINDOWS,
            **GEMMA,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "phi3-window": ("phi3", {"sliding_window": 33}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.15,
            "residual_multiplier": 0.22,
            "logits_scaling": 4.0,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "olmo2": ("olmo2", {}),
}
"""Families whose layers differ from Llama's, on sizes of `BASE`."""

LEAN: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"head_dim": None}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE}),
    **FAMILIES,
}
GENERAL: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {"head_dim": None}),
    "qwen3": ("qwen3", {}),
    "mistral-window": ("mistral", {"sliding_window": 40}),
    "gemma2": ("gemma2", {**WINDOWS, "query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3_text", {**WINDOWS, "query_pre_attn_scalar": 16}),
    "qwen3-moe": ("qwen3_moe", MOE),
    "mixtral": ("mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "gpt-oss": ("gpt_oss", {**WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def save_tiny(folder: Path, kind: str, changes: dict[str, object]) -> PreTrainedModel:
    """Write a random float32 model to `folder` and return it, with eager attention."""
    model = random_model(kind, changes)
    model.save_pretrained(folder)
    return model


def random_model(kind: str, changes: dict[str, object], seed: int = 7) -> PreTrainedModel:
    """Return a random float32 model with eager attention."""
    fields = {**BASE, **changes}
    config = AutoConfig.for_model(kind, **{k: v for k, v in fields.items() if v is not None or k == "sliding_window"})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    assert isinstance(model, PreTrainedModel)
    return model


@contextmanager
def rounded(kind: str, changes: dict[str, object]) -> Iterator[tuple[PreTrainedModel, Checkpoint]]:
    """A random model with weights that bf16 holds exactly, and its float32 checkpoint."""
    with TemporaryDirectory() as folder:
        model = save_tiny(Path(folder), kind, changes)
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        model.save_pretrained(folder)
        yield model, open_checkpoint(Path(folder), torch.float32)


def close(found: Tensor, expected: Tensor, most: float = 0.03) -> None:
    """Within what bf16 activations allow: this share of the logits' own spread."""
    assert found.shape == expected.shape
    error = (found - expected).pow(2).mean().sqrt() / expected.std()
    assert error < most, f"relative error {error:.3f}"


def tokens(count: int, seed: int) -> list[int]:
    drawn: list[int] = torch.randint(3, 160, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def path_to(node: int, parents: list[int]) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@torch.no_grad()
def reference(model: PreTrainedModel, tokens: list[int]) -> Tensor:  # [len(tokens), vocab]
    """Logits of the class's own full forward."""
    logits: Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0]


def one(tokens: list[int], cached: int, pages: list[int], **rest: object) -> SequenceInput:
    """A sequence that keeps the logits of all its tokens."""
    return SequenceInput(tokens, cached, pages, keep_last=len(tokens), **rest)  # type: ignore[arg-type]


def scattered(count: int) -> tuple[list[int], list[int]]:
    """Pages of two sequences, interleaved and out of order."""
    order = list(range(2 * count))[::-1]
    return order[::2], order[1::2]


def run(target: TargetModel, cache: KVCache, *sequences: SequenceInput) -> Tensor:
    """One step over `sequences`."""
    return target.forward(pack(list(sequences)), cache)


PROMPT_PAGES = 4
PROMPT = 2 * PAGE_SIZE + 17
