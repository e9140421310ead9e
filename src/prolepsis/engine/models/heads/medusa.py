"""Medusa heads (arXiv 2401.10774) in torch: head i predicts token i + 1 after the last committed one.

All of them take the target's last hidden state after its final norm, at the token before the last one: blocks
x + silu(linear x), then a matrix to logits. None knows what the others drafted, and none keeps K/V.

Legend: L rows, n further heads (levels), d hidden size, V vocabulary.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.heads.base import SHORTLIST, Candidates, HeadInfo, Lookahead, likeliest
from prolepsis.engine.models.heads.foreign import HeadTensors
from prolepsis.engine.models.heads.format import HeadConfig
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.models.targets.lean import LeanModel, rms_norm
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.models.targets.paged_attention import PlainCache


class MedusaWeights:
    """The heads of a file; raises `ModelLoadError` for what is missing, misshapen or left over."""

    def __init__(self, tensors: HeadTensors, config: HeadConfig) -> None:
        d, vocab = config.shape.hidden, config.shape.vocab
        self.blocks: list[list[tuple[Tensor, Tensor | None]]] = []
        self.outputs: list[Tensor] = []  # [V, d] of each head
        while tensors.has(f"{(head := f'heads.{len(self.outputs)}')}.lm_head.weight"):
            blocks: list[tuple[Tensor, Tensor | None]] = []
            while tensors.has(f"{(block := f'{head}.blocks.{len(blocks)}')}.weight"):
                blocks.append((tensors.take(f"{block}.weight", d, d), tensors.optional(f"{block}.bias", d)))
            self.blocks.append(blocks)
            self.outputs.append(tensors.take(f"{head}.lm_head.weight", vocab, d))
        tensors.check_all_taken()
        if len(self.outputs) < 2:
            raise ModelLoadError(f"Medusa with {len(self.outputs)} heads; allowed: 2 or more")

    def state(self, head: int, x: Tensor) -> Tensor:  # [L, d] -> [L, d]
        """Return what the head's output matrix is multiplied by."""
        for weight, bias in self.blocks[head]:
            x = x + F.silu(F.linear(x, weight, bias))
        return x


class MedusaHead:
    """A `LookaheadHead` whose levels are the heads after the first."""

    def __init__(self, name: str, config: HeadConfig, tensors: HeadTensors, target: LeanModel | NativeModel) -> None:
        self._weights = MedusaWeights(tensors, config)
        self._dtype, self._device = tensors.dtype, tensors.device
        self._final_norm, self._eps = target.final_norm, target.shape.eps
        self._shortlist = min(SHORTLIST, config.shape.vocab)
        sizes = (target.info.num_layers,), config.shape.hidden, 0, tensors.num_bytes, len(self._weights.outputs) - 1
        self.info = HeadInfo(name, *sizes, config.serves)

    def make_cache(self, num_pages: int) -> KVCache:
        return PlainCache([], num_pages, self._dtype, self._device)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        return self.look_ahead(batch, cache, features, count).first

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        raise AssertionError("a head with levels drafts all depths in one pass")

    @torch.no_grad()
    def look_ahead(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Lookahead:
        """Do so without the cache: a row depends on its own features only."""
        x = features.to(self._device, self._dtype)[batch.logit_rows.to(self._device)]
        normed, outputs = rms_norm(x, self._final_norm, self._eps), self._weights.outputs
        states = [self._weights.state(head, normed) for head in range(len(outputs))]
        logits = [F.linear(*pair).float() for pair in zip(states, outputs, strict=True)]
        shortlist = torch.cat([row.topk(self._shortlist).indices for row in logits[1:]])
        ahead = torch.cat(states[1:]).float()
        return Lookahead(likeliest(logits[0], x.float(), count), ahead, shortlist, ahead[:, :0])

    @torch.no_grad()
    def follow(
        self, lookahead: Lookahead, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        rows = len(lookahead.first.tokens)
        shortlist = lookahead.shortlist[list(places)]
        chosen = torch.stack(
            [self._weights.outputs[1 + place // rows][ids] for place, ids in zip(places, shortlist, strict=True)]
        )
        ahead = lookahead.ahead[list(places)].to(self._dtype)
        logits = torch.matmul(chosen, ahead[..., None])[..., 0].float()
        logprobs, order = logits.log_softmax(-1).topk(min(count, self._shortlist))
        return shortlist.gather(1, order).cpu(), logprobs.cpu()
