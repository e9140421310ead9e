"""What products of a model are, and what of the machine's peak each kind reaches."""

from dataclasses import replace

import pytest

from prolepsis.engine.commands.profile import KIND_ROWS, product_kinds
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.engine.models.random_matrices import random_matrix
from tests.engine.models.tiny import rounded

Q4_K, Q6_K, Q8_0 = 12, 14, 8
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}


def stored_model(formats: dict[str, int], name: str = "llama", **changes: object) -> NativeModel:
    """Return a tiny model whose matrices have these formats, by a part of their names; those not named are in bf16."""
    with rounded(name, WIDE | changes) as (_, checkpoint):
        found = {
            key: random_matrix(tensor.shape, kind, seed=1)
            for key, tensor in checkpoint.tensors.items()
            for part, kind in formats.items()
            if tensor.ndim == 2 and part in key
        }
        stored = replace(checkpoint, stored=found)
        return NativeModel(stored, LeanShape.from_config(stored.config), "tiny", threads=1)


@NEEDS_KERNELS
def test_each_format_the_output_and_attention_have_their_share() -> None:
    model = stored_model({"self_attn": Q4_K, "mlp": Q6_K, "embed": Q6_K, "lm_head": Q8_0})
    attention, feed_forward, output = 2 * (2 * 256 + 2 * 64) * 256, 2 * 3 * 256 * 256, 160 * 256
    total = attention + feed_forward + output
    kinds = list(product_kinds(model, seconds=0.0))
    assert {kind.name: kind.share for kind in kinds} == {
        "layers, q4_k": pytest.approx(attention / total),
        "layers, q6_k": pytest.approx(feed_forward / total),
        "output, q8_0": pytest.approx(output / total),
        "attention, 512 cached": pytest.approx(2 * 2 * 512 * 256 / total),
        "attention, 8192 cached": pytest.approx(2 * 2 * 8192 * 256 / total),
    }
    assert [tuple(kind.reached) for kind in kinds] == [KIND_ROWS] * 3 + [(64,)] * 2
    assert all(share > 0 for kind in kinds for share in kind.reached.values())


@NEEDS_KERNELS
def test_an_embedding_counts_where_it_is_the_output() -> None:
    model = stored_model({"layers": Q4_K, "embed": Q8_0}, tie_word_embeddings=True)
    assert [kind.name for kind in product_kinds(model, seconds=0.0)][:2] == ["layers, q4_k", "output, q8_0"]
    assert sum(size for *_, size in model.products) == 2 * (5 * 256 + 2 * 64) * 256 + 160 * 256


@NEEDS_KERNELS
def test_bf16_is_left_out_and_a_window_bounds_attention() -> None:
    model = stored_model({"embed": Q8_0, "mlp": Q8_0}, "mistral", sliding_window=100)
    layers, short, long = product_kinds(model, seconds=0.0)
    assert layers.name == "layers, q8_0"
    assert short.share == long.share > 0
