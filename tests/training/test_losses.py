"""The fused loss against its formula, in value and gradient."""

import pytest
import torch
from torch import Tensor

from prolepsis.training.losses import (
    LIKELIEST,
    acceptance_loss,
    agreement,
    fused_soft_cross_entropy,
    missed,
    soft_cross_entropy,
)


def test_fused_loss_and_gradients_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    target = torch.softmax(torch.randn(7, 20) * 3, dim=-1)
    weights = torch.rand(7)
    results = []
    for loss_of in (soft_cross_entropy, fused_soft_cross_entropy):
        torch.manual_seed(1)
        out, head = torch.randn(7, 5, requires_grad=True), torch.randn(20, 5, requires_grad=True)
        loss, guesses = loss_of(out, head, target, weights)
        results.append((loss.detach(), guesses, *torch.autograd.grad(2.5 * loss, [out, head])))
    for eager, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, eager)


def test_a_frozen_output_head_gets_no_gradient() -> None:
    out, head = torch.randn(3, 5, requires_grad=True), torch.randn(20, 5)
    loss, _ = fused_soft_cross_entropy(out, head, torch.softmax(torch.randn(3, 20), dim=-1), torch.ones(3))
    loss.backward()  # type: ignore[no-untyped-call]
    assert out.grad is not None
    assert head.grad is None


def _random(rows: int, tokens: int, sharpness: float = 2.0) -> Tensor:
    return torch.softmax(sharpness * torch.randn(rows, tokens), dim=-1)


def test_agreement_is_how_often_shared_noise_chooses_a_token_for_both() -> None:
    torch.manual_seed(0)
    p, q = _random(1, 6), _random(1, 6)
    noise = -torch.log(torch.empty(100_000, 6).exponential_())
    ours, theirs = ((x.log() + noise).argmax(-1) for x in (p, q))
    both = torch.bincount(ours[ours == theirs], minlength=6) / len(noise)
    torch.testing.assert_close(both, agreement(p, q)[0], atol=0.006, rtol=0.0)


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_a_draft_misses_by_the_formula_at_its_temperature(temperature: float) -> None:
    torch.manual_seed(1)
    logits, target = torch.randn(4, LIKELIEST + 1), _random(4, LIKELIEST + 1)
    p, q = (torch.softmax(x / temperature, dim=-1) for x in (target.log(), logits))
    accepted = agreement(p, q).sum(-1) - agreement(p, q).gather(1, p.argmin(-1, keepdim=True))[:, 0]
    torch.testing.assert_close(missed(logits, target, temperature), 1.0 - accepted)


def test_a_draft_as_the_target_misses_only_what_is_unlikely() -> None:
    torch.manual_seed(2)
    target = _random(3, 200, sharpness=4.0)
    rest = target.sort(descending=True).values[:, LIKELIEST:].sum(-1)
    torch.testing.assert_close(missed(target.log(), target, 1.0), rest)


def test_a_share_of_zero_is_cross_entropy_and_gradients_follow_the_rest() -> None:
    torch.manual_seed(3)
    out, head, target = torch.randn(5, 8, requires_grad=True), torch.randn(60, 8), _random(5, 60)
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0])
    torch.testing.assert_close(
        acceptance_loss(out, head, target, weights, share=0.0, temperature=0.8),
        soft_cross_entropy(out, head, target, weights),
    )
    loss, _ = acceptance_loss(out, head, target, weights, share=0.9, temperature=0.8)
    [gradient] = torch.autograd.grad(loss, [out])
    assert torch.count_nonzero(gradient[2]) == 0
    lower, _ = acceptance_loss(out - 0.01 * gradient, head, target, weights, share=0.9, temperature=0.8)
    assert lower < loss
