"""First weights of a draft model: transformers' own for its layers, the target's embedding made narrower for its ends.

Legend: V vocabulary, d width of the target, e of the draft model.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.models.targets.native import WIDTH
from prolepsis.train.draft_model import DraftModelStudent
from prolepsis.train.export import export_draft_model
from prolepsis.train.optimiser import Rates
from prolepsis.train.report import Product
from prolepsis.train.target import Target
from prolepsis.train.trainer import TrainSettings
from prolepsis.train.training import Training
from prolepsis.train.vocabulary import LossVocabulary
from prolepsis.train.workplace import Workplace

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

HEAD_DIM = 64
EXPANSION = 3
"""Intermediate width in widths of the model."""


@dataclass(frozen=True, slots=True)
class DraftModelSize:
    """Layers and width; the rest follows. Raises `ConfigError` for a width that the native forward does not take."""

    layers: int = 4
    hidden: int = 256

    def __post_init__(self) -> None:
        if self.hidden < WIDTH or self.hidden % WIDTH:
            raise ConfigError(f"hidden is {self.hidden}; allowed: multiples of {WIDTH}", param="hidden")
        if self.layers < 1:
            raise ConfigError(f"layers is {self.layers}; allowed: 1 or more", param="layers")

    @property
    def heads(self) -> int:
        return self.hidden // self.head_dim

    @property
    def kv_heads(self) -> int:
        """Half as many as query heads where that divides: K/V are small, and so is what is lost."""
        return self.heads // 2 if self.heads % 2 == 0 else self.heads

    @property
    def head_dim(self) -> int:
        return HEAD_DIM if self.hidden % HEAD_DIM == 0 else HEAD_DIM // 2


def first_model(target: Target, size: DraftModelSize, counts: Tensor, seed: int = 0) -> "LlamaForCausalLM":
    """Return a float32 model; `counts` ([V]) says how often the text has each token.

    Raises `ConfigError` for a model wider than the target.
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

    said = target.layer_config
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
        bos_token_id=said.get("bos_token_id"),
        eos_token_id=list(target.eos_token_ids),
        pad_token_id=said.get("pad_token_id"),
    )


def narrowed(embedding: Tensor, width: int, counts: Tensor) -> Tensor:  # [V, width]
    """Return the rows of `embedding` ([V, d]) in the `width` directions that hold most of them, frequent ones first.

    These are the principal axes of the rows, each weighted by the root of one more than its count.
    """
    weights = (counts.float() + 1.0).sqrt()
    _, axes = torch.linalg.eigh(embedding.t() @ (weights[:, None] * embedding))  # by rising share
    narrow: Tensor = embedding @ axes[:, -width:].flip(1)
    return narrow


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
