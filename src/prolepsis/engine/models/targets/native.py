"""The native forward: one C++ operator runs a whole pass of a `LeanShape` on the CPU, for any number of rows.

`sources/decoder.cpp` sums every row in one fixed order, so a row's logits are bitwise the same alone, in a
batch, in a prefill chunk, after a prefix-cache hit and on any branch of a tree.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.stored import PACKED, StoredMatrix
from prolepsis.engine.models.protocol import Batch, KVCache, ModelInfo
from prolepsis.engine.models.targets.lean_shape import LeanShape, Rope
from prolepsis.engine.models.targets.lean_weights import LayerParts, WeightReader
from prolepsis.engine.native.decoder import pick_decoder
from prolepsis.engine.native.forward import Decoder, DecoderLibrary, Part, PassInput, Shape, paged
from prolepsis.engine.native.library import Team, address
from prolepsis.engine.native.processor import default_threads

INVARIANT_BY = "each sum of a row has one order, whatever else is in the pass"
SUPERS = ("q4_k", "q5_k", "q6_k")
"""Formats whose rows have one scale for 256 values, as their integer scales allow; with others it is one for 32."""
WIDTH = 32  # hidden, intermediate, head and rotary widths must be multiples of this


class NativeCache:
    """KV pages, packed as the attention kernel reads them: [layers, pages, kv_heads, 2 * PAGE_SIZE * d] bf16.

    In memory a page's layers lie side by side, so that the first pages in use touch few huge pages of the machine.
    """

    def __init__(
        self,
        library: DecoderLibrary,
        layers: int,
        kv_heads: int,
        head_dim: int,
        num_pages: int,
        *,
        place: tuple[KVCache, int] | None = None,
    ) -> None:
        """Allocate zeroed pages, or share the memory that another cache has from a page on."""
        shape = num_pages, layers, kv_heads, 2 * PAGE_SIZE * head_dim
        if place is None:
            pages = library.zeros(*shape)
        else:
            cache, first_page = place
            assert isinstance(cache, NativeCache), "native caches share memory among themselves"
            pages = cache.tensor.transpose(0, 1)[first_page:].flatten()[: math.prod(shape)].view(shape)
        self.tensor: Tensor = pages.transpose(0, 1)
        self.place = paged(self.tensor)
        self._library = library

    @property
    def num_pages(self) -> int:
        return self.tensor.shape[1]

    def copy_page(self, source: int, target: int) -> None:
        self.tensor[:, target] = self.tensor[:, source]

    def clear_page(self, page: int) -> None:
        self.tensor[:, page] = 0

    def views(self, page: int) -> Sequence[Tensor]:
        """Return all that is stored of a page: [layers, kv_heads, 2 * PAGE_SIZE * d]."""
        return [self.tensor[:, page]]

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        self._library.move(self.tensor, pages, moves)


class NativeModel:
    """A target on the native forward. Raises `ModelLoadError` for an unsupported model or machine."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        shape: LeanShape,
        name: str,
        threads: int | None = None,
        *,
        int8_activations: bool = True,
    ) -> None:
        """Load weights as `checkpoint` stores them; rows meet quantised ones in 8 bits or in bf16."""
        check_widths(shape)
        self.shape = shape
        self._kv = (len(shape.layers), shape.kv_heads, shape.head_dim)
        self.kernel = pick_decoder()
        self.library = self.kernel.library
        sizes = (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate, shape.vocab)
        scales = (shape.embedding_scale, shape.logit_scale, shape.logit_cap or 0.0)
        native_shape = Shape(*sizes, shape.eps, *scales)
        self.decoder = self.library.make(native_shape, threads or default_threads(), int8=int8_activations)
        for rope in shape.ropes:
            self.decoder.add_rope(*angles(rope, shape.max_positions))
        kinds = Counter[int]()

        def read(tensor: str) -> StoredMatrix:
            matrix = checkpoint.matrix(tensor)
            kinds[matrix.kind] += math.prod(matrix.shape)
            return matrix

        reader = WeightReader(checkpoint, shape, read)
        for layer in reader.layers():
            rotated = layer.shape.rope
            add_layer(self.decoder, layer, -1 if rotated is None else shape.ropes.index(rotated))
        layers = list(kinds.items())
        ends = reader.ends()
        output = ends.head or ends.embedding
        self.products = [*(("layers", *entry) for entry in layers), ("output", output.kind, math.prod(output.shape))]
        """Where, with which format of weights, and how many: the multiply-adds of a row."""
        self.final_norm = ends.final_norm.float()  # [hidden]
        self.decoder.set_ends(part(ends.embedding), None if ends.head is None else part(ends.head), self.final_norm)
        rounding = computation([PACKED[kind] for kind in kinds], int8=int8_activations)
        self.info = ModelInfo(
            name=name,
            forward=f"native ({', '.join((self.kernel.name, *rounding))})",
            vocab_size=shape.vocab,
            max_positions=shape.max_positions,
            num_layers=len(shape.layers),
            page_bytes=len(shape.layers) * shape.kv_heads * 2 * PAGE_SIZE * shape.head_dim * 2,
            weight_bytes=self.decoder.weight_bytes(),
            eos_token_ids=checkpoint.eos_token_ids,
            token_bytes=shape.token_bytes,
            computation=", ".join(rounding),
            invariant_by=INVARIANT_BY,
        )

    @property
    def team(self) -> Team:
        return self.decoder.team

    def output_rows(self, ids: Tensor) -> Tensor:  # [n, hidden] bfloat16
        return self.decoder.output_rows(ids)

    def output_head(self) -> Tensor:  # [vocab, hidden] bfloat16, a copy
        return self.output_rows(torch.arange(self.shape.vocab))

    def embedding_rows(self, ids: Tensor) -> Tensor:  # [n, hidden] bfloat16
        return self.decoder.embedding_rows(ids)

    def make_cache(self, num_pages: int) -> NativeCache:
        return NativeCache(self.library, *self._kv, num_pages)

    def make_cache_in(self, cache: KVCache, first_page: int, num_pages: int) -> NativeCache:
        return NativeCache(self.library, *self._kv, num_pages, place=(cache, first_page))

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        return self.forward_features(batch, cache, ())[0]

    def forward_features(self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.forward_argmax(batch, cache, aux_layers)[:2]

    def forward_argmax(
        self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[int]]:
        features = torch.empty(batch.num_tokens, len(aux_layers) * self.shape.hidden, dtype=torch.bfloat16)
        logits, argmax = self.decoder.forward(pass_input(batch, cache), aux_layers, features)
        return logits, features, argmax


def pass_input(batch: Batch, cache: KVCache) -> PassInput:
    """Return where the tensors of batch and cache lie, and hold them."""
    assert isinstance(cache, NativeCache), "the native forward reads its own cache layout only"
    tokens, sequences, rows = batch.num_tokens, batch.num_sequences, len(batch.logit_rows)
    width = batch.pages.shape[-1]
    sizes = (
        (batch.token_ids, (tokens,)),
        (batch.positions, (tokens,)),
        (batch.parents, (tokens,)),
        (batch.starts, (sequences + 1,)),
        (batch.cached, (sequences,)),
        (batch.pages, (sequences, width)),
        (batch.logit_rows, (rows,)),
    )
    places = (address(tensor, torch.int32, *size) for tensor, size in sizes)
    found = PassInput(*places, tokens, sequences, width, rows, *cache.place)
    found.held = batch, cache.tensor
    return found


def computation(kinds: list[str], *, int8: bool) -> list[str]:
    """Say how weights of these formats are multiplied; nothing for bf16, in which nothing is rounded again."""
    if set(kinds) == {"bf16"}:
        return []
    widths = sorted({256 if kind in SUPERS else 32 for kind in kinds if kind != "bf16"})
    rounded = "int8 activations" if widths == [32] else f"int8 activations by {' and '.join(map(str, widths))}"
    return [f"{' and '.join(kinds)} weights", rounded if int8 else "bf16 activations"]


def part(matrix: StoredMatrix) -> Part:
    return matrix.data, matrix.kind


def check_widths(shape: LeanShape) -> None:
    """Raise `ModelLoadError` for a size that the native forward cannot run."""
    sizes = {field: getattr(shape, field) for field in ("hidden", "intermediate", "head_dim")}
    sizes["the rotated part of a head"] = max((2 * len(rope.inv_freq) for rope in shape.ropes), default=0)
    for name, size in sizes.items():
        if size % WIDTH:
            raise ModelLoadError(f"{name} is {size}; allowed: multiples of {WIDTH}")


def angles(rope: Rope, num_positions: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [num_positions, r / 2] float32 of a rotation's angles.

    Computed in float64: torch's cosine in float32 differs in last bits from one start of a process to the next, where
    two threads are the first to use it at once, and from one instruction set to another.
    """
    phases = torch.arange(num_positions).float()[:, None] * torch.tensor(rope.inv_freq)[None]
    exact = phases.double().numpy()
    cosine, sine = (torch.from_numpy(function(exact)).float() for function in (np.cos, np.sin))
    return cosine * rope.scaling, sine * rope.scaling


def add_layer(decoder: Decoder, layer: LayerParts[StoredMatrix], rope: int) -> None:
    """Give a decoder its next layer: matrices as they are stored, the rest in float32.

    `rope` numbers the rotation of its queries and keys among the decoder's; -1 for none.
    """
    shape = layer.shape
    scores = (shape.window or 0, shape.score_scale, shape.score_cap or 0.0)
    vectors = (
        layer.qkv_bias,
        layer.before_attention,
        layer.after_attention,
        layer.before_feed_forward,
        layer.after_feed_forward,
        layer.q_norm,
        layer.k_norm,
    )
    decoder.add_layer(
        (rope, *scores, shape.residual_scale, shape.activation != "silu"),
        ([part(matrix) for matrix in layer.qkv], part(layer.o), [part(m) for m in layer.gate_up], part(layer.down)),
        [as_float(vector) for vector in vectors],
    )


def as_float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()
