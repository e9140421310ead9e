"""The readable torch forward of a draft head over paged KV, for targets on the lean forward; the native one is tested
against it."""

from dataclasses import fields

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.batch import Batch
from prolepsis.models.draft_head import Candidates, HeadInfo
from prolepsis.models.head_file import HeadConfig, HeadWeights
from prolepsis.models.lean import LeanModel, after_attention, rms_norm, rotate
from prolepsis.models.lean_shape import LeanLayer
from prolepsis.models.paged_attention import Scoring, paged_attention, plan_attention
from prolepsis.models.plain_cache import LayerKV, PlainCache, page_bytes
from prolepsis.models.protocol import KVCache


class LeanHead:
    """A `models.draft_head.DraftHead` on torch's kernels, on its target's device and in its dtype."""

    def __init__(self, name: str, config: HeadConfig, weights: HeadWeights, target: LeanModel) -> None:
        device, dtype = target.device, target.dtype
        self._config = config
        self._target = target
        placed = {f.name: _placed(getattr(weights, f.name), device, dtype) for f in fields(HeadWeights)}
        self._weights = w = HeadWeights(**placed)  # type: ignore[arg-type]  # only input_norm may be None
        self._qkv = torch.cat([w.q, w.k, w.v])
        self._layer = LeanLayer(
            qkv=self._qkv,
            qkv_bias=None,
            o=w.o,
            gate_up=torch.cat([w.gate, w.up]),
            down=w.down,
            input_norm=w.embed_norm,
            post_norm=w.post_norm,
            q_norm=None,
            k_norm=None,
        )
        self._target_ids = weights.target_ids.to(device)
        self._kv = [LayerKV(config.shape.kv_heads, config.shape.head_dim, config.shape.head_dim)]
        self._scoring = Scoring(scale=config.shape.head_dim**-0.5)
        self._info = HeadInfo(
            name=name,
            taps=config.taps,
            feature_size=weights.fc.shape[1],
            num_candidates=config.draft_vocab,
            page_bytes=page_bytes(self._kv, dtype),
            weight_bytes=sum(int(t.nbytes) for t in (w.fc, self._qkv, w.o, self._layer.gate_up, w.down, w.lm_head)),
        )

    @property
    def info(self) -> HeadInfo:
        return self._info

    def make_cache(self, num_pages: int) -> KVCache:
        """Allocate zeroed KV pages."""
        return PlainCache(self._kv, num_pages, self._target.dtype, self._target.device)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        """Run a pass over committed tokens (`DraftHead.committed`)."""
        return self._candidates(self.logits(batch, cache, features, None), count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        """Run a pass over drafted tokens (`DraftHead.drafted`)."""
        return self._candidates(self.logits(batch, cache, None, states), count)

    @torch.no_grad()
    def logits(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [L, draft vocabulary] and states [L, hidden], float32, of `batch.logit_rows`."""
        assert isinstance(cache, PlainCache), "a cache made by this head"
        config, target, w = self._config, self._target, self._weights
        shape = config.shape
        g = self._start(features) if features is not None else states
        assert g is not None, "a head takes features or states"
        g = g.to(target.dtype)
        plan = plan_attention(batch, target.device)
        embedded = rms_norm(target.ends.embedding[batch.token_ids.to(target.device)], w.embed_norm, shape.eps)
        normed = rms_norm(g, w.hidden_norm, shape.eps)
        heads = F.linear(torch.cat([embedded, normed], dim=1), self._qkv).view(len(g), -1, shape.head_dim)
        q, k, v = torch.split(heads, [shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        rotary = target.rotary(batch.positions.to(target.device))
        cache.write(0, plan.slots, rotate(k, rotary), v)
        mixed = paged_attention(rotate(q, rotary), cache, 0, plan, self._scoring)
        x = after_attention(normed if config.norm_before_residual else g, mixed, self._layer, shape)
        x = x[batch.logit_rows.to(target.device)]
        out = rms_norm(x, w.norm, shape.eps)
        return F.linear(out, w.lm_head).float(), (out if config.norm_output else x).float()

    def _start(self, features: Tensor) -> Tensor:  # [T, F] -> [T, hidden]
        given, norm = features.to(self._target.device, self._target.dtype), self._weights.input_norm
        if norm is not None:
            given = rms_norm(given, norm, self._config.shape.eps)
        return F.linear(given, self._weights.fc)

    def _candidates(self, found: tuple[Tensor, Tensor], count: int) -> Candidates:
        logits, states = found
        logprobs, ids = logits.log_softmax(-1).topk(count)
        return Candidates(self._target_ids[ids].cpu(), logprobs.cpu(), states)


def _placed(tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    if tensor is None or not tensor.is_floating_point():
        return tensor if tensor is None else tensor.to(device)
    return tensor.to(device, dtype)
