"""The fused loss against its formula, in value and gradient."""

import pytest
import torch
from torch import Tensor

from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.training.batches import lay_flat
from prolepsis.training.losses import (
    LIKELIEST,
    acceptance_loss,
    agreement,
    fused_soft_cross_entropy,
    missed,
    soft_cross_entropy,
)
from prolepsis.training.unroll import unroll
from tests.training.documents import SHAPE, random_document, tiny_ends, tiny_head


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


STEPS = 4


class Drafter:
    """Drafts after a prefix, slot by slot: true hidden states first, then its own outputs."""

    def __init__(self, head: HeadLayer) -> None:
        self.head = head
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def slot(self, embedding: Tensor, g: Tensor, position: int) -> tuple[Tensor, Tensor]:
        rotary = self.head.rotary(torch.tensor([position]))
        x = self.head.enter(embedding[None], g[None])
        key, value = self.head.keys_values(x, rotary)
        self.keys.append(key[0])
        self.values.append(value[0])
        query = self.head.queries(x, rotary)[0]
        group = SHAPE.heads // SHAPE.kv_heads
        mixed = []
        for h in range(SHAPE.heads):
            scores = torch.stack([query[h] @ key[h // group] for key in self.keys]) * SHAPE.head_dim**-0.5
            mixed.append(torch.softmax(scores, 0) @ torch.stack([value[h // group] for value in self.values]))
        out, g = self.head.ends(self.head.leave(g[None], torch.cat(mixed)[None]))
        return out[0], g[0]


@pytest.mark.parametrize("norm_output", [True, False])
def test_each_unrolled_step_is_what_drafting_so_many_tokens_puts_out(norm_output: bool) -> None:
    head = tiny_head(norm_output=norm_output)
    documents = [random_document(11, 5, number=1), random_document(9, 3, number=2), random_document(6, 6, number=3)]
    batch = lay_flat(documents, tiny_ends(head), 3)
    steps = list(unroll(head, batch.flat, STEPS))
    found = {(j, int(slot)): step.out[row] for j, step in enumerate(steps) for row, slot in enumerate(step.slots)}
    expected = 0
    for span in batch.flat.spans:
        fused = head.fuse(batch.flat.features[span.start : span.end])
        for anchor in range(span.first, span.end):
            drafter = Drafter(head)
            for slot in range(span.start, anchor + 1):
                before = fused[slot - span.start - 1] if slot > span.start else torch.zeros(SHAPE.hidden)
                out, g = drafter.slot(batch.flat.embeddings[slot], before, slot - span.start)
            for j in range(min(STEPS, span.end - anchor)):
                if j > 0:
                    out, g = drafter.slot(batch.flat.embeddings[anchor + j], g, anchor + j - span.start)
                row = _row(batch.flat.spans, anchor, j)
                assert int(steps[j].slots[row]) == anchor + j
                torch.testing.assert_close(steps[j].out[row], out, rtol=1e-4, atol=1e-5)
                expected += 1
    assert expected == sum(len(step.slots) for step in steps)
    assert found


def _row(spans: object, anchor: int, step: int) -> int:
    row = 0
    for span in spans:  # type: ignore[attr-defined]
        if span.first <= anchor < span.end:
            return row + anchor - int(span.first)
        row += max(0, span.end - span.first - step)
    raise AssertionError("an anchor of one of the spans")


def test_documents_in_one_batch_do_not_see_each_other() -> None:
    head = tiny_head()
    ends = tiny_ends(head)
    first, second = random_document(10, 4, number=1), random_document(12, 5, number=2)
    together = list(unroll(head, lay_flat([first, second], ends, 3).flat, 3))
    alone = list(unroll(head, lay_flat([second], ends, 3).flat, 3))
    for joint, own in zip(together, alone, strict=True):
        torch.testing.assert_close(joint.out[-len(own.out) :], own.out)


def test_steps_end_with_the_longest_document() -> None:
    head = tiny_head()
    batch = lay_flat([random_document(6, 5)], tiny_ends(head), 3)
    assert len(list(unroll(head, batch.flat, 6))) == 2
