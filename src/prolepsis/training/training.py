"""The training of a draft head (EAGLE-3): from a directory with data to an export with its report."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.engine.models.heads.format import HeadStorage, HeadWeights, save_with_checksum
from prolepsis.engine.models.heads.lean import HeadLayer
from prolepsis.engine.models.provenance import read_provenance
from prolepsis.engine.models.targets.lean_shape import rope_parameters
from prolepsis.engine.models.targets.lean_weights import output_rows
from prolepsis.training.data import BASE_KIND, Dataset, read_manifest, responses
from prolepsis.training.head import HeadTask, read_head, trained_tensors, with_vocabulary
from prolepsis.training.initial_head import initial_weights
from prolepsis.training.losses import LossVocabulary
from prolepsis.training.report import DataFigures, TrainingOutcome, draw, write_report, write_result
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import HeadRecipe, HeadSize
from prolepsis.training.target import Target, choose_vocabulary, count_tokens, coverage, covered
from prolepsis.training.trainer import Trainer, TrainingStep

COVERAGE_SIZES = (2048, 4096, 8192, 16384)
LEAST_COVERED = 0.005
"""Share of held-out answers by which another draft vocabulary than that of the head before has to cover more."""


class HeadTraining:
    """Connects target, data and trainer; once `steps` is exhausted, the directory holds export and report."""

    def __init__(self, directory: RunDirectory, target: Target, recipe: HeadRecipe) -> None:
        """Start, or continue from the checkpoint.

        Raises `ConfigError` for no data, data of another target, or sizes next to `recipe.init`, and `ModelLoadError`
        for an unusable `recipe.init`.
        """
        self.directory, self.target, self.recipe = directory, target, recipe
        check_data(directory.data, target)
        self.dataset = Dataset(directory.data, recipe.max_tokens)
        if not self.dataset.training:
            raise ConfigError(f"{directory.data} holds no text to train on yet", param="tokens")
        self._counts = count_tokens(responses(self.dataset.training), target.shape.vocab)
        self._held_out = count_tokens(responses(self.dataset.held_out, without=BASE_KIND), target.shape.vocab)
        self._needed = target.needed_tokens
        self.head = self._initial_head()
        self._vocabulary = self._loss_vocabulary()
        task = HeadTask(
            self.head,
            target.ends_for(self.head.weights.target_ids),
            recipe.objective,
            vocabulary=self._vocabulary,
            workers=recipe.training.workers,
            dtype=recipe.training.dtype,
        )
        self.trainer = Trainer(task, self.dataset, recipe.training, target.preamble)
        if directory.checkpoint.exists():
            self.trainer.load(directory.checkpoint)

    def _initial_head(self) -> HeadLayer:
        """Return the head to start from; its draft vocabulary is that with which the training began."""
        recipe, file, before = self.recipe, self.directory.vocabulary, None
        if recipe.init is not None:
            if recipe.size != HeadSize():
                raise ConfigError(f"sizes are given, but the head has those of {recipe.init}", param="init")
            before = read_head(recipe.init, self.target)
        if not file.exists():
            ids = choose_vocabulary(self._counts, recipe.draft_vocab, self._needed)
            ids = self._chosen_again(before.weights) if before is not None else ids
            file.write_text(json.dumps(ids.tolist()))
        ids = torch.tensor(json.loads(file.read_text()))
        if before is not None:
            is_same = torch.equal(ids, before.weights.target_ids)
            return before if is_same else with_vocabulary(before, ids, output_rows(self.target.ends, ids).float())
        config = self.target.head_config(len(ids), recipe.size)
        documents = (ref.shard.read(ref.index) for ref in self.dataset.training)
        return HeadLayer(
            config, initial_weights(config, self.target.ends_for(ids), documents, ids, recipe.training.seed)
        )

    def _chosen_again(self, before: HeadWeights) -> Tensor:
        """Return the draft vocabulary of the head before, or as many tokens that cover surely more of the text.

        A token takes the place of one of the head's if it is there two times more: few show little.
        """
        ids = choose_vocabulary(2 * self._counts + 3 * before.t2d, len(before.d2t), self._needed)
        gain = covered(self._held_out, ids) - covered(self._held_out, before.target_ids)
        return ids if gain >= LEAST_COVERED else before.target_ids

    def _loss_vocabulary(self) -> LossVocabulary | None:
        """Return the draft ids in the loss; None for all of them: other losses than cross entropy have no sample."""
        objective, size = self.recipe.objective, self.recipe.loss_size
        if objective.acceptance_share or self.head.config.draft_vocab <= size.loss_vocab:
            return None
        frequent = self._counts[self.head.weights.target_ids].topk(size.loss_vocab).indices
        seed = self.recipe.training.seed
        return LossVocabulary.of(frequent, self.head.config.draft_vocab, num_sampled=size.loss_sample, seed=seed)

    def hparams(self) -> Mapping[str, object]:
        objective, vocabulary = self.recipe.objective, self._vocabulary
        return {
            "steps_of_training_time_test": objective.num_steps,
            "share_of_first_step_alone": objective.warm_up,
            "noise": objective.noise,
            "acceptance_share": objective.acceptance_share,
            "step_decay": objective.step_decay,
            "tokens_in_every_loss": self.head.config.draft_vocab if vocabulary is None else len(vocabulary.frequent),
            "tokens_sampled_for_a_loss": 0 if vocabulary is None else vocabulary.num_sampled,
            **{name: getattr(self.head.config.shape, name) for name in ("heads", "kv_heads", "intermediate")},
            "held_out_answers_covered": round(covered(self._held_out, self.head.weights.target_ids), 4),
            "aux_layers": list(self.head.config.aux_layers),
            "init": str(self.recipe.init.name) if self.recipe.init else "linear regression",
        }

    def steps(self) -> Iterator[TrainingStep]:
        """Train; each measurement renews the checkpoint, the export and the report."""
        started = time.monotonic()
        for done in self.trainer.steps():
            if done.measured is not None:
                outcome = self._outcome(time.monotonic() - started)
                self.export(outcome)
                write_result(self.directory, outcome)
                write_report(self.directory, outcome, draw(self.directory, outcome))
                self.trainer.save(self.directory.checkpoint)  # last: what a kill leaves out is made again
            yield done

    def export(self, outcome: TrainingOutcome) -> None:
        """Write the head, ready to serve, with its provenance (`engine.models.provenance`) and a checksum."""
        before = read_provenance(self.head.config.provenance)
        learnt = before.model_dump(include={"manifests", "serves"}, exclude_defaults=True)
        provenance: dict[str, Any] = {
            **learnt,  # from traffic, by the head that it starts from
            "version": 1,
            "target": self.target.name,
            "target_fingerprint": self.target.identity,
            "tokenizer_fingerprint": self.target.tokenizer.fingerprint,
            "acceptance": {kind: asdict(counts) for kind, counts in outcome.by_kind.items()},
            "data": asdict(outcome.data),
            "settings": dict(outcome.settings),
            "steps": outcome.history[-1].step,
            **self.recipe.provenance,
        }
        weights = self.head.weights
        rows = output_rows(self.target.ends, weights.target_ids).float()
        own = self.recipe.weights == "bf16" or not torch.equal(weights.lm_head, rows)
        storage = HeadStorage(self.recipe.weights, "own" if own else "target")
        config = replace(self.head.config, storage=storage, provenance=provenance)
        save_with_checksum(self.directory.exported, config, weights, rope_parameters(self.target.config))

    def _outcome(self, seconds: float) -> TrainingOutcome:
        documents = [*self.dataset.training, *self.dataset.held_out]
        settings, vocab, draft_vocab = self.recipe.training, self.target.shape.vocab, self.head.config.draft_vocab
        sizes = sorted({size for size in COVERAGE_SIZES if size <= vocab} | {min(vocab, draft_vocab)})
        return TrainingOutcome(
            target=self.target.name,
            draft_vocab=draft_vocab,
            parameters=sum(tensor.numel() for tensor in trained_tensors(self.head)),
            data=DataFigures(
                documents=len(documents),
                tokens=self.dataset.num_tokens,
                response_tokens=self.dataset.num_response_tokens,
                held_out_documents=len(self.dataset.held_out),
                by_kind=dict(Counter(ref.kind for ref in documents)),
                coverage=coverage(self._counts, sizes, self._needed),
            ),
            settings={
                "epochs": settings.epochs,
                "anchors_per_step": settings.anchors_per_step,
                "prompt_epochs": settings.prompt_epochs,
                "adamw_rate": settings.rates.adamw,
                "muon_rate": settings.rates.muon,
                **self.hparams(),
            },
            seconds=seconds,
            history=list(self.trainer.history),
            by_kind=self.trainer.by_kind,
        )


def check_data(folder: Path, target: Target) -> None:
    """Raise `ConfigError` if `folder` does not hold data of `target`."""
    manifest = read_manifest(folder)
    if (manifest.fingerprint, manifest.aux_layers) != (target.identity, target.recorded_layers):
        recorded, wanted = f"{manifest.target} ({manifest.fingerprint})", f"{target.name} ({target.identity})"
        raise ConfigError(f"{folder} holds data of {recorded}, not of {wanted}", param="out")
