"""Tiny draft heads in the public layouts of other projects, each with a reference that is not ours.

References are transformers' layers: Llama's without its first norm for EAGLE-1, and `MtpLayer` over the layers of
Qwen3-Next and of GLM-4.5, which has DeepSeek's layout of MTP and its mixture with plain attention.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Glm4MoeConfig, LlamaConfig, PretrainedConfig, Qwen3NextConfig
from transformers.modeling_layers import MtpLayer
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from tests.engine.models.tiny import BASE

MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
SIZES: dict[str, Any] = {**BASE, "attn_implementation": "eager", "rope_theta": 5000.0}
BLOCKS = ("eagle", "qwen", "deepseek", "deepseek-dense")
NUM_MEDUSA = 3


class EagleLayer(nn.Module):
    """EAGLE-1's `fc` and layer."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = llama.LlamaDecoderLayer(config, 0)
        self.layer.input_layernorm = nn.Identity()

    def forward(self, embeddings: Tensor, f: Tensor, **rest: Any) -> Tensor:
        out: Tensor = self.layer(self.fc(torch.cat([embeddings, f], -1)), **rest)
        return out


@dataclass(frozen=True, slots=True)
class PublicHead:
    """A random head: its checkpoint, and its definition over whole sequences."""

    config: PretrainedConfig
    tensors: dict[str, Tensor]
    states: Callable[[Tensor, Tensor], Tensor]
    """Its output [n, d] for embeddings [n, d] of tokens and f [n, d] of those before, at positions 1 to n."""

    def save(self, folder: Path, **entries: object) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**self.config.to_dict(), **entries}))
        return folder


def public_head(kind: str, seed: int = 5) -> PublicHead:
    torch.manual_seed(seed)
    layer, config, rotary, offset = _block(kind)
    for name, parameter in [*layer.named_parameters(), *layer.named_buffers()]:
        noise = torch.randn_like(parameter)
        if name.endswith("norm.weight"):
            parameter.data = (1.0 - offset) + 0.2 * noise
        else:
            parameter.data = 0.2 * noise if parameter.ndim < 2 else (0.2 * noise).bfloat16().float()

    def states(embeddings: Tensor, f: Tensor) -> Tensor:
        positions = torch.arange(1, len(f) + 1)[None]
        mask = torch.full((len(f), len(f)), -torch.inf).triu(1)[None, None]
        with torch.no_grad():
            rest = {"position_ids": positions, "attention_mask": mask, "past_key_values": None}
            out: Tensor = layer(embeddings[None], f[None], position_embeddings=rotary(f[None], positions), **rest)
        return out[0]

    named = {_public_name(kind, name): value for name, value in layer.state_dict().items()}
    tensors = {name: value for whole, tensor in named.items() for name, value in _experts(whole, tensor)}
    tensors["embed_tokens.weight" if kind == "eagle" else "model.embed_tokens.weight"] = torch.zeros(160, 64)
    return PublicHead(config, tensors, states)


def _block(kind: str) -> tuple[nn.Module, Any, nn.Module, float]:
    if kind == "eagle":
        config = LlamaConfig(**{**SIZES, "num_hidden_layers": 1})
        return EagleLayer(config), config, llama.LlamaRotaryEmbedding(config), 0.0
    if kind == "qwen":
        sizes = {**SIZES, **MOE, "num_experts": 4, "shared_expert_intermediate_size": 32}
        config = Qwen3NextConfig(**sizes, layer_types=["full_attention"] * 2, partial_rotary_factor=0.5)
        block = MtpLayer(config, qwen.Qwen3NextDecoderLayer, qwen.Qwen3NextRMSNorm, 0)
        return block, config, qwen.Qwen3NextRotaryEmbedding(config), 1.0
    sizes = {**SIZES, **MOE, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
    dense = 9 if kind == "deepseek-dense" else 0
    config = Glm4MoeConfig(**sizes, first_k_dense_replace=dense, attention_bias=True, use_qk_norm=True)
    block = MtpLayer(config, glm.Glm4MoeDecoderLayer, glm.Glm4MoeRMSNorm, 0)
    return block, config, glm.Glm4MoeRotaryEmbedding(config), 0.0


def _public_name(kind: str, name: str) -> str:
    if kind == "eagle":
        return name.replace("layer.", "layers.0.", 1)
    name = name.replace("mtp_block.", "")
    if kind == "qwen":
        top = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}
        first, _, rest = name.partition(".")
        return f"mtp.{top[first]}.{rest}" if first in top else f"mtp.layers.0.{name}"
    return f"model.layers.2.{name.replace('post_norm.', 'shared_head.norm.')}"


def _experts(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors of all experts at once as those that checkpoints have of each."""
    prefix, _, part = name.rpartition(".")
    if part == "gate_up_proj":
        halves = [expert.chunk(2) for expert in tensor]
        return [
            (f"{prefix}.{i}.{half}_proj.weight", value)
            for i, both in enumerate(halves)
            for half, value in zip(("gate", "up"), both, strict=True)
        ]
    if part == "down_proj":
        return [(f"{prefix}.{i}.down_proj.weight", expert) for i, expert in enumerate(tensor)]
    return [(name, tensor)]


@dataclass(frozen=True, slots=True)
class PublicMedusa:
    """Medusa: a block and an output matrix for each head."""

    blocks: list[tuple[Tensor, Tensor]]  # weight and bias
    outputs: list[Tensor]

    def logits(self, f: Tensor, head: int) -> Tensor:
        weight, bias = self.blocks[head]
        return F.linear(f + F.silu(F.linear(f, weight, bias)), self.outputs[head])

    def tensors(self, kind: str) -> dict[str, Tensor]:
        names = ("{0}.0.linear", "{0}.1") if kind == "medusa" else ("blocks.{0}.layers.0", "lm_heads.{0}")
        found: dict[str, Tensor] = {}
        for i, ((weight, bias), output) in enumerate(zip(self.blocks, self.outputs, strict=True)):
            found |= {f"{names[0].format(i)}.weight": weight, f"{names[0].format(i)}.bias": bias}
            found |= {f"{names[1].format(i)}.weight": output}
        return found

    def save(self, folder: Path, kind: str = "medusa", *, pickled: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors(kind)
        if pickled:
            torch.save(tensors, folder / "medusa_lm_head.pt")
        else:
            file = "medusa_lm_head.safetensors" if kind == "medusa" else "model.safetensors"
            save_file(tensors, folder / file)
        config = {
            "medusa_num_heads": len(self.outputs),
            "medusa_num_layers": 1,
            "base_model_name_or_path": "someone/tiny",
        }
        (folder / "config.json").write_text(json.dumps(config))
        return folder


def public_medusa(seed: int = 6) -> PublicMedusa:
    generator = torch.Generator().manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return (0.2 * torch.randn(size, generator=generator)).bfloat16().float()

    heads = range(NUM_MEDUSA)
    return PublicMedusa([(noise(64, 64), noise(64)) for _ in heads], [noise(160, 64) for _ in heads])
