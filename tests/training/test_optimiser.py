"""Gradients are applied as what they are, however they lie in memory, and matrices of a stack one by one."""

import torch
from torch import Tensor

from prolepsis.training.optimiser import apply, make_optimisers
from prolepsis.training.settings import Rates


def test_the_order_of_a_gradient_in_memory_does_not_matter() -> None:
    first = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(10, 6, generator=torch.Generator().manual_seed(1)).t()
    assert not gradient.is_contiguous()
    results = []
    for given in (gradient.clone(), gradient.contiguous()):
        tensor = first.clone().requires_grad_(True)
        optimisers = make_optimisers([tensor], Rates(adamw=0.1))
        apply(optimisers, [tensor], [given])
        results.append(tensor.detach())
    as_it_lies, contiguous = results
    assert torch.allclose(as_it_lies, contiguous)
    assert not torch.equal(contiguous, first)


def test_matrices_of_a_stack_step_as_if_each_were_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    stack, gradient = torch.randn(3, 6, 10, generator=generator), torch.randn(3, 6, 10, generator=generator)
    gradient *= torch.tensor([0.1, 1.0, 10.0])[:, None, None]

    def stepped(first: Tensor, given: Tensor) -> Tensor:
        tensor = first.clone().requires_grad_(True)
        apply(make_optimisers([tensor], Rates(muon=0.1)), [tensor], [given.clone()])
        return tensor.detach()

    alone = torch.stack([stepped(m, g) for m, g in zip(stack, gradient, strict=True)])
    assert torch.allclose(stepped(stack, gradient), alone, atol=1e-5)
