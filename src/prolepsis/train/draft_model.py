"""A small causal model as student: distilled from the target's distribution at every slot of its text.

The target's distribution is not stored: its last hidden states are, and its output head makes the logits anew, a few
rows at a time (Hinton et al. 2015, arXiv 1503.02531, at temperature 1, without the term of hard labels).

Legend: N slots of a batch, r rows that are trained on, e width of the student, d of the target, S tokens of a step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.targets.lean import rms_norm
from prolepsis.train.acceptance import Counts, Drafted, compared, measure
from prolepsis.train.batches import MAX_LENGTH, TargetEnds
from prolepsis.train.losses import fused_soft_cross_entropy, trimmed
from prolepsis.train.synthesis import Document
from prolepsis.train.trainer import Moment
from prolepsis.train.vocabulary import LossVocabulary
from prolepsis.train.workers import GradientWorkers, Result

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

ROWS = 256
"""Rows whose logits are in memory at once."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the loss of a step compares: logits of the target and of the student at the step's tokens."""

    ids: Tensor  # [S] int64
    offsets: Tensor  # [S] float32, added to both logits
    target_rows: Tensor  # [S, d] of the target's output head

    def distil(self, out: Tensor, embedding: Tensor, states: Tensor) -> "Distilled":
        """Return the loss over rows `out` ([r, e]) against the target's normed last `states` ([r, d]).

        `embedding` ([V, e]) is the student's output head, too.
        """
        rows = embedding[self.ids].detach().requires_grad_(True)
        total = Distilled(0.0, 0, [], torch.zeros_like(rows))
        for some, wanted_states in zip(torch.split(out.detach(), ROWS), torch.split(states, ROWS), strict=True):
            with torch.no_grad():
                logits = F.linear(wanted_states, self.target_rows).float()
                likeliest = logits.argmax(-1)
                wanted = trimmed(logits.add_(self.offsets))
            leaf = some.requires_grad_(True)
            loss, guesses = fused_soft_cross_entropy(leaf, rows, wanted, torch.ones(len(some)), self.offsets)
            of_out, of_rows = torch.autograd.grad(loss, [leaf, rows])
            total.loss += float(loss.detach())
            total.right += int((guesses == likeliest).sum())
            total.of_out.append(of_out)
            total.of_rows.add_(of_rows)
        return total


@dataclass(slots=True)
class Distilled:
    """Sums over rows."""

    loss: float
    right: int
    """Guesses that are the target's likeliest."""
    of_out: list[Tensor]
    """Gradients by `out`, [r, e] in pieces."""
    of_rows: Tensor  # [S, e] gradient by the step's rows of the embedding


class DraftModelStudent:
    """Owns a draft model's weights while they are trained (`student.Student`)."""

    def __init__(
        self,
        model: "LlamaForCausalLM",
        ends: TargetEnds,
        vocabulary: LossVocabulary,
        *,
        workers: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`model` has tied embeddings; `ends` hold the target's whole output head."""
        self._model = model
        self._ends = ends
        self._vocabulary = vocabulary
        self._workers = GradientWorkers(workers)
        self._dtype = dtype
        self._tensors = dict(model.named_parameters())
        self._embedding: Tensor = model.get_input_embeddings().weight
        self._inner = [tensor for tensor in self._tensors.values() if tensor is not self._embedding]

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self._tensors

    @property
    def trained(self) -> Sequence[Tensor]:
        return [self._embedding, *self._inner]

    @property
    def token_rows(self) -> Tensor:
        return self._embedding

    def learn(self, documents: Sequence[Document], moment: Moment) -> Result:
        vocabulary = self._vocabulary.at(moment.step)
        lesson = Lesson(vocabulary.ids, vocabulary.offsets, self._ends.head[vocabulary.ids])
        return self._workers.run(partial(self._part, lesson), documents)

    def measure(self, documents: Iterable[Document]) -> dict[str, Counts]:
        return measure(documents, self._drafted)

    def _part(self, lesson: Lesson, documents: Sequence[Document]) -> Result:
        cut = [document.tokens[:MAX_LENGTH].long() for document in documents]
        tokens = torch.cat(cut)
        inputs = self._embedding[tokens].detach().requires_grad_(True)
        states = torch.cat([self._states(document) for document in documents])
        with torch.autocast(tokens.device.type, self._dtype, enabled=self._dtype != torch.float32):
            out = self._outputs(inputs, documents, [len(part) for part in cut])
            distilled = lesson.distil(out, self._embedding, states)
        slopes = torch.cat(distilled.of_out)
        of_inputs, *of_inner = torch.autograd.grad(out, [inputs, *self._inner], grad_outputs=slopes)
        of_embedding = torch.zeros_like(self._embedding)
        of_embedding.index_add_(0, tokens, of_inputs).index_add_(0, lesson.ids, distilled.of_rows)
        return Result(distilled.loss, [distilled.right], [len(out)], [of_embedding, *of_inner])

    def _outputs(self, inputs: Tensor, documents: Sequence[Document], lengths: Sequence[int]) -> Tensor:  # [r, e]
        """Run each document by itself: nothing is padded, and no document sees another."""
        outputs = []
        for document, (start, end) in zip(documents, pairwise(accumulate(lengths, initial=0)), strict=True):
            out = self._model.model(inputs_embeds=inputs[start:end][None], use_cache=False).last_hidden_state[0]
            outputs.append(out[document.response_start - 1 :])
        return torch.cat(outputs)

    def _states(self, document: Document) -> Tensor:  # [r, d]
        hidden = self._ends.embedding.shape[1]
        last = document.features[document.response_start - 1 : MAX_LENGTH, -hidden:].float()
        return rms_norm(last, self._ends.final_norm, self._ends.eps)

    def _drafted(self, document: Document) -> Iterator[Drafted]:
        tokens = document.tokens[:MAX_LENGTH].long()
        out = self._outputs(self._embedding[tokens], [document], [len(tokens)])
        guesses = torch.cat([F.linear(some, self._embedding).argmax(-1) for some in torch.split(out, ROWS)])
        found = compared(guesses, tokens, torch.arange(document.response_start - 1, len(tokens)))
        for j in range(len(guesses)):
            yield Drafted(found.right[j:], found.known[j:])
