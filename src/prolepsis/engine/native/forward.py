"""The compiled decoder as Python sees it (`sources/decoder.h`): tensors in, tensors out, all checked before the call.

The decoder copies what it keeps. Legend: T tokens, S sequences, L rows of logits, n levels, V vocabulary.
"""

import ctypes
import sys
from array import array
from collections.abc import Sequence
from ctypes import Structure, byref

import numpy as np
import torch
from torch import Tensor

from prolepsis.engine.native.library import Library, NativeHandle, Team, address, fields, integers, places_of, zeros

_BF16_FORMAT = 30  # of `Part`: values, not the bytes of a stored format
_LINE = 64  # bytes of a cache line
Part = tuple[Tensor, int]
"""A matrix as it is stored: rows of bfloat16 values or of bytes, and the number of their format."""


class Shape(Structure):
    """Sizes of a decoder, epsilon of its norms, and its scales."""

    _fields_ = fields(
        "i hidden heads kv_heads head_dim intermediate vocab", "d eps", "f embedding_scale logit_scale logit_cap"
    )
    hidden: int
    vocab: int


class PassInput(Structure):
    """What a pass computes: addresses of the tensors of a batch, their sizes, and the KV pages with strides."""

    _fields_ = fields(
        "p tokens positions parents starts cached pages logit_rows",
        "i num_tokens num_sequences pages_of_each num_logit_rows",
        "p cache",
        "i layer_stride page_stride",
    )
    num_tokens: int
    num_logit_rows: int
    held: object  # what must live as long


class NativeTreeParams(Structure):
    _fields_ = fields("i num_candidates max_children max_expanded", "d min_survival")


class NativeTreeSpec(Structure):
    _fields_ = fields(
        "i max_depth node_budget", "d expansion_threshold temperature", "i top_k", "d top_p", "u key position"
    )
    node_budget: int


class _Matrix(Structure):
    _fields_ = fields("p data", "i rows width format")


class _Vector(Structure):
    _fields_ = fields("p data", "i size")


class _Layer(Structure):
    _fields_ = (
        *fields("i rope window", "f score_scale score_cap residual_scale", "b gelu", "p qkv gate_up"),
        *fields("i num_qkv num_gate_up"),
        *(("o", _Matrix), ("down", _Matrix), ("vectors", _Vector * 7)),
    )


class _Cache(Structure):
    _fields_ = fields("p data", "i layers kv_heads head_dim layer_stride page_stride")


class DecoderLibrary(Library):
    """The decoder in one build, for an instruction set."""

    def zeros(self, *sizes: int) -> Tensor:
        """Return zeros in bfloat16, on huge pages where the machine has them."""
        size = int(np.prod(sizes))
        mapping = NativeHandle(self.mapping(2 * size), self.mapping_free)
        memory = (ctypes.c_uint8 * (2 * size)).from_address(self.mapping_data(mapping.pointer))
        memory.mapping = mapping  # type: ignore[attr-defined]  # the tensor keeps `memory`
        return torch.frombuffer(memory, dtype=torch.bfloat16).view(sizes)

    def move(self, cache: Tensor, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """Copy slots of one sequence in a cache [layers, pages, kv_heads, 2 * 32 * d]."""
        data, layer_stride, page_stride = paged(cache)
        described = _Cache(data, len(cache), cache.shape[2], cache.shape[3] // 64, layer_stride, page_stride)
        own, slots = integers(pages), integers(slot for pair in moves for slot in pair)
        if not all(0 <= page < cache.shape[1] for page in own) or not all(0 <= slot < 32 * len(own) for slot in slots):
            raise ValueError(f"moves {list(moves)} in pages {list(own)} of {cache.shape[1]}")
        self.move_slots(byref(described), *places_of(own), *places_of(slots), len(moves))

    def make(self, shape: Shape, threads: int, *, int8: bool) -> "Decoder":
        """Return a decoder without weights; stored ones meet rows in 8 bits, or are expanded to bfloat16."""
        return Decoder(self, self.decoder(byref(shape), threads, int8), shape)


def paged(cache: Tensor) -> tuple[int, int, int]:
    """Return address and strides of layers and pages of KV pages; raises `ValueError` for another layout."""
    if cache.dtype != torch.bfloat16 or cache.dim() != 4 or not cache[0, 0].is_contiguous() or not cache.is_cpu:
        raise ValueError(f"KV pages are bfloat16 [layers, pages, heads, size]; given {cache.dtype} {list(cache.shape)}")
    return cache.data_ptr(), cache.stride(0), cache.stride(1)


class Decoder:
    """A decoder, a draft head on a target's embedding, or a target's first layers. All of them share its threads."""

    def __init__(self, library: DecoderLibrary, pointer: int, shape: Shape) -> None:
        self._library, self.hidden, self.vocab = library, shape.hidden, shape.vocab
        self._handle = NativeHandle(pointer, library.decoder_free)
        self._at = pointer
        self._levels = (0, 0)  # number and width
        self._memory, self._first = np.empty(0, np.float32), 0  # of the last logits; where a cache line begins in it

    @property
    def team(self) -> Team:
        return Team(self._library.decoder_team(self._at), self._handle)

    def weight_bytes(self) -> int:
        return self._library.decoder_weight_bytes(self._at)

    def make_head(self, shape: Shape, *, int8: bool) -> "Decoder":
        """Return a draft head without weights, for this target."""
        pointer = self._library.decoder_head(self._at, byref(shape), int8)
        return Decoder(self._library, pointer, shape)

    def make_exit(self, layers: int, vocab: int) -> "Decoder":
        """Return the first layers with the final norm and the first tokens of the output."""
        pointer = self._library.decoder_exit(self._at, layers, vocab)
        return Decoder(self._library, pointer, Shape(hidden=self.hidden, vocab=vocab))

    def add_rope(self, cosine: Tensor, sine: Tensor) -> None:
        positions, half = cosine.shape
        angles = [address(values, torch.float32, positions, half) for values in (cosine, sine)]
        self._library.decoder_add_rope(self._at, *angles, positions, half)

    def add_layer(
        self,
        scalars: tuple[int, int, float, float, float, bool],
        matrices: tuple[Sequence[Part], Part, Sequence[Part], Part],
        vectors: Sequence[Tensor | None],
    ) -> None:
        """Add a layer.

        `scalars`: number of the rotation (-1: none), window (0: all), scale and cap of scores, residual scale, GELU.
        `matrices`: to queries, keys and values; of attention's output; of gates and what they multiply; down.
        `vectors`: bias of queries, keys and values; norms before and after attention, before and after feed-forward,
        of queries and of keys.
        """
        qkv, o, gate_up, down = matrices
        above, below = ((_Matrix * len(parts))(*map(_part, parts)) for parts in (qkv, gate_up))
        pointers = (ctypes.addressof(above), ctypes.addressof(below), len(qkv), len(gate_up))
        layer = _Layer(*scalars, *pointers, _part(o), _part(down), (_Vector * 7)(*map(_vector, vectors)))
        self._library.decoder_add_layer(self._at, byref(layer))

    def set_ends(self, embedding: Part, head: Part | None, norm: Tensor) -> None:
        output = None if head is None else byref(_part(head))
        self._library.decoder_set_ends(self._at, byref(_part(embedding)), output, byref(_vector(norm)))

    def set_fusion(
        self, fc: Part, norms: tuple[Tensor, Tensor, Tensor | None], *, norm_before_residual: bool, norm_output: bool
    ) -> None:
        """`norms`: of embeddings, of states, of features."""
        vectors = [byref(_vector(norm)) for norm in norms]
        self._library.decoder_set_fusion(self._at, byref(_part(fc)), *vectors, norm_before_residual, norm_output)

    def set_output(self, head: Part, norm: Tensor) -> None:
        self._library.decoder_set_output(self._at, byref(_part(head)), byref(_vector(norm)))

    def take_output(self, target: "Decoder", ids: Tensor, norm: Tensor) -> None:
        """Take rows of the target's output for a head's."""
        at = target.place_of(ids)
        self._library.decoder_take_output(self._at, target._at, at, len(ids), byref(_vector(norm)))

    def output_rows(self, ids: Tensor) -> Tensor:  # [N] int64 -> [N, hidden] bfloat16
        rows = torch.empty(len(ids), self.hidden, dtype=torch.bfloat16)
        self._library.decoder_output_rows(self._at, self.place_of(ids), len(ids), rows.data_ptr())
        return rows

    def embedding_rows(self, ids: Tensor) -> Tensor:  # [N] int64 -> [N, hidden] bfloat16
        """Return rows of the target's embedding; ids are not checked."""
        rows = torch.empty(len(ids), self.hidden, dtype=torch.bfloat16)
        self._library.decoder_embedding_rows(self._at, address(ids, torch.int64, len(ids)), len(ids), rows.data_ptr())
        return rows

    def place_of(self, ids: Tensor) -> int:
        """Return where ids of the output lie; raises `ValueError` for one that it lacks."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab:
            raise ValueError(f"ids from {int(ids.min())} to {int(ids.max())}; allowed: 0 to {self.vocab - 1}")
        return address(ids, torch.int64, len(ids))

    def set_levels(self, tensors: Sequence[Tensor], output: Tensor, target_ids: Tensor, eps: float) -> None:
        """Give a head its levels (`models.heads.levels`): enter, leave, state, token and out, and its output head.

        All are bfloat16; `target_ids` [V] int64 are the target's ids of its tokens.
        """
        enter, leave, state, token, out = tensors
        count, width = enter.shape[:2]
        ids = target_ids.contiguous()
        wide = self.embedding_rows(ids).float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        tokens = torch.matmul(normed, token.float().t()).bfloat16().contiguous()
        whole = [tensor.contiguous() for tensor in (enter, leave, state, out, output)]
        sizes = ((count, width, self.hidden), (count, self.hidden, width), (width, self.hidden))
        more = ((self.hidden, width), (self.vocab, self.hidden))
        places = [address(t, torch.bfloat16, *size) for t, size in zip(whole, (*sizes, *more), strict=True)]
        self._library.decoder_set_levels(self._at, count, width, *places, tokens.data_ptr(), ids.data_ptr())
        self._levels = (count, width)

    def forward(
        self, batch: PassInput, taps: Sequence[int] = (), features: Tensor | None = None
    ) -> tuple[Tensor, list[int]]:
        """Return logits [L, V] and the argmax of each row.

        Layer `taps[i]` enters into the i-th part of `features` [T, taps * hidden] bfloat16, which are written.
        """
        logits, argmax, tapped = self._make_logits(batch.num_logit_rows), zeros(batch.num_logit_rows), integers(taps)
        width = len(taps) * self.hidden
        into = address(features, torch.bfloat16, batch.num_tokens, width) if features is not None and width else None
        if width and into is None:
            raise ValueError(f"layers {list(taps)} are tapped without features to write to")
        self._library.decoder_forward(
            self._at, byref(batch), logits.data_ptr(), *places_of(tapped), len(tapped), into, *places_of(argmax)
        )
        return logits, argmax.tolist()

    def draft(self, batch: PassInput, features: Tensor | None, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return a head's logits [L, V] and states [L, hidden]: from bfloat16 features or its own float32 states."""
        logits, after = self._make_logits(batch.num_logit_rows), torch.empty(batch.num_logit_rows, self.hidden)
        given = features if states is None else states
        width = 0 if given is None else given.shape[-1]
        self._library.decoder_draft(
            self._at,
            byref(batch),
            None if features is None else address(features, torch.bfloat16, batch.num_tokens, width),
            None if states is None else address(states, torch.float32, batch.num_tokens, width),
            width,
            logits.data_ptr(),
            after.data_ptr(),
        )
        return logits, after

    def look_ahead(self, batch: PassInput, features: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits [(1 + n) * L, V], states [L, hidden], states of the levels and what of these meets a token."""
        rows, (count, width) = batch.num_logit_rows, self._levels
        at = address(features, torch.bfloat16, batch.num_tokens, features.shape[-1])
        logits, after = self._make_logits((1 + count) * rows), torch.empty(rows, self.hidden)
        ahead, entered = torch.empty(count * rows, self.hidden), torch.empty(count * rows, width)
        places = [out.data_ptr() for out in (logits, after, ahead, entered)]
        self._library.decoder_look_ahead(self._at, byref(batch), at, features.shape[-1], *places)
        return logits, after, ahead, entered

    def top_k(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return ids [R, count] int32 and log-probabilities of the likeliest of logits [R, V], V a multiple of 16."""
        rows, size = logits.shape
        ids, logs = torch.empty(rows, max(count, 0), dtype=torch.int32), torch.empty(rows, max(count, 0))
        at = address(logits, torch.float32, rows, size)
        self._library.decoder_top_k(self._at, at, rows, size, count, ids.data_ptr(), logs.data_ptr())
        return ids, logs

    def follow(
        self, ahead: Tensor, entered: Tensor, shortlist: Tensor, drafted: Sequence[tuple[int, int]], count: int
    ) -> tuple[Tensor, Tensor]:
        """Return candidates after `drafted` (row, draft token): draft ids [m, count] int32 and log-probabilities."""
        rows, size = shortlist.shape
        ids = torch.empty(len(drafted), max(count, 0), dtype=torch.int32)
        logs = torch.empty(len(drafted), max(count, 0))
        pairs = integers(number for pair in drafted for number in pair)
        self._library.decoder_follow(
            self._at,
            address(ahead, torch.float32, rows, self.hidden),
            address(entered, torch.float32, rows, self._levels[1]),
            rows,
            address(shortlist, torch.int32, rows, size),
            size,
            *places_of(pairs),
            len(drafted),
            count,
            ids.data_ptr(),
            logs.data_ptr(),
        )
        return ids, logs

    def trees(
        self,
        batch: PassInput,
        features: Tensor,
        shortlist: int,
        params: NativeTreeParams,
        specs: Sequence[NativeTreeSpec],
    ) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[float, ...]]]:
        """Return tokens, parents, survival and chances of a tree for each spec, whose row is that of the logits."""
        if len(specs) != batch.num_logit_rows or any(spec.node_budget < 0 for spec in specs):
            raise ValueError(f"{len(specs)} trees of {batch.num_logit_rows} rows; allowed: one each, budgets from 0 on")
        at = address(features, torch.bfloat16, batch.num_tokens, features.shape[-1])
        size = sum(spec.node_budget for spec in specs)
        counts, tokens, parents = zeros(len(specs)), zeros(size), zeros(size)
        survival, chances = array("d", bytes(8 * size)), array("d", bytes(8 * size))
        outputs = places_of(counts, tokens, parents, survival, chances)
        listed = (NativeTreeSpec * len(specs))(*specs)
        self._library.decoder_trees(
            self._at, byref(batch), at, features.shape[-1], shortlist, byref(params), listed, *outputs
        )
        trees, place = [], 0
        for spec, count in zip(specs, counts, strict=True):
            part = slice(place, place + count)
            trees.append((tuple(tokens[part]), tuple(parents[part]), tuple(survival[part]), tuple(chances[part])))
            place += spec.node_budget
        return trees

    def _make_logits(self, rows: int) -> Tensor:
        """Return memory for logits [rows, V]: that of the last pass where nobody holds it any more.

        Fresh pages of 32 rows of a large vocabulary take milliseconds.
        """
        size, held = rows * self.vocab, sys.getrefcount(self._memory) > 2  # by this object and this call
        if held or len(self._memory) < size + _LINE:
            self._memory = np.empty(size + _LINE, np.float32)
            self._first = -self._memory.ctypes.data % _LINE // 4
        return torch.from_numpy(self._memory[self._first : self._first + size]).view(rows, self.vocab)


def _part(part: Part) -> _Matrix:
    matrix, kind = part
    rows, width = matrix.shape
    dtype = torch.bfloat16 if kind == _BF16_FORMAT else torch.uint8
    return _Matrix(address(matrix, dtype, rows, width), rows, width, kind)


def _vector(values: Tensor | None) -> _Vector:
    return _Vector(None, 0) if values is None else _Vector(address(values, torch.float32, len(values)), len(values))
