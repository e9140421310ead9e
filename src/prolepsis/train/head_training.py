"""The training of a draft head (EAGLE-3): its first weights, its recipe, its export."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ConfigError
from prolepsis.models.heads.format import HeadWeights, load_head
from prolepsis.models.heads.lean import HeadLayer
from prolepsis.train.export import export_head
from prolepsis.train.head_student import HeadStudent, Objective
from prolepsis.train.initial import initial_weights
from prolepsis.train.report import Product
from prolepsis.train.target import Target
from prolepsis.train.trainer import TrainSettings
from prolepsis.train.training import Training
from prolepsis.train.workplace import Workplace


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What is to be trained."""

    draft_vocab: int = 8192
    init: Path | None = None
    """Folder of a head to go on from; its draft vocabulary is kept."""
    max_tokens: int | None = None
    """Use no more of the data than this."""
    objective: Objective = field(default_factory=Objective)
    settings: TrainSettings = field(default_factory=TrainSettings)


class HeadTraining(Training):
    """Trains `head`."""

    product = Product(
        "draft head (EAGLE-3)",
        "One decoder layer that guesses the target's next tokens from its hidden states. It only changes how fast\n"
        "the target answers, never what. Format: speculators, EAGLE-3; embeddings are the target's own.",
    )

    def __init__(self, workplace: Workplace, target: Target, plan: HeadPlan) -> None:
        """Raises `ConfigError` where the data are of another target, `ModelLoadError` for an unusable `plan.init`."""
        super().__init__(workplace, target, plan.settings, plan.max_tokens)
        self._plan = plan
        self.head = self._first_head() if plan.init is None else given_head(plan.init, target)
        ends = target.ends_for(self.head.weights.target_ids)
        settings = plan.settings
        self.learn_with(HeadStudent(self.head, ends, plan.objective, workers=settings.workers, dtype=settings.dtype))

    @property
    def parameters(self) -> int:
        """Without the embedding, which is the target's."""
        tensors = [getattr(self.head.weights, f.name) for f in fields(HeadWeights)]
        return sum(t.numel() for t in tensors if t is not None and t.is_floating_point())

    @property
    def draft_vocab(self) -> int:
        return self.head.config.draft_vocab

    def told(self) -> Mapping[str, object]:
        objective = self._plan.objective
        return {
            "steps_of_training_time_test": objective.num_steps,
            "share_of_first_step_alone": objective.warm_up,
            "noise": objective.noise,
            "step_decay": objective.step_decay,
            "output_head_trained": objective.train_output_head,
            "feature_weight": objective.feature_weight,
            "taps": list(self.head.config.taps),
            "init": str(self._plan.init.name) if self._plan.init else "linear regression",
        }

    def export(self, said: dict[str, Any]) -> None:
        export_head(self.workplace.exported, self.head, self.target, said)

    def _first_head(self) -> HeadLayer:
        ids = self.frequent_tokens(self._plan.draft_vocab)
        config = self.target.head_config(len(ids))
        documents = (shard.read(index) for shard, index in self.library.training)
        ends = self.target.ends_for(ids)
        return HeadLayer(config, initial_weights(config, ends, documents, ids, self._plan.settings.seed))


def given_head(folder: Path, target: Target) -> HeadLayer:
    """Read a head in float32; raises `ConfigError` where it is not of `target`, `ModelLoadError` for a damaged one."""
    config, stored = load_head(folder)
    for name in ("hidden", "vocab", "inv_freq"):
        if getattr(config.shape, name) != getattr(target.shape, name):
            raise ConfigError(f"{folder} is a head of another target: its {name} differs", param="init")
    if config.taps != target.taps:
        raise ConfigError(f"{folder} reads layers {config.taps}; the data hold {target.taps}", param="init")
    values = {f.name: getattr(stored, f.name) for f in fields(HeadWeights)}
    wide = {n: v.float() if v is not None and v.is_floating_point() else v for n, v in values.items()}
    return HeadLayer(config, HeadWeights(**wide))
