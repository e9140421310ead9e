"""Training-time test: the head drafts as it will when it serves, on known text (EAGLE-3, arXiv 2503.01840, section 3).

An anchor is a slot a with true hidden states. Step 0 is the anchor itself; step j is at slot a + j, and its inputs are
the known token a + j and, as g, the output of step j - 1 of the same anchor. It attends to the true keys of slots <= a,
then to the keys of steps 1..j of its own anchor: the same as drafting j tokens after a, if those are all right.

Legend: n slots of a document, r anchors alive at a step, h query heads, k key/value heads, e head dimension.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.training.batches import DocumentSpan, FlatBatch


@dataclass(frozen=True, slots=True)
class UnrolledStep:
    """Outputs of step j of every anchor alive; row i is at slot `slots[i]` and guesses the token after it."""

    hidden: Tensor  # [R, d]: the layer's output
    out: Tensor  # [R, d]: input of the output head
    slots: Tensor  # [R] int64


def unroll(head: HeadLayer, batch: FlatBatch, num_steps: int) -> Iterator[UnrolledStep]:
    """Yield steps 0 .. `num_steps` - 1; an anchor ends when its step would be past the end of its document."""
    positions = torch.cat([torch.arange(span.end - span.start) for span in batch.spans]).to(batch.features.device)
    rotary = head.rotary(positions)
    g = shifted(head.fuse(batch.features), batch.spans)
    x = head.enter(batch.embeddings, g)
    keys, values = head.keys_values(x, rotary)
    slots = anchors(batch.spans, 0, x.device)
    g, x = g[slots], x[slots]
    simulated: list[tuple[Tensor, Tensor]] = []  # keys and values [r, k, e] of steps 1..j, for anchors still alive
    for step in range(num_steps):
        if step > 0:
            alive = survivors(batch.spans, step, slots.device)
            slots = slots[alive] + 1
            if not len(slots):
                return
            g = g[alive]
            x = head.enter(batch.embeddings[slots], g)
            simulated = [(k[alive], v[alive]) for k, v in simulated]
            simulated.append(head.keys_values(x, rotary[:, slots]))
        queries = head.queries(x, rotary[:, slots])
        mixed = attend(queries, keys, values, simulated, batch.spans)
        hidden = head.leave(g, mixed)
        out, g = head.ends(hidden)
        yield UnrolledStep(hidden, out, slots)


def shifted(fused: Tensor, spans: Sequence[DocumentSpan]) -> Tensor:
    """Return g of each slot: of the token before it, zero for a document's first; [N, d] to [N, d]."""
    g = torch.nn.functional.pad(fused[:-1], (0, 0, 1, 0))
    keep = torch.ones(len(fused), 1, dtype=fused.dtype, device=fused.device)
    keep[[span.start for span in spans]] = 0
    return g * keep


def anchors(spans: Sequence[DocumentSpan], step: int, device: torch.device) -> Tensor:
    """Return the anchors whose step `step` lies inside their document."""
    return torch.cat([torch.arange(span.first, max(span.first, span.end - step), device=device) for span in spans])


def survivors(spans: Sequence[DocumentSpan], step: int, device: torch.device) -> Tensor:
    """Return which rows of step `step` - 1 continue to `step`: all but the last of each document."""
    kept, row = [], 0
    for span in spans:
        before = max(0, span.end - span.first - step + 1)
        kept.append(torch.arange(row, row + max(0, before - 1), device=device))
        row += before
    return torch.cat(kept)


def attend(
    queries: Tensor,  # [R, h, e]
    keys: Tensor,  # [N, k, e] of true slots
    values: Tensor,
    simulated: Sequence[tuple[Tensor, Tensor]],
    spans: Sequence[DocumentSpan],
) -> Tensor:  # [R, h * e]
    """Attend, document by document, to true slots up to each row's anchor and to its own simulated steps."""
    mixed, row = [], 0
    for span in spans:
        count = max(0, span.end - span.first - len(simulated))
        if not count:
            continue
        rows = slice(row, row + count)
        own = [(k[rows], v[rows]) for k, v in simulated]
        last = span.first + count
        mixed.append(_attend_one(queries[rows], keys[span.start : last], values[span.start : last], own))
        row += count
    return torch.cat(mixed)


def _attend_one(queries: Tensor, keys: Tensor, values: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Row i is anchored at slot n - r + i of the n `keys` given."""
    (r, h, e), (n, k, _) = queries.shape, keys.shape
    grouped = (queries * e**-0.5).view(r, k, h // k, e).permute(1, 2, 0, 3)  # [k, h / k, r, e]
    scores = torch.matmul(grouped.flatten(1, 2), keys.permute(1, 2, 0)).view(k, h // k, r, n)
    unseen = torch.ones(r, n, dtype=torch.bool, device=keys.device).triu(n - r + 1)
    scores = scores.masked_fill(unseen, -torch.inf)
    if own:
        own_keys = torch.stack([key for key, _ in own]).permute(2, 1, 0, 3)  # [k, r, j, e]
        own_values = torch.stack([value for _, value in own]).permute(2, 1, 0, 3)
        per_row = grouped.transpose(1, 2)  # [k, r, h / k, e]
        own_scores = torch.matmul(per_row, own_keys.transpose(2, 3)).transpose(1, 2)  # [k, h / k, r, j]
        weights = torch.softmax(torch.cat([scores, own_scores], dim=-1), dim=-1)
        true_weights, own_weights = torch.split(weights, [n, len(own)], dim=-1)
        mixed = torch.matmul(true_weights.flatten(1, 2), values.transpose(0, 1)).view(k, h // k, r, e)
        mixed = mixed + torch.matmul(own_weights.transpose(1, 2), own_values).transpose(1, 2)
    else:
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights.flatten(1, 2), values.transpose(0, 1)).view(k, h // k, r, e)
    return mixed.permute(2, 0, 1, 3).reshape(r, h * e)
