"""The readable torch forward of the Llama-shaped family over paged KV; the native forward is tested against it.

Legend: T tokens of the step, L logits kept, h query heads, k key/value heads, d head dimension.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.files.weights import Checkpoint
from prolepsis.models.protocol import Batch, KVCache, ModelInfo
from prolepsis.models.targets.lean_shape import EndParts, LeanLayer, LeanShape, lean_ends, lean_layers
from prolepsis.models.targets.paged_attention import (
    LayerKV,
    PlainCache,
    Scoring,
    page_bytes,
    paged_attention,
    plan_attention,
)


class LeanModel:
    """A Llama-shaped target model on torch's kernels, on the CPU or CUDA."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape, name: str, device: torch.device) -> None:
        """Load all weights onto `device`; raises `ModelLoadError` for missing or misshapen tensors."""
        self.shape = shape
        self.device = device
        self.ends = ends_to(lean_ends(checkpoint, shape), device)
        self.layers = [layer_to(layer, device) for layer in lean_layers(checkpoint, shape)]
        self.dtype = self.ends.embedding.dtype
        self.scoring = Scoring(scale=shape.head_dim**-0.5)
        self._inv_freq = torch.tensor(shape.inv_freq, dtype=torch.float32, device=device)
        self._kv = [LayerKV(shape.kv_heads, shape.head_dim, shape.head_dim)] * shape.layers
        self._info = ModelInfo(
            name=name,
            architecture=checkpoint.config.model_type,
            forward="lean (torch)",
            vocab_size=shape.vocab,
            max_positions=shape.max_positions,
            num_layers=shape.layers,
            page_bytes=page_bytes(self._kv, self.dtype),
            weight_bytes=_weight_bytes(self.layers, self.ends),
            eos_token_ids=checkpoint.eos_token_ids,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def make_cache(self, num_pages: int) -> PlainCache:
        """Allocate zeroed KV pages."""
        return PlainCache(self._kv, num_pages, self.dtype, self.device)

    @torch.no_grad()
    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        """Write the K/V of `batch` into `cache` and return the logits of its `logit_rows`."""
        return self.forward_features(batch, cache, ())[0]

    @torch.no_grad()
    def forward_features(self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Do `forward` and return its logits and the hidden states entering `aux_layers` (`FeatureModel`)."""
        assert isinstance(cache, PlainCache), "a cache made by this model"
        entering = self.hidden_states(batch, cache, len(self.layers))
        x = entering[-1]
        features = torch.cat([entering[i] for i in aux_layers], dim=1) if aux_layers else x[:, :0]
        return self.logits(x[batch.logit_rows.to(self.device)]), features.to(torch.bfloat16)

    def hidden_states(self, batch: Batch, cache: PlainCache, num_layers: int) -> list[Tensor]:  # of [T, hidden]
        """Write the K/V of the first `num_layers` layers; return the input of each and the output of the last."""
        plan = plan_attention(batch, self.device)
        rotary = self.rotary(batch.positions.to(self.device))
        entering = [self.ends.embedding[batch.token_ids.to(self.device)]]
        for i, layer in enumerate(self.layers[:num_layers]):
            x = entering[-1]
            q, k, v = before_attention(x, layer, rotary, self.shape)
            cache.write(i, plan.slots, k, v)
            mixed = paged_attention(q, cache, i, plan, self.scoring)
            entering.append(after_attention(x, mixed, layer, self.shape))
        return entering

    def rotary(self, positions: Tensor) -> Tensor:  # [2, T, 1, d / 2] float32: cosine and sine
        angles = positions[:, None].float() * self._inv_freq
        return torch.stack([angles.cos(), angles.sin()])[:, :, None] * self.shape.attention_scaling

    def logits(self, x: Tensor, vocab_size: int | None = None) -> Tensor:  # [L, vocab] float32
        """Return the logits of hidden states [L, hidden], of the first `vocab_size` tokens (None: all)."""
        head = self.ends.embedding if self.ends.head is None else self.ends.head
        return F.linear(rms_norm(x, self.ends.final_norm, self.shape.eps), head[:vocab_size]).float()


def before_attention(x: Tensor, layer: LeanLayer, rotary: Tensor, shape: LeanShape) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries [T, h, d], rotated keys [T, k, d] and values [T, k, d] of hidden states [T, hidden]."""
    qkv = F.linear(rms_norm(x, layer.input_norm, shape.eps), layer.qkv, layer.qkv_bias)
    heads = qkv.view(len(x), -1, shape.head_dim)
    q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = rms_norm(q, layer.q_norm, shape.eps), rms_norm(k, layer.k_norm, shape.eps)
    return rotate(q, rotary), rotate(k, rotary), v


def after_attention(x: Tensor, mixed: Tensor, layer: LeanLayer, shape: LeanShape) -> Tensor:
    """Return the layer's output [T, hidden]: output projection and gated feed-forward, each added to its input."""
    x = x + F.linear(mixed.flatten(1), layer.o)
    gate, up = F.linear(rms_norm(x, layer.post_norm, shape.eps), layer.gate_up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, layer.down)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the root-mean-square norm over the last dimension, computed in float32, in `x`'s dtype."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d / 2) of each head of `x` ([T, heads, d]) by `rotary`'s angles, in float32."""
    cos, sin = rotary
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def layer_to(layer: LeanLayer, device: torch.device) -> LeanLayer:
    """Return `layer` on `device`."""
    return replace(layer, **{name: tensor.to(device) for name, tensor in _tensors(layer)})


def ends_to(ends: EndParts[Tensor], device: torch.device) -> EndParts[Tensor]:
    """Return `ends` on `device`."""
    return replace(ends, **{name: tensor.to(device) for name, tensor in _tensors(ends)})


def _weight_bytes(layers: list[LeanLayer], ends: EndParts[Tensor]) -> int:
    parts: list[LeanLayer | EndParts[Tensor]] = [*layers, ends]
    return sum(int(tensor.nbytes) for part in parts for _, tensor in _tensors(part))


def _tensors(part: LeanLayer | EndParts[Tensor]) -> list[tuple[str, Tensor]]:
    values = [(f.name, getattr(part, f.name)) for f in fields(part)]
    return [(name, value) for name, value in values if isinstance(value, Tensor)]
