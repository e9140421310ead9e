"""Recipes: what is trained and how. The commands of `prolepsis train` show the fields marked with `Option`.

The module imports no torch, so that the commands start fast.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from prolepsis.core.errors import ConfigError

if TYPE_CHECKING:
    from prolepsis.engine.drafting.cost import CostCurve

WIDTH_STEP = 32
"""Widths are multiples of it: the native forward and the native head compute in blocks of this width."""

Dtype = Literal["float32", "bfloat16"]
WeightFormat = Literal["bf16", "q8_0"]
"""Forms in which a head is stored (`engine.models.heads.format.HeadStorage`)."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates."""

    adamw: Annotated[float, Option("--rate", help="peak learning rate of AdamW", min=0.0)] = 2.5e-4
    muon: Annotated[
        float, Option(help="peak learning rate of Muon for matrices; 0: AdamW for all weights", min=0.0)
    ] = 0.0


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of the training of a head."""

    epochs: Annotated[float, Option(help="passes over the text", min=0.01)] = 4.0
    max_anchors: int | None = None  # tokens to train on, in place of `epochs`
    anchors_per_step: Annotated[int, Option("--batch", help="tokens in a training step", min=1)] = 768
    rates: Rates = field(default_factory=Rates)
    prompt_epochs: int = 1  # epochs that train on prompts too: most of them are the target's own text
    seed: Annotated[int, Option(help="seed of prompts, answers and initial weights")] = 0
    workers: int = 2
    dtype: Dtype = "float32"
    measure_every: int = 60
    """Fewest steps between two measurements of held-out acceptance (`trainer.MOST_MEASUREMENTS` is the most)."""
    held_out_documents: int = 48  # most documents in a measurement


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss of a head, summed over the steps of the training-time test."""

    num_steps: Annotated[int, Option("--unroll", help="steps of the training-time test", min=1, max=8)] = 3
    warm_up: float = 0.3
    """Share of the training with the first step only: alone, it is learned several times faster."""
    step_decay: float = 0.8  # weight of step j is step_decay ** j
    acceptance_share: Annotated[
        float, Option(help="share of keyed acceptance in the loss; the rest is cross entropy", min=0.0, max=1.0)
    ] = 0.0
    temperature: float = 0.8  # temperature of the acceptance in the loss
    noise: Annotated[float, Option(help="standard deviation of the noise factor on inputs", min=0.0, max=1.0)] = 0.0
    """The factor applies to each hidden state and embedding; with it a small text can be used for more epochs."""

    def at(self, progress: float) -> "LossSettings":
        """Return the objective at `progress` (0 to 1) of the training."""
        return replace(self, num_steps=1) if progress < self.warm_up else self


@dataclass(frozen=True, slots=True)
class HeadSize:
    """Sizes of a head's layer, None for the target's. Its width and the size of its heads are always the target's.

    Raises `ConfigError` for a width that no head can run.
    """

    heads: Annotated[int | None, Option(help="query heads; default: the target's", min=1)] = None
    kv_heads: Annotated[int | None, Option(help="key/value heads; default: the target's", min=1)] = None
    intermediate: Annotated[
        int | None, Option(help=f"width of the MLP, a multiple of {WIDTH_STEP}; default: the target's", min=WIDTH_STEP)
    ] = None
    taps: Annotated[int, Option(help="layers of the target that the head reads, the last of three", min=1, max=3)] = 3

    def __post_init__(self) -> None:
        if self.intermediate is not None and self.intermediate % WIDTH_STEP:
            raise ConfigError(
                f"intermediate is {self.intermediate}; allowed: multiples of {WIDTH_STEP}", param="intermediate"
            )


@dataclass(frozen=True, slots=True)
class LossVocabularySize:
    """The tokens in the loss of a step. The sampled ones stand for all others."""

    loss_vocab: Annotated[int, Option(help="frequent tokens, which are in the loss of every step", min=64)] = 8192
    loss_sample: Annotated[int, Option(help="other tokens in the loss, sampled in each step", min=1)] = 1024


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """A draft head, and how it is trained."""

    draft_vocab: Annotated[int, Option(help="tokens that the head can draft", min=64)] = 8192
    size: HeadSize = field(default_factory=HeadSize)
    loss_size: LossVocabularySize = field(default_factory=LossVocabularySize)
    weights: Annotated[
        WeightFormat, Option(help="of the exported head: q8_0 without the target's output rows, or bf16 with them")
    ] = "q8_0"
    init: Path | None = None  # folder of a head that provides sizes and initial weights
    provenance: Mapping[str, object] = field(default_factory=dict)
    """What the head records of itself besides its training (`engine.models.provenance`)."""
    max_tokens: int | None = None  # use at most this much of the data
    objective: LossSettings = field(default_factory=LossSettings)
    training: TrainSettings = field(default_factory=TrainSettings)


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """The levels of a head, and how they are trained. Raises `ConfigError` for a width that no head can run."""

    count: Annotated[int, Option("--levels", help="levels after the first pass", min=1, max=4)] = 3
    width: Annotated[int, Option(help=f"width of a level, a multiple of {WIDTH_STEP}", min=WIDTH_STEP)] = 256
    max_anchors: Annotated[
        int, Option("--anchors", help="answer tokens to train on; a smaller text is read again", min=1)
    ] = 400_000
    anchors_per_step: int = 512
    rate: Annotated[float, Option(help="peak learning rate of Muon", min=0.0)] = 6e-3
    level_decay: float = 0.8  # weight of level i is level_decay ** (i - 1)
    unconditioned_weight: float = 0.3
    """Weight of a level's prediction before the drafted token is known, in addition to the conditioned one."""
    num_sampled: int = 1024
    """Tokens sampled for the loss of a batch, in addition to the likely ones (`losses.SampledSoftmax`)."""
    seed: Annotated[int, Option(help="seed of the order and of the initial weights")] = 0
    workers: int = 2
    dtype: Dtype = "float32"
    held_out_documents: int = 48
    init: Path | None = None  # folder of a head that provides sizes and initial weights of levels

    @property
    def training(self) -> TrainSettings:
        """The same for the trainer, which measures at the end only."""
        return TrainSettings(
            max_anchors=self.max_anchors,
            anchors_per_step=self.anchors_per_step,
            rates=Rates(muon=self.rate),
            prompt_epochs=0,
            seed=self.seed,
            measure_every=sys.maxsize,
            held_out_documents=self.held_out_documents,
        )

    def __post_init__(self) -> None:
        if self.width % WIDTH_STEP:
            raise ConfigError(f"width is {self.width}; allowed: multiples of {WIDTH_STEP}", param="width")


@dataclass(frozen=True, slots=True)
class LearningRecipe:
    """How a run of learning goes on with the head that drafts now, on its rule's text and as much of the base text."""

    epochs: float = 2.0
    rate: float = 1e-4
    level_rate: float = 1e-3
    noise: float = 0.1
    anchors_per_step: int = 768
    base_tokens: int = 200_000  # that the target writes where no base text comes with its head

    def of_head(self, init: Path, provenance: Mapping[str, object], workers: int, dtype: Dtype) -> HeadRecipe:
        training = TrainSettings(
            epochs=self.epochs,
            anchors_per_step=self.anchors_per_step,
            rates=Rates(adamw=self.rate),
            workers=workers,
            dtype=dtype,
        )
        objective = LossSettings(noise=self.noise)
        return HeadRecipe(init=init, provenance=provenance, objective=objective, training=training)

    def of_levels(self, init: Path, num_tokens: int, workers: int, dtype: Dtype) -> LevelSettings:
        """`num_tokens`: answer tokens of the text."""
        return LevelSettings(
            max_anchors=int(self.epochs * num_tokens),
            anchors_per_step=self.anchors_per_step,
            rate=self.level_rate,
            workers=workers,
            dtype=dtype,
            init=init,
        )


@dataclass(frozen=True, slots=True)
class StatedStepCost:
    """Costs of speculation in milliseconds at batch 1: the fields of `StatedCost`."""

    plain_ms: float
    token_ms: float
    draft_ms: float
    draft_ms_per_1k: float

    def drafting(self, vocab: int) -> float:
        """Return the milliseconds of one draft step."""
        return self.draft_ms + self.draft_ms_per_1k * vocab / 1000


_PASS = 8
"""Tokens of a pass by which the cost of a further token is taken: about as many as are drafted."""


@dataclass(frozen=True, slots=True)
class StatedCost:
    """Costs of speculation in milliseconds at batch 1, as a user states them; None: the costs of this machine."""

    plain_ms: Annotated[
        float | None, Option(help="milliseconds of a forward pass over one token; default: measured here", min=0.0)
    ] = None
    token_ms: Annotated[
        float | None, Option(help="milliseconds of each further token in the pass; default: measured here", min=0.0)
    ] = None
    draft_ms: Annotated[float, Option(help="milliseconds of a draft step without its output head", min=0.0)] = 0.6
    draft_ms_per_1k: Annotated[
        float, Option(help="milliseconds of the output head for each thousand draft tokens", min=0.0)
    ] = 0.07

    def on(self, curve: "CostCurve | None") -> StatedStepCost:
        """Return the costs, of a machine whose passes cost what `curve` says."""
        plain_ms, token_ms = self.plain_ms, self.token_ms
        if curve is not None:
            single, several = (curve.ms(number, curve.contexts[0]) for number in (1, _PASS))
            plain_ms = single if plain_ms is None else plain_ms
            token_ms = (several - single) / (_PASS - 1) if token_ms is None else token_ms
        assert plain_ms is not None, "it is stated, or there is a curve"
        assert token_ms is not None, "it is stated, or there is a curve"
        return StatedStepCost(plain_ms, token_ms, self.draft_ms, self.draft_ms_per_1k)
