"""The fused loss against its formula, in value and gradient."""

import torch

from prolepsis.train.losses import feature_distance, fused_soft_cross_entropy, soft_cross_entropy


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


def test_feature_distance_is_zero_at_the_target() -> None:
    states = torch.randn(4, 6)
    assert feature_distance(states, states, torch.ones(4)) == 0
    assert feature_distance(states, states + 3.0, torch.tensor([0.0, 1.0, 0.0, 0.0])) == 2.5
