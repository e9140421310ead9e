"""A draft head's arithmetic in torch, slot by slot, for serving and training; `HeadConfig` says what a slot is.

Legend: n slots, d hidden size, h query heads, k key/value heads, e head dimension.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.head_file import HeadConfig, HeadWeights
from prolepsis.models.lean import rms_norm, rotate


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A head's configuration and weights, ready to compute."""

    config: HeadConfig
    weights: HeadWeights

    def fuse(self, features: Tensor) -> Tensor:
        """Return g [n, d] of the target's hidden states [n, taps * d]."""
        w = self.weights
        if w.input_norm is not None:
            features = rms_norm(features, w.input_norm, self.config.shape.eps)
        return F.linear(features, w.fc)

    def enter(self, embedding: Tensor, g: Tensor) -> Tensor:
        """Return the layer's normed input [n, 2d] of token embeddings and g, both [n, d]."""
        w, eps = self.weights, self.config.shape.eps
        return torch.cat([rms_norm(embedding, w.embed_norm, eps), rms_norm(g, w.hidden_norm, eps)], dim=-1)

    def queries(self, x: Tensor, rotary: Tensor) -> Tensor:  # [n, h, e], rotated
        return rotate(F.linear(x, self.weights.q).view(len(x), -1, self.config.shape.head_dim), rotary)

    def keys_values(self, x: Tensor, rotary: Tensor) -> tuple[Tensor, Tensor]:  # both [n, k, e], keys rotated
        w, head_dim = self.weights, self.config.shape.head_dim
        keys = rotate(F.linear(x, w.k).view(len(x), -1, head_dim), rotary)
        return keys, F.linear(x, w.v).view(len(x), -1, head_dim)

    def leave(self, g: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output [n, d] after attention; `mixed` is [n, h * e]."""
        w, config = self.weights, self.config
        eps = config.shape.eps
        residual = rms_norm(g, w.hidden_norm, eps) if config.norm_before_residual else g
        hidden = residual + F.linear(mixed, w.o)
        normed = rms_norm(hidden, w.post_norm, eps)
        return hidden + F.linear(F.silu(F.linear(normed, w.gate)) * F.linear(normed, w.up), w.down)

    def ends(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the logits are of and what the next drafted slot takes as g, both [n, d]."""
        out = rms_norm(hidden, self.weights.norm, self.config.shape.eps)
        return out, out if self.config.norm_output else hidden

    def rotary(self, positions: Tensor) -> Tensor:  # [2, n, 1, e / 2] float32: cosine and sine
        shape = self.config.shape
        angles = positions[:, None].float() * torch.tensor(shape.inv_freq, device=positions.device)
        return torch.stack([angles.cos(), angles.sin()])[:, :, None] * shape.attention_scaling
