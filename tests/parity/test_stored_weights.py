"""Quantised weights as stored: the values of gguf, the bits of expanded weights, and rows that stand alone."""

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from prolepsis.engine.models.files.checkpoint import Checkpoint
from prolepsis.engine.models.files.stored import BF16, PACKED, StoredMatrix
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.format import HeadConfig, HeadStorage
from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import random_head
from tests.engine.models.random_matrices import random_matrix
from tests.engine.models.tiny import save_tiny

KINDS = [kind for kind in PACKED if kind != BF16]
WIDE: dict[str, object] = {"head_dim": 32, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
CONTEXT = list(range(3, 60))

pytestmark = NEEDS_KERNELS


def values(matrix: StoredMatrix) -> Tensor:
    kind = gguf.GGMLQuantizationType(matrix.kind)
    return torch.from_numpy(gguf.quants.dequantize(matrix.data.numpy(), kind)).bfloat16()


def in_kind(folder: Path, kind: int, other: int) -> tuple[Checkpoint, Checkpoint]:
    """A model whose matrices are stored in `kind`, values and output projections in `other`; and the same in bf16."""
    checkpoint = open_checkpoint(folder)
    matrices = {}
    for i, (name, tensor) in enumerate(checkpoint.tensors.items()):
        if tensor.ndim == 2:
            mixed = other if "v_proj" in name or "o_proj" in name else kind
            matrices[name] = random_matrix(tensor.shape, mixed, i)
    expanded = {name: values(matrix) for name, matrix in matrices.items()}
    return replace(checkpoint, stored=matrices), replace(checkpoint, tensors={**checkpoint.tensors, **expanded})


def logits(checkpoint: Checkpoint, *, int8: bool) -> Tensor:
    """Logits of a context, by a prefill; each of its last rows alone and in fours must have the same bits."""
    target = NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "m", threads=2, int8_activations=int8)
    cache = target.make_cache(2)
    found = target.forward(pack([SequenceInput(CONTEXT, 0, [0, 1], keep_last=len(CONTEXT))]), cache)
    for count in (1, 4):
        start = len(CONTEXT) - count
        again = target.forward(pack([SequenceInput(CONTEXT[start:], start, [0, 1], keep_last=count)]), cache)
        assert torch.equal(again, found[start:])
    return found


@pytest.mark.parametrize("kind", KINDS, ids=[PACKED[kind] for kind in KINDS])
def test_each_format_gives_the_values_of_its_file(tmp_path: Path, kind: int) -> None:
    save_tiny(tmp_path, "llama", WIDE).save_pretrained(tmp_path)
    stored, expanded = in_kind(tmp_path, kind, other=KINDS[(KINDS.index(kind) + 3) % len(KINDS)])
    expected = logits(expanded, int8=False)
    assert expected.std() > 0.01
    assert torch.equal(logits(stored, int8=False), expected), "in bf16 the bits of expanded weights"
    rounded = logits(stored, int8=True)
    assert (rounded - expected).std() < 0.04 * expected.std()
    assert not torch.equal(rounded, expected), "rows are rounded to 8 bits"


def test_quantised_weights_take_the_memory_of_their_file(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", WIDE).save_pretrained(tmp_path)
    for kind in KINDS:
        stored, _ = in_kind(tmp_path, kind, other=kind)
        target = NativeModel(stored, LeanShape.from_config(stored.config), "m", threads=1)
        in_file = sum(matrix.data.nbytes for matrix in stored.stored.values())
        assert in_file <= target.info.weight_bytes < 1.03 * in_file
        assert PACKED[kind] in target.info.forward


def test_the_forwards_name_says_how_rows_are_rounded(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", WIDE).save_pretrained(tmp_path)

    def name(kind: int, other: int) -> str:
        stored, _ = in_kind(tmp_path, kind, other)
        return NativeModel(stored, LeanShape.from_config(stored.config), "m", threads=1).info.forward

    q8_0, q4_k, q6_k = 8, 12, 14
    assert name(q8_0, q8_0).endswith("q8_0 weights, int8 activations)")
    assert name(q4_k, q6_k).endswith("q4_k and q6_k weights, int8 activations by 256)")
    assert name(q4_k, q8_0).endswith("q4_k and q8_0 weights, int8 activations by 32 and 256)")


@pytest.mark.parametrize("kind", PACKED, ids=PACKED.values())
def test_a_head_reads_rows_of_its_targets_output_as_they_are(tmp_path: Path, kind: int) -> None:
    save_tiny(tmp_path, "llama", WIDE).save_pretrained(tmp_path)
    stored, expanded = in_kind(tmp_path, kind if kind != BF16 else KINDS[0], other=KINDS[0])
    checkpoint = expanded if kind == BF16 else stored
    shape = LeanShape.from_config(checkpoint.config)
    target = NativeModel(checkpoint, shape, "m", threads=2)
    own, weights = random_head(shape)
    weights.lm_head = target.output_rows(weights.target_ids)
    name = "model.embed_tokens.weight" if shape.tied else "lm_head.weight"
    assert torch.equal(weights.lm_head, expanded.tensor(name)[weights.target_ids])
    shared = replace(own, storage=HeadStorage("q8_0", "target"))
    features = torch.randn(20, 3 * shape.hidden, generator=torch.Generator().manual_seed(1)).bfloat16()
    batch = pack([SequenceInput(CONTEXT[:20], 0, [0, 1], keep_last=20)])

    def head_logits(config: HeadConfig, *, eight_bit: bool) -> Tensor:
        head = NativeHead("head", config, weights, target, eight_bit=eight_bit)
        return head.logits(batch, head.make_cache(2), features, None)[0]

    expected = head_logits(own, eight_bit=False)
    assert torch.equal(head_logits(shared, eight_bit=False), expected), "in bf16 the bits of expanded rows"
    assert (head_logits(shared, eight_bit=True) - expected).std() < 0.1 * expected.std()


def test_logits_that_are_held_stay_and_the_memory_of_others_is_used_again(tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", WIDE).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    target = NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "m", threads=1)
    cache = target.make_cache(1)

    def forward(token: int) -> Tensor:
        return target.forward(pack([SequenceInput([token], 0, [0], keep_last=1)]), cache)

    held = forward(3)
    copy, address = held.clone(), held.data_ptr()
    row = forward(4)[0]
    assert torch.equal(held, copy)
    assert row.data_ptr() != address
    address = row.data_ptr()
    assert forward(5).data_ptr() != address, "a view holds the memory"
    del held, row
    again = forward(6).data_ptr()
    assert forward(7).data_ptr() == again
