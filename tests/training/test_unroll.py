"""Training-time test against drafting as it happens: one token at a time, with a cache of keys and values."""

import pytest
import torch
from torch import Tensor

from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.training.batches import lay_flat
from prolepsis.training.unroll import unroll
from tests.training.documents import SHAPE, random_document, tiny_ends, tiny_head

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
