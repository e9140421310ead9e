"""What a model's files say of it, for clients that ask which model they talk to."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The model as its files have it; empty where they are not known, as those of an upstream engine."""

    format: str = ""  # gguf or safetensors
    architecture: str = "unknown"  # as llama.cpp names it: llama, qwen2
    parameter_size: str = ""  # its parameters as people say them: 135M, 1.5B
    quantization: str = ""  # the format of most of its weights: Q4_K_M, BF16
    num_bytes: int = 0
    modified: float = 0.0  # Unix time in seconds
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    """By the keys of GGUF: `general.parameter_count`, and of a GGUF file all of the model: `qwen2.context_length`."""
    digest: str = ""  # identity of the weights, 64 hexadecimal digits
