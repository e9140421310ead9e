"""A draft head of one decoder layer behind fc, in torch: EAGLE-1 (arXiv 2401.15077) and MTP (arXiv 2412.19437, 2.2).

Slot s is at position s. It takes fc of the embedding of token s and of f: the target's last hidden state at token s - 1
after its final norm, or in a draft the head's own output there. It predicts token s + 1. Such heads are trained without
slot 0, before which there is no token: no other slot sees it.

Legend: n slots, d hidden size, h query heads, k key/value heads, e head dimension, E experts, w width of an expert.
"""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.engine.models.heads.base import Candidates, HeadInfo, likeliest
from prolepsis.engine.models.heads.foreign import HeadTensors
from prolepsis.engine.models.heads.format import HeadConfig
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.models.targets.lean import LeanModel, norm_heads, optional_norm, rms_norm, rotary, rotate, scoring
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.models.targets.paged_attention import (
    LayerKV,
    PlainCache,
    page_bytes,
    paged_attention,
    plan_attention,
)

_LAYER = "layers.0"


class GatedLinear:
    """A feed-forward without experts: down(silu(gate x) * up x)."""

    def __init__(self, tensors: HeadTensors, name: str, width: int, d: int) -> None:
        self._gate = tensors.take(f"{name}.gate_proj.weight", width, d)
        self._up = tensors.take(f"{name}.up_proj.weight", *self._gate.shape)
        self._down = tensors.take(f"{name}.down_proj.weight", d, len(self._gate))

    def __call__(self, x: Tensor) -> Tensor:  # [n, d] -> [n, d]
        return F.linear(F.silu(F.linear(x, self._gate)) * F.linear(x, self._up), self._down)


class Mixture:
    """A mixture of experts: those with the largest router scores, and a shared one that is always asked.

    Scores are a softmax, or with a correction bias sigmoids, to which it is added where experts are chosen, among the
    groups with the best two (DeepSeek-V3, 2.1.2).
    """

    def __init__(self, tensors: HeadTensors, config: HeadConfig) -> None:
        name, d, document = f"{_LAYER}.mlp", config.shape.hidden, config.document
        self._router = tensors.take(f"{name}.gate.weight", -1, d)
        self._experts = [GatedLinear(tensors, f"{name}.experts.{i}", -1, d) for i in range(len(self._router))]
        self._bias = tensors.optional(f"{name}.gate.e_score_correction_bias", len(self._experts))
        has_shared = tensors.has(f"{name}.shared_expert.up_proj.weight")
        self._shared = GatedLinear(tensors, f"{name}.shared_expert", -1, d) if has_shared else None
        self._shared_gate = tensors.optional(f"{name}.shared_expert_gate.weight", 1, d)
        self._count = int(document["num_experts_per_tok"])
        self._groups = int(document.get("n_group") or 1), int(document.get("topk_group") or 1)
        self._normed = bool(document.get("norm_topk_prob", True))
        self._factor = float(document.get("routed_scaling_factor") or 1.0)

    def __call__(self, x: Tensor) -> Tensor:  # [n, d] -> [n, d]
        weights, chosen = self._route(x)
        mixed = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            out = self._experts[expert](x[rows]) * weights[rows, places, None]
            mixed.index_add_(0, rows, out.to(x.dtype))
        if self._shared is None:
            return mixed
        shared = self._shared(x)
        return mixed + (shared if self._shared_gate is None else F.linear(x, self._shared_gate).sigmoid() * shared)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [n, count] float32 and numbers [n, count] of each row's experts."""
        logits = F.linear(x.float(), self._router.float())
        if self._bias is None:
            weights, chosen = logits.softmax(-1).topk(self._count)
        else:
            scores, (groups, kept) = logits.sigmoid(), self._groups
            grouped = (scores + self._bias).view(len(x), groups, -1)
            best = grouped.topk(min(2, grouped.shape[-1])).values.sum(-1).topk(kept).indices
            hidden = torch.ones(len(x), groups, dtype=torch.bool, device=x.device).scatter(1, best, value=False)
            chosen = grouped.masked_fill(hidden[..., None], -torch.inf).flatten(1).topk(self._count).indices
            weights = scores.gather(1, chosen)
        if self._normed:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self._factor, chosen


class BlockLayer:
    """A head's parts, taken from its tensors; raises `ModelLoadError` for what is missing, misshapen or left over."""

    def __init__(self, tensors: HeadTensors, config: HeadConfig) -> None:
        shape, d, attn = config.shape, config.shape.hidden, f"{_LAYER}.self_attn"
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self._shape = shape
        self._fc = tensors.take("fc.weight", d, 2 * d), tensors.optional("fc.bias", d)
        self._fc_norms = tensors.optional("embed_norm.weight", d), tensors.optional("hidden_norm.weight", d)
        self._input_norm = tensors.optional(f"{_LAYER}.input_layernorm.weight", d)  # EAGLE-1 has none
        q, self._gate = tensors.take(f"{attn}.q_proj.weight", -1, d), None
        if len(q) == 2 * queries:  # Qwen3-Next: each head's query, then the gate on what it mixes
            q, self._gate = (part.flatten(0, 1) for part in q.view(shape.heads, 2, -1, d).unbind(1))
        self._qkv = [q, *(tensors.take(f"{attn}.{part}_proj.weight", keys, d) for part in "kv")]
        sizes = (("q", queries), ("k", keys), ("v", keys))
        self._biases = [tensors.optional(f"{attn}.{part}_proj.bias", rows) for part, rows in sizes]
        self._qk_norms = [tensors.optional(f"{attn}.{part}_norm.weight", -1) for part in "qk"]
        self._o = tensors.take(f"{attn}.o_proj.weight", d, queries)
        self._post_norm = tensors.take(f"{_LAYER}.post_attention_layernorm.weight", d)
        self._feed_forward: Mixture | GatedLinear
        if tensors.has(f"{_LAYER}.mlp.gate.weight"):
            self._feed_forward = Mixture(tensors, config)
        else:
            self._feed_forward = GatedLinear(tensors, f"{_LAYER}.mlp", shape.intermediate, d)
        self._norm = tensors.optional("norm.weight", d)  # EAGLE-1 predicts what has passed the target's norm
        tensors.check_all_taken()

    def enter(self, embedding: Tensor, f: Tensor) -> Tensor:
        """Return the layer's input [n, d] of token embeddings and f, both [n, d]."""
        pairs = zip((embedding, f), self._fc_norms, strict=True)
        return F.linear(torch.cat([optional_norm(x, norm, self._shape.eps) for x, norm in pairs], dim=-1), *self._fc)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [n, h, e] and keys, and values, both [n, k, e], of the layer's input."""
        shape, normed = self._shape, optional_norm(x, self._input_norm, self._shape.eps)
        angles = rotary(torch.tensor(shape.rope.inv_freq, device=x.device), positions) * shape.rope.scaling
        pairs = zip(self._qkv, self._biases, strict=True)
        q, k, v = (F.linear(normed, weight, bias).view(len(x), -1, shape.head_dim) for weight, bias in pairs)
        normed_heads = zip((q, k), self._qk_norms, strict=True)
        q, k = (x if norm is None else norm_heads(x, norm, shape.eps) for x, norm in normed_heads)
        return rotate(q, angles), rotate(k, angles), v

    def leave(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return f of the next slot, the input of the output head, [n, d]; `mixed` is [n, h * e]."""
        eps = self._shape.eps
        if self._gate is not None:
            mixed = mixed * F.linear(optional_norm(x, self._input_norm, eps), self._gate).sigmoid()
        hidden = x + F.linear(mixed, self._o)
        hidden = hidden + self._feed_forward(rms_norm(hidden, self._post_norm, eps))
        return optional_norm(hidden, self._norm, eps)


class BlockHead:
    """A `DraftHead` on its target's device and in its dtype."""

    def __init__(self, name: str, config: HeadConfig, tensors: HeadTensors, target: LeanModel | NativeModel) -> None:
        shape = config.shape
        self._shape, self._target = shape, target
        self._layer = BlockLayer(tensors, config)
        self._dtype, self._device = tensors.dtype, tensors.device
        self._lm_head = target.output_head()
        num_bytes = tensors.num_bytes + (self._lm_head.nbytes if isinstance(target, NativeModel) else 0)
        self._kv = [LayerKV(shape.kv_heads, shape.head_dim, shape.head_dim)]
        sizes = (target.info.num_layers,), shape.hidden, page_bytes(self._kv, self._dtype), num_bytes
        self.info = HeadInfo(name, *sizes, serves=config.serves)

    def make_cache(self, num_pages: int) -> KVCache:
        return PlainCache(self._kv, num_pages, self._dtype, self._device)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        return likeliest(*self.logits(batch, cache, features, None), count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        return likeliest(*self.logits(batch, cache, None, states), count)

    @torch.no_grad()
    def logits(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [L, vocab] and states [L, d], both float32, of `batch.logit_rows`."""
        assert isinstance(cache, PlainCache), "a cache made by this head"
        target, layer, device = self._target, self._layer, self._device
        given = states if features is None else features
        assert given is not None, "a head takes features or states"
        f = given.to(device, self._dtype)
        f = f if features is None else rms_norm(f, target.final_norm, target.shape.eps)
        x = layer.enter(target.embedding_rows(batch.token_ids.long()), f)
        q, k, v = layer.project(x, batch.positions.to(device))
        plan = plan_attention(batch, device)
        for sequence, cached in zip(plan.sequences, batch.cached.tolist(), strict=True):
            sequence.visible[0 if cached else 1 :, 0] = False  # slot 0, to all rows but its own
        cache.write(0, plan.slots, k, v)
        mixed = paged_attention(q, cache, 0, plan, scoring(self._shape.layers[0]))
        rows = batch.logit_rows.to(device)
        out = layer.leave(x[rows], mixed[rows].flatten(1))
        return F.linear(out, self._lm_head).float(), out.float()
