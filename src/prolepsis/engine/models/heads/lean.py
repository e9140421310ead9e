"""A draft head in torch: its arithmetic slot by slot, for serving and training (`HeadConfig` defines a slot).

Legend: n slots, d hidden size, h query heads, k key/value heads, e head dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.engine.models.heads.base import SHORTLIST, Candidates, HeadInfo, Lookahead, likeliest
from prolepsis.engine.models.heads.format import HeadConfig, HeadWeights
from prolepsis.engine.models.heads.levels import HeadLevels, LevelWeights
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.models.targets.lean import LeanModel, rms_norm, rotary, rotate
from prolepsis.engine.models.targets.paged_attention import (
    LayerKV,
    PlainCache,
    Scoring,
    page_bytes,
    paged_attention,
    plan_attention,
)


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A head's configuration and weights, ready to compute."""

    config: HeadConfig
    weights: HeadWeights

    def fuse(self, features: Tensor) -> Tensor:
        """Return g [n, d] of the target's hidden states [n, aux_layers * d]."""
        w = self.weights
        if w.input_norm is not None:
            features = rms_norm(features, w.input_norm, self.config.shape.eps)
        return F.linear(features, w.fc)

    def enter(self, embedding: Tensor, g: Tensor) -> Tensor:
        """Return the layer's normed input [n, 2d] of token embeddings and g, both [n, d]."""
        w, eps = self.weights, self.config.shape.eps
        return torch.cat([rms_norm(embedding, w.embed_norm, eps), rms_norm(g, w.hidden_norm, eps)], dim=-1)

    def queries(self, x: Tensor, angles: Tensor) -> Tensor:  # [n, h, e], rotated
        return rotate(F.linear(x, self.weights.q).view(len(x), -1, self.config.shape.head_dim), angles)

    def keys_values(self, x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:  # both [n, k, e], keys rotated
        w, head_dim = self.weights, self.config.shape.head_dim
        keys = rotate(F.linear(x, w.k).view(len(x), -1, head_dim), angles)
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
        """Return the input of the output head, and g of the next drafted slot, both [n, d]."""
        out = rms_norm(hidden, self.weights.norm, self.config.shape.eps)
        return out, out if self.config.norm_output else hidden

    def rotary(self, positions: Tensor) -> Tensor:  # [2, n, 1, e / 2] float32: cosine and sine
        rope = self.config.shape.rope
        return rotary(torch.tensor(rope.inv_freq, device=positions.device), positions) * rope.scaling


class LeanHead:
    """A `LookaheadHead` on torch's kernels, on its target's device and in its dtype."""

    def __init__(
        self,
        name: str,
        config: HeadConfig,
        weights: HeadWeights,
        target: LeanModel,
        levels: LevelWeights | None = None,
    ) -> None:
        device, dtype = target.device, target.dtype
        self._target = target

        def placed(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

        given = {f.name: getattr(weights, f.name) for f in fields(HeadWeights)}
        w = replace(weights, **{name: placed(tensor) for name, tensor in given.items() if tensor is not None})
        self._layer = HeadLayer(config, w)
        self._levels = HeadLevels(levels.to(dtype, device), w.norm, config.shape.eps) if levels else None
        self._target_ids = weights.target_ids.to(device)
        self._shortlist = min(SHORTLIST, config.draft_vocab)
        self._kv = [LayerKV(config.shape.kv_heads, config.shape.head_dim, config.shape.head_dim)]
        self._scoring = Scoring(scale=config.shape.head_dim**-0.5)
        self.info = HeadInfo(
            name=name,
            aux_layers=config.aux_layers,
            feature_size=weights.fc.shape[1],
            page_bytes=page_bytes(self._kv, dtype),
            weight_bytes=sum(int(t.nbytes) for t in (w.fc, w.q, w.k, w.v, w.o, w.gate, w.up, w.down, w.lm_head)),
            levels=levels.count if levels else 0,
            serves=config.serves,
        )

    def make_cache(self, num_pages: int) -> KVCache:
        return PlainCache(self._kv, num_pages, self._target.dtype, self._target.device)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        return likeliest(*self.logits(batch, cache, features, None), count, self._target_ids)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        return likeliest(*self.logits(batch, cache, None, states), count, self._target_ids)

    @torch.no_grad()
    def look_ahead(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Lookahead:
        levels = self._levels
        assert levels is not None, "a head with levels"
        hidden = self._hidden(batch, cache, features, None)
        out, after = self._layer.ends(hidden)
        ahead = levels.ahead(hidden).flatten(0, 1)
        logits = F.linear(torch.cat([out, levels.normed(ahead)]), self._layer.weights.lm_head).float()
        first = likeliest(logits[: len(out)], after.float(), count, self._target_ids)
        shortlist = logits[len(out) :].topk(self._shortlist).indices
        return Lookahead(first, ahead.float(), shortlist, levels.entered(ahead).float())

    @torch.no_grad()
    def follow(
        self, lookahead: Lookahead, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        levels, dtype, rows = self._levels, self._target.dtype, list(places)
        assert levels is not None, "a head with levels"
        drafted = self._target.ends.embedding[torch.tensor(tokens, device=self._target.device)]
        states = levels.conditioned(
            lookahead.ahead[rows].to(dtype), lookahead.entered[rows].to(dtype), levels.of_tokens(drafted)
        )
        shortlist = lookahead.shortlist[rows]
        chosen = self._layer.weights.lm_head[shortlist]  # [m, k, hidden]
        logits = torch.matmul(chosen, levels.normed(states)[..., None])[..., 0].float()
        logprobs, order = logits.log_softmax(-1).topk(min(count, self._shortlist))
        return self._target_ids[shortlist.gather(1, order)].cpu(), logprobs.cpu()

    @torch.no_grad()
    def logits(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        out, after = self._layer.ends(self._hidden(batch, cache, features, states))
        return F.linear(out, self._layer.weights.lm_head).float(), after.float()

    def _hidden(self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None) -> Tensor:
        """Return the layer's output [L, hidden] of `batch.logit_rows`."""
        assert isinstance(cache, PlainCache), "a cache made by this head"
        target, layer = self._target, self._layer
        given = features if features is not None else states
        assert given is not None, "a head takes features or states"
        given = given.to(target.device, target.dtype)
        g = layer.fuse(given) if features is not None else given
        plan = plan_attention(batch, target.device)
        x = layer.enter(target.ends.embedding[batch.token_ids.to(target.device)], g)
        angles = target.rotaries(batch.positions.to(target.device))[target.shape.rope]
        cache.write(0, plan.slots, *layer.keys_values(x, angles))
        mixed = paged_attention(layer.queries(x, angles), cache, 0, plan, self._scoring)
        rows = batch.logit_rows.to(target.device)
        return layer.leave(g[rows], mixed[rows].flatten(1))
