"""The readable torch forward of a `LeanShape` over paged KV; the native forward is tested against it.

Legend: T tokens of the step, L logits kept, h query heads, k key/value heads, d head dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.protocol import Batch, KVCache, ModelInfo
from prolepsis.engine.models.targets.lean_shape import LayerShape, LeanShape, Rope
from prolepsis.engine.models.targets.lean_weights import EndParts, LayerParts, WeightReader, output_rows
from prolepsis.engine.models.targets.paged_attention import (
    LayerKV,
    PlainCache,
    Scoring,
    enough_rows,
    page_bytes,
    paged_attention,
    plan_attention,
)

Parts = TypeVar("Parts", LayerParts[Tensor], EndParts[Tensor])
Rotaries = Mapping[Rope, Tensor]  # [2, T, 1, r / 2] each: cosine and sine


class LeanModel:
    """A target model on torch's kernels, on the CPU or CUDA."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape, name: str, device: torch.device) -> None:
        """Load all weights onto `device`; raises `ModelLoadError` for missing or misshapen tensors."""
        self.shape = shape
        self.device = device
        reader = WeightReader(checkpoint, shape, checkpoint.tensor)
        self.ends = parts_to(reader.ends(), device)
        self.layers = [parts_to(fused(layer), device) for layer in reader.layers()]
        self.dtype, self.final_norm = self.ends.embedding.dtype, self.ends.final_norm
        self._inv_freq = {rope: torch.tensor(rope.inv_freq, device=device) for rope in shape.ropes}
        self._kv = [LayerKV(shape.kv_heads, shape.head_dim, shape.head_dim)] * len(shape.layers)
        self.info = ModelInfo(
            name=name,
            forward="lean (torch)" if self.dtype == torch.bfloat16 else "lean (torch, float32)",
            vocab_size=shape.vocab,
            max_positions=shape.max_positions,
            num_layers=len(shape.layers),
            page_bytes=page_bytes(self._kv, self.dtype),
            weight_bytes=_num_bytes([*self.layers, self.ends]),
            eos_token_ids=checkpoint.eos_token_ids,
            token_bytes=shape.token_bytes,
            device=str(device),
        )

    def make_cache(self, num_pages: int) -> PlainCache:
        return PlainCache(self._kv, num_pages, self.dtype, self.device)

    @torch.no_grad()
    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        return self.forward_features(batch, cache, ())[0]

    @torch.no_grad()
    def forward_features(self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, PlainCache), "a cache made by this model"
        entering = self.hidden_states(batch, cache, len(self.layers))
        x = entering[-1]
        features = torch.cat([entering[i] for i in aux_layers], dim=1) if aux_layers else x[:, :0]
        return self.logits(x[batch.logit_rows.to(self.device)]), features.to(torch.bfloat16)

    def hidden_states(self, batch: Batch, cache: PlainCache, num_layers: int) -> list[Tensor]:  # of [T, hidden]
        """Write the K/V of the first `num_layers` layers; return the input of each and the output of the last."""
        plan = plan_attention(batch, self.device)
        rotaries = self.rotaries(batch.positions.to(self.device))
        entering = [self.embed(batch.token_ids.to(self.device))]
        for i, layer in enumerate(self.layers[:num_layers]):
            x = entering[-1]
            q, k, v = before_attention(x, layer, rotaries, self.shape)
            cache.write(i, plan.slots, k, v)
            mixed = paged_attention(q, cache, i, plan, scoring(layer.shape))
            entering.append(after_attention(x, mixed, layer, self.shape))
        return entering

    def output_rows(self, ids: Tensor) -> Tensor:  # [n, hidden]
        return output_rows(self.ends, ids)

    def output_head(self) -> Tensor:  # [vocab, hidden]
        return self.ends.embedding if self.ends.head is None else self.ends.head

    def embedding_rows(self, ids: Tensor) -> Tensor:  # [n, hidden]
        return self.ends.embedding[ids.to(self.device)]

    def embed(self, token_ids: Tensor) -> Tensor:  # [T, hidden]
        x = self.ends.embedding[token_ids]
        return x if self.shape.embedding_scale == 1.0 else x * self.shape.embedding_scale

    def rotaries(self, positions: Tensor) -> Rotaries:
        """Return the angles of each rotation of the layers at these positions [T]."""
        return {rope: rotary(inv_freq, positions) * rope.scaling for rope, inv_freq in self._inv_freq.items()}

    def logits(self, x: Tensor, vocab_size: int | None = None) -> Tensor:  # [L, vocab] float32
        """Return the logits of hidden states [L, hidden], of the first `vocab_size` tokens (None: all)."""
        logits = linear(rms_norm(x, self.final_norm, self.shape.eps), self.output_head()[:vocab_size]).float()
        logits = logits if self.shape.logit_scale == 1.0 else logits * self.shape.logit_scale
        cap = self.shape.logit_cap  # Gemma 2 (arXiv 2408.00118, 2.2) brings values into (-cap, cap), smoothly
        return logits if cap is None else torch.tanh(logits / cap) * cap


def scoring(layer: LayerShape) -> Scoring:
    return Scoring(scale=layer.score_scale, window=layer.window, softcap=layer.score_cap)


def before_attention(
    x: Tensor, layer: LayerParts[Tensor], rotaries: Rotaries, shape: LeanShape
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries [T, h, d], rotated keys [T, k, d] and values [T, k, d] of hidden states [T, hidden]."""
    [weight] = layer.qkv
    qkv = linear(optional_norm(x, layer.before_attention, shape.eps), weight, layer.qkv_bias)
    heads = qkv.view(len(x), -1, shape.head_dim)
    q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = norm_heads(q, layer.q_norm, shape.eps), norm_heads(k, layer.k_norm, shape.eps)
    if layer.shape.rope is None:
        return q, k, v
    angles = rotaries[layer.shape.rope]
    return rotate(q, angles), rotate(k, angles), v


def after_attention(x: Tensor, mixed: Tensor, layer: LayerParts[Tensor], shape: LeanShape) -> Tensor:
    """Return the layer's output [T, hidden]: output projection and gated feed-forward, each added to its input."""

    def add(x: Tensor, sublayer: Tensor, norm: Tensor | None) -> Tensor:
        added = optional_norm(sublayer, norm, shape.eps)
        return x + (added if layer.shape.residual_scale == 1.0 else added * layer.shape.residual_scale)

    x = add(x, linear(mixed.flatten(1), layer.o), layer.after_attention)
    [gate_up] = layer.gate_up
    gate, up = linear(optional_norm(x, layer.before_feed_forward, shape.eps), gate_up).chunk(2, dim=-1)
    return add(x, linear(activate(gate, layer.shape.activation) * up, layer.down), layer.after_feed_forward)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # [T, out]
    """Return `x` [T, in] times `weight` [out, in]; on the CPU few rows as many (`enough_rows`)."""
    return F.linear(enough_rows(x), weight, bias)[: len(x)]


def activate(x: Tensor, activation: str) -> Tensor:
    """Apply one of `ACTIVATIONS`; on the CPU row by row.

    torch computes what is left of a whole vector with other instructions, so where a value stands counts.
    """
    function = F.silu if activation == "silu" else partial(F.gelu, approximate="tanh")
    return torch.stack([function(row) for row in x]) if x.device.type == "cpu" else function(x)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the root-mean-square norm over the last dimension, computed in float32, in `x`'s dtype."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * normed.to(torch.promote_types(x.dtype, weight.dtype))).to(x.dtype)


def optional_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else rms_norm(x, weight, eps)


def norm_heads(heads: Tensor, weight: Tensor, eps: float) -> Tensor:  # [T, heads, d]
    """Norm heads [T, heads, d] in groups of the weight's size: each by itself [d], or all of a token at once."""
    return rms_norm(heads.reshape(len(heads), -1, len(weight)), weight, eps).view_as(heads)


def rotary(inv_freq: Tensor, positions: Tensor) -> Tensor:  # [2, T, 1, r / 2] float32
    """Return cosine and sine of the angles at `positions` [T], `inv_freq` [r / 2] a position."""
    angles = positions[:, None].float() * inv_freq
    return torch.stack([angles.cos(), angles.sin()])[:, :, None]


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the pairs (i, i + r / 2) of each head of `x` ([T, heads, d]) by `angles` [2, T, 1, r / 2], in float32."""
    cos, sin = angles
    size = 2 * cos.shape[-1]
    first, second = x[..., :size].float().chunk(2, dim=-1)
    rest = x[..., size:].float()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)


def fused(layer: LayerParts[Tensor]) -> LayerParts[Tensor]:
    """Return `layer` with its projections of the same input as one matrix."""
    return replace(layer, qkv=(torch.cat(layer.qkv),), gate_up=(torch.cat(layer.gate_up),))


def parts_to(parts: Parts, device: torch.device) -> Parts:
    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return value.to(device) if isinstance(value, Tensor) else value

    return replace(parts, **{field.name: moved(getattr(parts, field.name)) for field in fields(parts)})


def _num_bytes(weights: Sequence[LayerParts[Tensor] | EndParts[Tensor]]) -> int:
    values = [getattr(parts, field.name) for parts in weights for field in fields(parts)]
    tensors = [tensor for value in values for tensor in (value if isinstance(value, tuple) else (value,))]
    return sum(int(tensor.nbytes) for tensor in tensors if isinstance(tensor, Tensor))
