"""Few-row linears against torch for awkward shapes, and bit for bit against themselves."""

import pytest
import torch
from torch import nn

from prolepsis.engine.models.targets.general import FewRowsLinear, replace_linears
from prolepsis.engine.native.decoder import pick_decoder
from tests.engine.models.kernels import NEEDS_KERNELS

pytestmark = NEEDS_KERNELS
SHAPES = [(576, 960, False), (1536, 576, True), (40, 7, True), (33, 100, False), (64, 32, True)]


def pair(inputs: int, outputs: int, *, bias: bool) -> tuple[nn.Linear, FewRowsLinear]:
    torch.manual_seed(3)
    linear = nn.Linear(inputs, outputs, bias=bias).bfloat16()
    module, _ = pick_decoder()
    return linear, FewRowsLinear(module, linear)


@pytest.mark.parametrize(("inputs", "outputs", "bias"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 12, 13, 32, 100])
def test_matches_torch(inputs: int, outputs: int, bias: bool, rows: int) -> None:
    linear, ours = pair(inputs, outputs, bias=bias)
    x = torch.randn(rows, inputs).bfloat16()
    expected = nn.functional.linear(x.float(), linear.weight.float(), linear.bias.float() if bias else None)
    torch.testing.assert_close(ours(x).float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("inputs", "outputs", "bias"), SHAPES)
def test_a_row_has_the_same_bits_in_any_company_and_on_any_threads(inputs: int, outputs: int, bias: bool) -> None:
    _, ours = pair(inputs, outputs, bias=bias)
    x = torch.randn(40, inputs).bfloat16()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch.cat([ours(row[None]) for row in x])
    torch.set_num_threads(threads)
    for rows in (2, 3, 8, 16, 17, 24, 32, 40):
        assert torch.equal(ours(x[:rows]), alone[:rows])


def test_leading_dimensions_stay() -> None:
    _, ours = pair(64, 32, bias=True)
    assert ours(torch.randn(2, 3, 64).bfloat16()).shape == (2, 3, 32)


def test_only_plain_bf16_linears_are_replaced() -> None:
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"a": nn.Linear(4, 4).bfloat16(), "b": nn.Linear(4, 4), "c": Special(4, 4).bfloat16()})
    name = replace_linears(model)
    assert name is not None
    assert [type(m).__name__ for m in model.values()] == ["FewRowsLinear", "Linear", "Special"]
