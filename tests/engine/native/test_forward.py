"""What the decoder reads is checked before the call, and lives as long as it is read."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.protocol import Batch, SequenceInput, pack
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel, pass_input
from prolepsis.engine.native.decoder import PackedLinear, pick_decoder
from prolepsis.engine.native.forward import NativeTreeParams, NativeTreeSpec
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_heads import random_head, random_levels
from tests.engine.models.tiny import rounded

pytestmark = NEEDS_KERNELS
TOKENS = [5, 6, 7, 8, 9]
BATCH = pack([SequenceInput(TOKENS, 0, [0], keep_last=2)])


def target() -> NativeModel:
    with rounded("llama", {"head_dim": 32}) as (_, checkpoint):
        return NativeModel(checkpoint, LeanShape.from_config(checkpoint.config), "llama", threads=1)


def head_of(model: NativeModel) -> NativeHead:
    config, weights = random_head(model.shape)
    return NativeHead("head", config, weights, model, random_levels(model.shape.hidden))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (replace(BATCH, token_ids=BATCH.token_ids.long()), r"takes torch.int32 \[5\].*given torch.int64 \[5\]"),
        (replace(BATCH, positions=BATCH.positions[:4]), r"takes torch.int32 \[5\].*given torch.int32 \[4\]"),
        (replace(BATCH, parents=torch.zeros(10, dtype=torch.int32)[::2]), r"in one piece.*strides \(2,\)"),
        (replace(BATCH, starts=BATCH.starts[:1]), r"takes torch.int32 \[2\]"),
        (replace(BATCH, pages=BATCH.pages.float()), r"takes torch.int32 \[1, 1\].*float32"),
    ],
)
def test_a_batch_of_other_tensors_is_refused(changed: Batch, says: str) -> None:
    model = target()
    with pytest.raises(ValueError, match=says):
        model.forward(changed, model.make_cache(1))


@pytest.mark.parametrize(
    "features", [None, torch.zeros(5, 64), torch.zeros(4, 64).bfloat16(), torch.zeros(64, 5).bfloat16().t()]
)
def test_features_that_cannot_be_written_are_refused(features: Tensor | None) -> None:
    model = target()
    with pytest.raises(ValueError, match=r"takes torch.bfloat16 \[5, 64\]|without features"):
        model.decoder.forward(pass_input(BATCH, model.make_cache(1)), [1], features)


@pytest.mark.parametrize("ids", [[160], [3, -1]])
def test_rows_that_the_output_lacks_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="allowed: 0 to 159"):
        target().output_rows(torch.tensor(ids))


def test_a_heads_inputs_are_checked() -> None:
    model = target()
    head = head_of(model)
    cache, size = head.make_cache(1), head.info.feature_size
    good = torch.zeros(5, size, dtype=torch.bfloat16)
    for wrong in (good.float(), good[:4]):
        with pytest.raises(ValueError, match=rf"takes torch.bfloat16 \[5, {size}\]"):
            head.committed(BATCH, cache, wrong, 4)
    with pytest.raises(RuntimeError, match=rf"input is {size - 32} wide; allowed: {size}"):
        head.committed(BATCH, cache, good[:, 32:].contiguous(), 4)
    with pytest.raises(RuntimeError, match="takes features or states"):
        head.logits(BATCH, cache, None, None)
    ahead = head.look_ahead(BATCH, cache, good, 4)
    for place in (-1, len(ahead.ahead)):
        with pytest.raises(RuntimeError, match="no such row or draft token"):
            head.follow(ahead, [place], ahead.first.tokens[0, :1].tolist(), 4)
    with pytest.raises(ValueError, match=r"takes torch.float32"):
        head.follow(replace(ahead, entered=ahead.entered[:-1]), [0], ahead.first.tokens[0, :1].tolist(), 4)


def test_a_tree_for_each_row_within_its_budget() -> None:
    model = target()
    head = head_of(model)
    batch, features = pass_input(BATCH, head.make_cache(1)), torch.zeros(5, head.info.feature_size).bfloat16()
    params, spec = NativeTreeParams(8, 4, 4, 0.0), NativeTreeSpec(2, 3, 0.0, 0.0, 0, 1.0, 7, 0)
    decoder = head._decoder
    trees = decoder.trees(batch, features, 16, params, [spec, NativeTreeSpec(2, 0, 0.0, 0.0, 0, 1.0, 7, 0)])
    assert [len(tokens) for tokens, *_ in trees] == [3, 0]
    for specs in ([spec], [spec, NativeTreeSpec(2, -1, 0.0, 0.0, 0, 1.0, 7, 0)]):
        with pytest.raises(ValueError, match="allowed: one each, budgets from 0 on"):
            decoder.trees(batch, features, 16, params, specs)


def test_a_head_and_an_exit_outlive_their_target() -> None:
    model = target()
    head, early = head_of(model), model.decoder.make_exit(1, 32)
    cache, own = model.make_cache(1), head.make_cache(1)
    features = torch.randn(5, head.info.feature_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    before = head.committed(BATCH, own, features, 4), early.forward(pass_input(BATCH, cache))[0].clone()
    del model
    gc.collect()
    filler = [torch.randn(1 << 16) for _ in range(64)]  # takes the place of what was freed
    after = head.committed(BATCH, own, features, 4), early.forward(pass_input(BATCH, cache))[0]
    assert len(filler) == 64
    assert torch.equal(before[0].logprobs, after[0].logprobs)
    assert torch.equal(before[1], after[1])


def test_a_view_of_a_page_outlives_its_cache() -> None:
    cache = target().make_cache(3)
    (page,) = cache.views(1)
    del cache
    gc.collect()
    page += 1.0
    assert float(page.sum()) == page.numel()


def test_logits_that_somebody_holds_are_not_written_again() -> None:
    model = target()
    cache = model.make_cache(1)
    held = model.forward(BATCH, cache)
    row, values = held[1], held.clone()
    other = model.forward(pack([SequenceInput([9], 5, [0])]), cache)
    assert torch.equal(held, values)
    place = held.data_ptr()
    del held, other
    again = model.forward(pack([SequenceInput([9], 5, [0])]), cache)
    assert again.data_ptr() != place, "the row is held"
    assert torch.equal(row, values[1])
    place = again.data_ptr()
    del again, row
    assert model.forward(pack([SequenceInput([9], 5, [0])]), cache).data_ptr() == place


@pytest.mark.parametrize("moves", [[(32, 0)], [(0, -1)]])
def test_slots_outside_the_sequences_pages_are_refused(moves: list[tuple[int, int]]) -> None:
    cache = target().make_cache(2)
    with pytest.raises(ValueError, match="in pages"):
        cache.move([1], moves)


def test_a_product_of_other_sizes_is_refused() -> None:
    library, weight = pick_decoder().library, torch.zeros(40, 64).bfloat16()
    packed = PackedLinear(library, weight, None)
    assert packed.product(torch.zeros(0, 64).bfloat16()).shape == (0, 40)
    wrong = (
        torch.zeros(2, 96).bfloat16(),
        torch.zeros(2, 32).bfloat16(),
        torch.zeros(2, 64),
        torch.zeros(64, 2).bfloat16().t(),
    )
    for x in wrong:
        with pytest.raises(ValueError, match=r"takes torch.bfloat16 \[2, 64\]"):
            packed.product(x)
    with pytest.raises(ValueError, match=r"takes torch.float32 \[40\]"):
        PackedLinear(library, weight, torch.zeros(39))
    with pytest.raises(ValueError, match=r"takes torch.bfloat16 \[40, 64\]"):
        PackedLinear(library, weight.float(), None)
