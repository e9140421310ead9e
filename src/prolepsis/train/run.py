"""One training from a folder of data to an exported head with its report."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.models.head_file import HeadWeights, load_head
from prolepsis.models.head_layer import HeadLayer
from prolepsis.train.batches import Library
from prolepsis.train.export import export
from prolepsis.train.initial import initial_weights
from prolepsis.train.plots import draw
from prolepsis.train.report import DataFigures, Outcome, write_report, write_result
from prolepsis.train.shards import read_manifest
from prolepsis.train.target import Target
from prolepsis.train.trainer import StepDone, Trainer, TrainSettings
from prolepsis.train.vocabulary import choose_vocabulary, count_tokens, coverage, needed_tokens
from prolepsis.train.workplace import Workplace

COVERAGE_SIZES = (2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """What is to be trained."""

    draft_vocab: int = 8192
    init: Path | None = None
    """Folder of a head to go on from; its draft vocabulary is kept."""
    max_tokens: int | None = None
    """Use no more of the data than this."""
    settings: TrainSettings = field(default_factory=TrainSettings)


class HeadTraining:
    """Puts target, data and trainer together; iterate over `steps`, then the folder holds head and report."""

    def __init__(self, workplace: Workplace, target: Target, plan: HeadPlan) -> None:
        """Raises `ConfigError` where the data are of another target, `ModelLoadError` for an unusable `plan.init`."""
        self._workplace = workplace
        self._target = target
        self._plan = plan
        manifest = read_manifest(workplace.data)
        if (manifest.fingerprint, manifest.taps) != (target.identity, target.recorded_taps):
            raise ConfigError(f"{workplace.data} holds data of {manifest.target}, not of {target.name}", param="out")
        self.library = Library(workplace.data, plan.max_tokens)
        if not self.library.training:
            raise ConfigError(f"{workplace.data} holds no text to train on yet", param="tokens")
        needed = needed_tokens(target.tokenizer, target.eos_token_ids)
        counts = count_tokens(self.library.response_tokens(), target.shape.vocab)
        self.head = self._first_head(counts, needed)
        sizes = {size for size in COVERAGE_SIZES if size <= target.shape.vocab} | {self.head.config.draft_vocab}
        self._coverage = coverage(counts, sorted(sizes), needed)
        ends = target.ends_for(self.head.weights.target_ids)
        self.trainer = Trainer(self.head, ends, self.library, plan.settings, target.preamble)
        if workplace.checkpoint.exists():
            self.trainer.load(workplace.checkpoint)

    def steps(self) -> Iterator[StepDone]:
        """Train; at each measurement the checkpoint, the exported head and the report are renewed."""
        started = time.monotonic()
        for done in self.trainer.steps():
            if done.measured is not None:
                self.trainer.save(self._workplace.checkpoint)
                self._report(time.monotonic() - started)
            yield done

    def _report(self, seconds: float) -> None:
        outcome = self._outcome(seconds)
        said = {
            "data": asdict(outcome.data),
            "settings": dict(outcome.settings),
            "steps": self.trainer.history[-1].step,
        }
        export(self._workplace, self.head, self._target, self.trainer.by_kind, said)
        write_result(self._workplace, outcome)
        write_report(self._workplace, outcome, draw(self._workplace.root, outcome))

    def _outcome(self, seconds: float) -> Outcome:
        places = [*self.library.training, *self.library.held_out]
        settings, objective = self._plan.settings, self._plan.settings.objective
        tensors = [getattr(self.head.weights, f.name) for f in fields(HeadWeights)]
        return Outcome(
            target=self._target.name,
            draft_vocab=self.head.config.draft_vocab,
            parameters=sum(t.numel() for t in tensors if t is not None and t.is_floating_point()),
            data=DataFigures(
                documents=len(places),
                tokens=self.library.num_tokens,
                response_tokens=self.library.num_response_tokens,
                held_out_documents=len(self.library.held_out),
                by_kind=dict(Counter(shard.kinds[index] for shard, index in places)),
                coverage=self._coverage,
            ),
            settings={
                "epochs": settings.epochs,
                "anchors_per_step": settings.anchors_per_step,
                "steps_of_training_time_test": objective.num_steps,
                "share_of_first_step_alone": objective.warm_up,
                "noise": objective.noise,
                "step_decay": objective.step_decay,
                "prompt_epochs": settings.prompt_epochs,
                "output_head_trained": settings.train_output_head,
                "feature_weight": objective.feature_weight,
                "adamw_rate": settings.rates.adamw,
                "muon_rate": settings.rates.muon,
                "taps": list(self.head.config.taps),
                "init": str(self._plan.init.name) if self._plan.init else "linear regression",
            },
            seconds=seconds,
            history=list(self.trainer.history),
            by_kind=self.trainer.by_kind,
        )

    def _first_head(self, counts: Tensor, needed: Sequence[int]) -> HeadLayer:
        if self._plan.init is not None:
            return self._given_head(self._plan.init)
        ids = self._vocabulary(counts, needed)
        config = self._target.head_config(len(ids))
        documents = (shard.read(index) for shard, index in self.library.training)
        ends = self._target.ends_for(ids)
        return HeadLayer(config, initial_weights(config, ends, documents, ids, self._plan.settings.seed))

    def _vocabulary(self, counts: Tensor, needed: Sequence[int]) -> Tensor:
        file = self._workplace.vocabulary
        if file.exists():
            return torch.tensor(json.loads(file.read_text()))
        ids = choose_vocabulary(counts, self._plan.draft_vocab, needed)
        file.write_text(json.dumps(ids.tolist()))
        return ids

    def _given_head(self, folder: Path) -> HeadLayer:
        config, stored = load_head(folder)
        for name in ("hidden", "vocab", "inv_freq"):
            if getattr(config.shape, name) != getattr(self._target.shape, name):
                raise ConfigError(f"{folder} is a head of another target: its {name} differs", param="init")
        if config.taps != self._target.taps:
            raise ConfigError(f"{folder} reads layers {config.taps}; the data hold {self._target.taps}", param="init")
        values = {f.name: getattr(stored, f.name) for f in fields(HeadWeights)}
        wide = {n: v.float() if v is not None and v.is_floating_point() else v for n, v in values.items()}
        return HeadLayer(config, HeadWeights(**wide))
