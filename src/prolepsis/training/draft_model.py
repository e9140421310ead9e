"""The training of a draft model: a small causal model, distilled from the target's distribution.

The target's distribution is not stored. Its last hidden states are, and its output head recomputes the logits, a few
rows at a time (Hinton et al. 2015, arXiv 1503.02531, at temperature 1, without the term of hard labels).

Legend: N slots of a batch, r rows that are trained on, V vocabulary, e width of the draft model, d of the target,
S tokens of a step.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.files.tokenizer_files import save_tokenizer
from prolepsis.engine.models.heads.format import weights_checksum
from prolepsis.engine.models.provenance import KEY
from prolepsis.engine.models.targets.lean import rms_norm
from prolepsis.training.acceptance import AcceptedCounts, DraftedPosition, compared, measure
from prolepsis.training.batches import BatchGradients, TargetEnds, precision
from prolepsis.training.data import MAX_LENGTH, TrainingDocument
from prolepsis.training.losses import LossVocabulary, StepVocabulary, fused_soft_cross_entropy
from prolepsis.training.report import Product
from prolepsis.training.settings import DraftModelRecipe, DraftModelSize, Dtype
from prolepsis.training.target import Target
from prolepsis.training.trainer import TrainingProgress, TrainTask
from prolepsis.training.training import Training

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

ROWS = 256
"""Rows whose logits are in memory at once."""
EXPANSION = 3
"""Intermediate width, as a multiple of the width."""


@dataclass(slots=True)
class DistillationSums:
    """Sums over rows."""

    loss: float
    right: int
    """Guesses that are the target's likeliest token."""
    of_out: list[Tensor]
    """Gradients with respect to the output, [r, e] in pieces."""
    of_rows: Tensor  # [S, e] gradient with respect to the step's rows of the embedding


@dataclass(frozen=True, slots=True)
class Distillation:
    """The loss of a step: it compares the logits of target and draft model at the step's tokens."""

    vocabulary: StepVocabulary
    target_rows: Tensor  # [S, d] of the target's output head
    rows_at_once: int = ROWS

    def sums(self, out: Tensor, embedding: Tensor, states: Tensor) -> DistillationSums:
        """Return the loss over rows `out` ([r, e]) against the target's normed last `states` ([r, d]).

        `embedding` ([V, e]) is also the draft model's output head.
        """
        offsets = self.vocabulary.offsets
        rows = embedding[self.vocabulary.ids].detach().requires_grad_(True)
        total = DistillationSums(0.0, 0, [], torch.zeros_like(rows))
        size = self.rows_at_once
        for some, target_states in zip(torch.split(out.detach(), size), torch.split(states, size), strict=True):
            with torch.no_grad():
                logits = F.linear(target_states, self.target_rows).float()
                likeliest = logits.argmax(-1)
                target = torch.softmax(logits.add_(offsets), dim=-1)
            leaf = some.requires_grad_(True)
            loss, guesses = fused_soft_cross_entropy(leaf, rows, target, torch.ones(len(some)), offsets)
            of_out, of_rows = torch.autograd.grad(loss, [leaf, rows])
            total.loss += float(loss.detach())
            total.right += int((guesses == likeliest).sum())
            total.of_out.append(of_out)
            total.of_rows.add_(of_rows)
        return total


class DraftModelTask(TrainTask):
    """A draft model's weights while they are trained."""

    def __init__(
        self,
        model: "LlamaForCausalLM",
        ends: TargetEnds,
        vocabulary: LossVocabulary,
        *,
        workers: int = 1,
        dtype: Dtype = "float32",
        rows_at_once: int = ROWS,
    ) -> None:
        """`model` has tied embeddings; `ends` hold the target's whole output head."""
        self._tensors = dict(model.named_parameters())
        self._embedding: Tensor = model.get_input_embeddings().weight
        self._inner = [tensor for tensor in self._tensors.values() if tensor is not self._embedding]
        super().__init__([self._embedding, *self._inner], ends, workers, dtype)
        self._model = model
        self._vocabulary = vocabulary
        self._rows_at_once = rows_at_once

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self._tensors

    @property
    def token_rows(self) -> Tensor:
        return self._embedding

    def compute(self, progress: TrainingProgress) -> Callable[[Sequence[TrainingDocument]], BatchGradients]:
        vocabulary = self._vocabulary.at(progress.step)
        distillation = Distillation(vocabulary, self._ends.head[vocabulary.ids], self._rows_at_once)
        return partial(self._part, distillation)

    def measure(self, documents: Iterable[TrainingDocument]) -> dict[str, AcceptedCounts]:
        return measure(documents, self._drafted)

    def _part(self, distillation: Distillation, documents: Sequence[TrainingDocument]) -> BatchGradients:
        cut = [document.tokens[:MAX_LENGTH].long() for document in documents]
        tokens = torch.cat(cut)
        inputs = self._embedding[tokens].detach().requires_grad_(True)
        states = torch.cat([self._states(document) for document in documents])
        with precision(self._dtype, tokens.device):
            out = self._outputs(inputs, documents, [len(part) for part in cut])
            sums = distillation.sums(out, self._embedding, states)
        of_inputs, *of_inner = torch.autograd.grad(out, [inputs, *self._inner], grad_outputs=torch.cat(sums.of_out))
        of_embedding = torch.zeros_like(self._embedding)
        of_embedding.index_add_(0, tokens, of_inputs).index_add_(0, distillation.vocabulary.ids, sums.of_rows)
        return BatchGradients(sums.loss, [sums.right], [len(out)], [of_embedding, *of_inner])

    def _outputs(
        self, inputs: Tensor, documents: Sequence[TrainingDocument], lengths: Sequence[int]
    ) -> Tensor:  # [r, e]
        """Run the documents one by one, without padding, so that none attends to another."""
        outputs = []
        for document, (start, end) in zip(documents, pairwise(accumulate(lengths, initial=0)), strict=True):
            out = self._model.model(inputs_embeds=inputs[start:end][None], use_cache=False).last_hidden_state[0]
            outputs.append(out[document.response_start - 1 :])
        return torch.cat(outputs)

    def _states(self, document: TrainingDocument) -> Tensor:  # [r, d]
        hidden = self._ends.embedding.shape[1]
        last = document.features[document.response_start - 1 : MAX_LENGTH, -hidden:].float()
        return rms_norm(last, self._ends.final_norm, self._ends.eps)

    def _drafted(self, document: TrainingDocument) -> Iterator[DraftedPosition]:
        tokens = document.tokens[:MAX_LENGTH].long()
        out = self._outputs(self._embedding[tokens], [document], [len(tokens)])
        guesses = torch.cat(
            [F.linear(some, self._embedding).argmax(-1) for some in torch.split(out, self._rows_at_once)]
        )
        found = compared(guesses, tokens, torch.arange(document.response_start - 1, len(tokens)))
        for j in range(len(guesses)):
            yield DraftedPosition(found.right[j:], found.known[j:])


class DraftModelTraining(Training[DraftModelRecipe]):
    """Trains `model`."""

    product = Product(
        "draft model",
        "A small causal model of its own, distilled from the target. It only changes how fast the target answers,\n"
        "never what. Format: transformers, Llama; tokenizer and vocabulary are the target's.",
    )

    def begin(self) -> DraftModelTask:
        """Raises `ConfigError` if the model is wider than the target."""
        recipe, settings, vocab = self.recipe, self.recipe.training, self.target.shape.vocab
        self.model = initial_model(self.target, recipe.size, self.counts, settings.seed)
        frequent = self.frequent_tokens(recipe.loss_size.loss_vocab)
        vocabulary = LossVocabulary.of(frequent, vocab, num_sampled=recipe.loss_size.loss_sample, seed=settings.seed)
        ends = self.target.ends_for(torch.arange(vocab))
        return DraftModelTask(self.model, ends, vocabulary, workers=settings.workers, dtype=settings.dtype)

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.model.parameters())

    @property
    def draft_vocab(self) -> int:
        return self.target.shape.vocab

    def hparams(self) -> Mapping[str, object]:
        return {
            **asdict(self.recipe.size),
            "tokens_in_every_loss": self.recipe.loss_size.loss_vocab,
            "tokens_sampled_for_a_loss": self.recipe.loss_size.loss_sample,
        }

    def export(self, provenance: dict[str, Any]) -> None:
        export_draft_model(self.directory.exported, self.model, self.target, provenance)


def initial_model(target: Target, size: DraftModelSize, counts: Tensor, seed: int = 0) -> "LlamaForCausalLM":
    """Return a float32 model with random layers and the target's embedding, made narrower.

    `counts` ([V]) holds how often the text has each token. Raises `ConfigError` for a model wider than the target.
    """
    from transformers import LlamaForCausalLM

    if size.hidden > target.shape.hidden:
        raise ConfigError(f"hidden is {size.hidden}; allowed: up to the target's {target.shape.hidden}", param="hidden")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(draft_model_config(target, size))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(narrowed(target.ends.embedding.float(), size.hidden, counts))
    return model


def draft_model_config(target: Target, size: DraftModelSize) -> "LlamaConfig":
    """Return the configuration: the target's tokens and positions, tied embeddings."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=target.shape.vocab,
        hidden_size=size.hidden,
        intermediate_size=EXPANSION * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=target.shape.max_positions,
        rms_norm_eps=target.shape.eps,
        tie_word_embeddings=True,
        bos_token_id=getattr(target.config, "bos_token_id", None),
        eos_token_id=list(target.eos_token_ids),
        pad_token_id=getattr(target.config, "pad_token_id", None),
    )


def narrowed(embedding: Tensor, width: int, counts: Tensor) -> Tensor:  # [V, width]
    """Return the rows of `embedding` ([V, d]) in their `width` principal axes, frequent tokens weighing more.

    Each row weighs the root of one more than its count.
    """
    weights = (counts.float() + 1.0).sqrt()
    _, axes = torch.linalg.eigh(embedding.t() @ (weights[:, None] * embedding))  # in ascending order
    narrow: Tensor = embedding @ axes[:, -width:].flip(1)
    return narrow


def export_draft_model(folder: Path, model: "LlamaForCausalLM", target: Target, provenance: dict[str, Any]) -> None:
    """Write a model with the target's tokenizer and its provenance as a transformers folder, weights in bfloat16.

    Each file is replaced whole; the configuration, which holds the weights' checksum, comes last.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(part, state_dict=weights)
    save_tokenizer(target.path, part)
    config = type(model.config)(**{**model.config.to_dict(), "dtype": "bfloat16"})
    setattr(config, KEY, {**provenance, "sha256": weights_checksum(part)})
    config.save_pretrained(part)
    folder.mkdir(exist_ok=True)
    for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):
        file.chmod(0o644)  # the library writes weights for the owner only
        file.replace(folder / file.name)
    part.rmdir()
