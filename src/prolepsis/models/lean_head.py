"""The readable torch forward of a draft head over paged KV, for targets on the lean forward; the native one is tested
against it."""

from dataclasses import fields

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.batch import Batch
from prolepsis.models.draft_head import Candidates, HeadInfo
from prolepsis.models.head_file import HeadConfig, HeadWeights
from prolepsis.models.head_layer import HeadLayer
from prolepsis.models.lean import LeanModel
from prolepsis.models.paged_attention import Scoring, paged_attention, plan_attention
from prolepsis.models.plain_cache import LayerKV, PlainCache, page_bytes
from prolepsis.models.protocol import KVCache


class LeanHead:
    """A `models.draft_head.DraftHead` on torch's kernels, on its target's device and in its dtype."""

    def __init__(self, name: str, config: HeadConfig, weights: HeadWeights, target: LeanModel) -> None:
        device, dtype = target.device, target.dtype
        self._target = target
        placed = {f.name: _placed(getattr(weights, f.name), device, dtype) for f in fields(HeadWeights)}
        w = HeadWeights(**placed)  # type: ignore[arg-type]  # only input_norm may be None
        self._layer = HeadLayer(config, w)
        self._target_ids = weights.target_ids.to(device)
        self._kv = [LayerKV(config.shape.kv_heads, config.shape.head_dim, config.shape.head_dim)]
        self._scoring = Scoring(scale=config.shape.head_dim**-0.5)
        self._info = HeadInfo(
            name=name,
            taps=config.taps,
            feature_size=weights.fc.shape[1],
            num_candidates=config.draft_vocab,
            page_bytes=page_bytes(self._kv, dtype),
            weight_bytes=sum(int(t.nbytes) for t in (w.fc, w.q, w.k, w.v, w.o, w.gate, w.up, w.down, w.lm_head)),
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
        target, layer = self._target, self._layer
        given = features if features is not None else states
        assert given is not None, "a head takes features or states"
        given = given.to(target.device, target.dtype)
        g = layer.fuse(given) if features is not None else given
        plan = plan_attention(batch, target.device)
        x = layer.enter(target.ends.embedding[batch.token_ids.to(target.device)], g)
        rotary = target.rotary(batch.positions.to(target.device))
        cache.write(0, plan.slots, *layer.keys_values(x, rotary))
        mixed = paged_attention(layer.queries(x, rotary), cache, 0, plan, self._scoring)
        rows = batch.logit_rows.to(target.device)
        out, after = layer.leave(g[rows], mixed[rows].flatten(1))
        return F.linear(out, layer.weights.lm_head).float(), after.float()

    def _candidates(self, found: tuple[Tensor, Tensor], count: int) -> Candidates:
        logits, states = found
        logprobs, ids = logits.log_softmax(-1).topk(count)
        return Candidates(self._target_ids[ids].cpu(), logprobs.cpu(), states)


def _placed(tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    if tensor is None or not tensor.is_floating_point():
        return tensor if tensor is None else tensor.to(device)
    return tensor.to(device, dtype)
