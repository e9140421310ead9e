"""The training of a draft model: its first weights, its recipe, its export."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from prolepsis.train.draft_model_student import DraftModelStudent
from prolepsis.train.export import export_draft_model
from prolepsis.train.initial_draft_model import DraftModelSize, first_model
from prolepsis.train.loss_vocabulary import LossVocabulary
from prolepsis.train.optimiser import Rates
from prolepsis.train.report import Product
from prolepsis.train.target import Target
from prolepsis.train.trainer import TrainSettings
from prolepsis.train.training import Training
from prolepsis.train.workplace import Workplace

MEASURE_EVERY = 200
"""Steps: a measurement goes over the whole vocabulary, and takes as long as ten of them."""


@dataclass(frozen=True, slots=True)
class DraftModelPlan:
    """What is to be trained."""

    size: DraftModelSize = field(default_factory=DraftModelSize)
    frequent: int = 8192
    """Tokens that are in the loss of every step."""
    sampled: int = 1024
    """Of the other tokens, a fresh sample of so many stands for them (`loss_vocabulary`)."""
    max_tokens: int | None = None
    """Use no more of the data than this."""
    settings: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            anchors_per_step=1024, rates=Rates(adamw=2e-3), prompt_epochs=4, measure_every=MEASURE_EVERY
        )
    )


class DraftModelTraining(Training):
    """Trains `model`."""

    product = Product(
        "draft model",
        "A small causal model of its own, distilled from the target. It only changes how fast the target answers,\n"
        "never what. Format: transformers, Llama; tokenizer and vocabulary are the target's.",
    )

    def __init__(self, workplace: Workplace, target: Target, plan: DraftModelPlan) -> None:
        """Raises `ConfigError` where the data are of another target, or the model were wider than it."""
        super().__init__(workplace, target, plan.settings, plan.max_tokens)
        self._plan = plan
        settings, vocab = plan.settings, target.shape.vocab
        self.model = first_model(target, plan.size, self.counts, settings.seed)
        frequent = self.frequent_tokens(plan.frequent)
        vocabulary = LossVocabulary.of(frequent, vocab, num_sampled=plan.sampled, seed=settings.seed)
        ends = target.ends_for(torch.arange(vocab))
        self.learn_with(DraftModelStudent(self.model, ends, vocabulary, workers=settings.workers, dtype=settings.dtype))

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.model.parameters())

    @property
    def draft_vocab(self) -> int:
        return self.target.shape.vocab

    def told(self) -> Mapping[str, object]:
        return {
            **asdict(self._plan.size),
            "tokens_in_every_loss": self._plan.frequent,
            "tokens_sampled_for_a_loss": self._plan.sampled,
        }

    def export(self, said: dict[str, Any]) -> None:
        export_draft_model(self.workplace.exported, self.model, self.target, said)
