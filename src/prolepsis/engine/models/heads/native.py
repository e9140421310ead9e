"""A draft head on the native forward: the target's threads, embedding and page layout, one layer of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.files.stored import BF16, Q8_0, StoredMatrix, quantise
from prolepsis.engine.models.heads.base import (
    SHORTLIST,
    Candidates,
    DraftTree,
    HeadInfo,
    Lookahead,
    TreeParams,
    TreeSpec,
)
from prolepsis.engine.models.heads.format import HeadConfig, HeadWeights
from prolepsis.engine.models.heads.levels import LevelWeights
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.lean_weights import LayerParts
from prolepsis.engine.models.targets.native import (
    WIDTH,
    NativeCache,
    NativeModel,
    add_layer,
    as_float,
    part,
    pass_input,
)
from prolepsis.engine.native.forward import NativeTreeParams, NativeTreeSpec, Shape


class NativeHead:
    """A `TreeHead` for a target on the native forward."""

    def __init__(
        self,
        name: str,
        config: HeadConfig,
        weights: HeadWeights,
        target: NativeModel,
        levels: LevelWeights | None = None,
        *,
        eight_bit: bool = True,
    ) -> None:
        """Quantise matrices to 8 bits, or keep bfloat16 so that tests can compare them; levels are in bfloat16.

        Raises `ModelLoadError` for sizes that the native forward cannot run.
        """
        shape = config.shape
        _check_widths(config, levels)
        self._library = target.library
        self._kv = (shape.kv_heads, shape.head_dim)
        self._target_ids = weights.target_ids
        sizes = (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate, config.draft_vocab)
        kind = Q8_0 if eight_bit else BF16
        self._decoder = target.decoder.make_head(Shape(*sizes, shape.eps, 1.0, 1.0, 0.0), int8=eight_bit)
        self._decoder.set_fusion(
            part(quantise(weights.fc, kind)),
            (weights.embed_norm.float(), weights.hidden_norm.float(), as_float(weights.input_norm)),
            norm_before_residual=config.norm_before_residual,
            norm_output=config.norm_output,
        )
        rope = target.shape.ropes.index(target.shape.rope)
        add_layer(self._decoder, _layer(shape, weights, kind), rope)
        if config.storage.output_head == "target":
            self._decoder.take_output(target.decoder, weights.target_ids, weights.norm.float())
        else:
            self._decoder.set_output(part(quantise(weights.lm_head, kind)), weights.norm.float())
        if levels is not None:
            bf16 = levels.to(torch.bfloat16)
            shared = (bf16.enter, bf16.leave, bf16.state, bf16.token, bf16.out)
            self._decoder.set_levels(shared, weights.lm_head.bfloat16(), weights.target_ids, shape.eps)
        self._draft_ids = {token: i for i, token in enumerate(weights.target_ids.tolist())}
        self._shortlist = min(SHORTLIST, config.draft_vocab)
        self.info = HeadInfo(
            name=name,
            aux_layers=config.aux_layers,
            feature_size=weights.fc.shape[1],
            page_bytes=shape.kv_heads * 2 * PAGE_SIZE * shape.head_dim * 2,
            weight_bytes=self._decoder.weight_bytes(),
            levels=levels.count if levels else 0,
            serves=config.serves,
        )

    def make_cache(self, num_pages: int) -> KVCache:
        return NativeCache(self._library, 1, *self._kv, num_pages)

    def make_cache_in(self, cache: KVCache, first_page: int, num_pages: int) -> KVCache:
        return NativeCache(self._library, 1, *self._kv, num_pages, place=(cache, first_page))

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        return self._candidates(batch, cache, features, None, count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        return self._candidates(batch, cache, None, states, count)

    def look_ahead(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Lookahead:
        logits, after, ahead, entered = self._decoder.look_ahead(pass_input(batch, cache), features)
        ids, logprobs = self._decoder.top_k(logits, self._shortlist)
        rows = len(after)
        first = Candidates(self._target_ids[ids[:rows, :count].long()], logprobs[:rows, :count], after)
        return Lookahead(first, ahead, ids[rows:], entered)

    def follow(
        self, lookahead: Lookahead, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        drafted = [(place, self._draft_ids[token]) for place, token in zip(places, tokens, strict=True)]
        count = min(count, self._shortlist)
        ids, logprobs = self._decoder.follow(lookahead.ahead, lookahead.entered, lookahead.shortlist, drafted, count)
        return self._target_ids[ids.long()], logprobs

    def trees(
        self, batch: Batch, cache: KVCache, features: Tensor, tree_params: TreeParams, specs: Sequence[TreeSpec]
    ) -> list[DraftTree]:
        native_specs = [
            NativeTreeSpec(
                spec.max_depth,
                spec.node_budget,
                spec.expansion_threshold,
                spec.params.temperature,
                spec.params.top_k,
                spec.params.nucleus,
                spec.noise_key,
                spec.position,
            )
            for spec in specs
        ]
        native_params = NativeTreeParams(
            tree_params.num_candidates, tree_params.max_children, tree_params.max_expanded, tree_params.min_survival
        )
        trees = self._decoder.trees(pass_input(batch, cache), features, self._shortlist, native_params, native_specs)
        return [DraftTree(*tree) for tree in trees]

    def logits(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return self._decoder.draft(pass_input(batch, cache), features, states)

    def _candidates(
        self, batch: Batch, cache: KVCache, features: Tensor | None, states: Tensor | None, count: int
    ) -> Candidates:
        logits, after = self.logits(batch, cache, features, states)
        ids, logprobs = self._decoder.top_k(logits, count)
        return Candidates(self._target_ids[ids.long()], logprobs, after)


def _check_widths(config: HeadConfig, levels: LevelWeights | None) -> None:
    for field, size in (
        ("levels' width", levels.width if levels else 0),
        ("intermediate", config.shape.intermediate),
        ("head_dim", config.shape.head_dim),
        ("draft_vocab", config.draft_vocab),
    ):
        if size % WIDTH:
            raise ModelLoadError(f"{field} is {size}; allowed for a head on the native forward: multiples of {WIDTH}")


def _layer(shape: LeanShape, weights: HeadWeights, kind: int) -> LayerParts[StoredMatrix]:
    return LayerParts(
        shape=shape.layers[0],
        qkv=(quantise(weights.q, kind), quantise(weights.k, kind), quantise(weights.v, kind)),
        o=quantise(weights.o, kind),
        gate_up=(quantise(weights.gate, kind), quantise(weights.up, kind)),
        down=quantise(weights.down, kind),
        before_attention=weights.embed_norm,
        before_feed_forward=weights.post_norm,
    )
