"""A draft head on the native forward: the target's threads, embedding and page layout, one layer of its own."""

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.batch import Batch
from prolepsis.models.draft_head import Candidates, HeadInfo
from prolepsis.models.head_file import HeadConfig, HeadWeights
from prolepsis.models.lean_shape import LeanLayer
from prolepsis.models.native import WIDTH, NativeCache, NativeModel, add_layer, as_float, operands
from prolepsis.models.protocol import PAGE_SIZE, KVCache


class NativeHead:
    """A `models.draft_head.DraftHead` for a target on the native forward."""

    def __init__(
        self, name: str, config: HeadConfig, weights: HeadWeights, target: NativeModel, *, eight_bit: bool = True
    ) -> None:
        """Keep matrices in 8 bits, or in bfloat16 where tests compare the two.

        Raises `ModelLoadError` for sizes that the native forward does not take.
        """
        shape = config.shape
        for field, size in (
            ("intermediate", shape.intermediate),
            ("head_dim", shape.head_dim),
            ("draft_vocab", config.draft_vocab),
        ):
            if size % WIDTH:
                raise ModelLoadError(
                    f"{field} is {size}; allowed for a head on the native forward: multiples of {WIDTH}"
                )
        self._module = target.module
        self._kv = (shape.kv_heads, shape.head_dim)
        self._target_ids = weights.target_ids
        sizes = (shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate, config.draft_vocab)
        self._decoder = target.decoder.make_head(*sizes, weights.fc.shape[1], shape.eps, eight_bit)
        self._decoder.set_fusion(
            weights.fc.bfloat16(),
            weights.embed_norm.float(),
            weights.hidden_norm.float(),
            as_float(weights.input_norm),
            config.norm_before_residual,
            config.norm_output,
        )
        layer = LeanLayer(
            qkv=torch.cat([weights.q, weights.k, weights.v]),
            qkv_bias=None,
            o=weights.o,
            gate_up=torch.cat([weights.gate, weights.up]),
            down=weights.down,
            input_norm=weights.embed_norm,
            post_norm=weights.post_norm,
            q_norm=None,
            k_norm=None,
        )
        add_layer(self._decoder, layer)
        self._decoder.set_output(weights.lm_head.bfloat16(), weights.norm.float())
        self._info = HeadInfo(
            name=name,
            taps=config.taps,
            feature_size=weights.fc.shape[1],
            num_candidates=config.draft_vocab,
            page_bytes=shape.kv_heads * 2 * PAGE_SIZE * shape.head_dim * 2,
            weight_bytes=self._decoder.weight_bytes(),
        )

    @property
    def info(self) -> HeadInfo:
        return self._info

    def make_cache(self, num_pages: int) -> KVCache:
        """Allocate zeroed KV pages."""
        return NativeCache(self._module, 1, *self._kv, num_pages)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        """Run a pass over committed tokens (`DraftHead.committed`)."""
        return self._candidates(batch, cache, features, None, count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        """Run a pass over drafted tokens (`DraftHead.drafted`)."""
        return self._candidates(batch, cache, None, states, count)

    def logits(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return logits [L, draft vocabulary] and states [L, hidden], float32, of `batch.logit_rows`."""
        logits, after = self._decoder.draft(*operands(batch, cache), features, states)
        return logits, after

    def _candidates(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None, count: int
    ) -> Candidates:
        logits, after = self.logits(batch, cache, features, states)
        ids, logprobs = self._module.likeliest(logits, count)
        return Candidates(self._target_ids[ids.long()], logprobs, after)
