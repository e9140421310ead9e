"""The job of a run of learning: from a rule's examples to a head that was tried on later ones.

What is done is found again, in the run's folder and in the store, so that a job that was killed goes on where it was:
the same data set, its hidden states, the checkpoint, the head that was imported, its lineage.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import compress
from operator import not_
from pathlib import Path

from prolepsis.control.learning.machine import Ended, Evaluated, Taken, champion_of
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.files import data_directory, sha256_of, write_whole
from prolepsis.core.learning import Example, HeadLineage, LearningRun, run_folders, tenant_digest
from prolepsis.engine.drafting.proposers.head import PROMPT_TOKENS
from prolepsis.engine.models.heads.aliases import HeadAliases
from prolepsis.engine.models.heads.exchange import NAME, archive_of, import_archive, import_head, remove_head
from prolepsis.engine.models.heads.levels import LEVELS
from prolepsis.engine.models.heads.registry import HeadEntry, find_head, fitting_entry, list_heads
from prolepsis.engine.native.processor import default_threads
from prolepsis.training.comparison import HeadPair, answers_alike
from prolepsis.training.data import HELD_OUT_EVERY, Dataset, TrainingDocument, read
from prolepsis.training.evaluation import LEAST_DOCUMENTS, EvaluationResult, judge
from prolepsis.training.examples import Fingerprints, Split, dataset_of
from prolepsis.training.held_run import BudgetSpent, HeldRun, RunLost
from prolepsis.training.levels import LevelRun
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import LearningRecipe
from prolepsis.training.synthesis import DataRequest, SynthesisLimits, generate
from prolepsis.training.target import target_of, training_dtype
from prolepsis.training.text import WrittenText, numbered, read_texts, record, save_texts, write_texts
from prolepsis.training.training import HeadTraining

BASE = "base.jsonl.xz"
"""The base text in the folder of a head: half of what the heads that follow learn from."""
_BASE_KIND = "base: "
_PASS_TOKENS = 256  # so that a pause comes soon
_SHARD_TOKENS = 8192  # so that little is read again
_CHECKED = 4
STEPS = ("base text", "reading", "training", "levels", "evaluation")
Progress = Callable[[str, int, int, str], None]
"""Takes one of `STEPS`, what is done of it and all of it, and figures in words."""


class RunFolder(RunDirectory):
    """The folder of a run on this machine, for its user only: text and evaluation, besides those of a training."""

    __slots__ = ()

    @classmethod
    def of(cls, run: LearningRun, store: str) -> "RunFolder":
        return cls(run_folders(store) / run.run_id)

    @property
    def text(self) -> Path:
        return self.root / "text.jsonl"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation.json"

    def began(self) -> Mapping[str, object]:
        """Return what `begin` was given; empty where the folder is new."""
        file = self.root / "began.json"
        began: dict[str, object] = json.loads(file.read_text()) if file.is_file() else {}
        return began

    def begin(self, about: Mapping[str, object]) -> None:
        """Empty the folder unless it began with the same."""
        if self.began() != about:
            self.delete()
            self.root.mkdir(mode=0o700, parents=True)
            write_whole(self.root / "began.json", json.dumps(about).encode())

    def delete(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def learn(
    config: EngineConfig,
    database: Database,
    held: HeldRun,
    *,
    say: Progress = lambda *_: None,
    recipe: LearningRecipe | None = None,
) -> LearningRun:
    """Carry a run to its trial or its end, and return it as it is stored then.

    Raises what makes it fail, which ends the run too, and `StoreUnavailable`, after which it can go on as after a kill.
    """
    folder = RunFolder.of(held.run, database.name)
    for other in folder.root.parent.glob("*"):
        if other != folder.root:  # of a run that ended elsewhere
            shutil.rmtree(other)
    job = partial(_Job, config, database, held, folder, say=say, recipe=recipe or LearningRecipe())
    with held:
        try:
            ended = _carried_out(job, held, folder)
            is_kept = ended.outcome == "stopped"  # its budget is spent, and a hand may go on
        except RunLost:
            ended = RunTable(database).read()
            is_kept = (ended.run_id, ended.phase) == (held.run.run_id, "training")  # another process goes on
    if not is_kept:
        folder.delete()
    return ended


def _carried_out(job: "Callable[[], _Job]", held: HeldRun, folder: RunFolder) -> LearningRun:
    try:
        return job().carry_out()
    except BudgetSpent:
        why = f"its {held.terms.processor_s:,.0f} s of processor time are spent"
        return held.step(Ended("stopped", f"{why}; `prolepsis learning run {held.run.rule}` goes on"))
    except KeyboardInterrupt:
        held.step(Taken(held.run.holder, 0.0))
        raise
    except (RunLost, StoreUnavailable):
        raise
    except Exception as error:  # contained: a run that fails each time must not be started for ever
        held.step(Ended("failed", str(error) or type(error).__name__))
        folder.delete()
        raise


class _Job:
    """The steps of a run, each of which leaves out what was done before."""

    def __init__(
        self,
        config: EngineConfig,
        database: Database,
        held: HeldRun,
        folder: RunFolder,
        *,
        say: Progress,
        recipe: LearningRecipe,
    ) -> None:
        self._examples, self._lineage = ExampleTable(database), LineageTable(database)
        self._held, self._folder, self._say, self._recipe = held, folder, say, recipe
        self._terms, self._rule, self._root = held.terms, held.run.rule, config.model_dir
        self._workers = max(1, min(config.threads or sys.maxsize, int(self._terms.share * default_threads())))
        self._config = config.model_copy(update={"threads": self._workers})
        self._target = target_of(config)
        self._serves = tuple(sorted(map(tenant_digest, self._terms.tenants))) if self._terms.serves == "tenant" else ()
        self._parent = self._champion()

    def carry_out(self) -> LearningRun:
        found = self._dataset()
        if isinstance(found, str):
            return self._held.step(Ended("failed", found))
        key, split, base = found
        label = next((name for name, head in self._lineage.heads().items() if head.manifests[:1] == (key,)), "")
        if not label:
            if not self._folder.evaluation.is_file():
                self._read(split, base)
                self._train(key)
                write_whole(self._folder.evaluation, self._compare().to_json().encode())
            result = EvaluationResult.from_json(self._folder.evaluation.read_bytes())
            if not result.passed:
                return self._held.step(Evaluated("", result.reason))
            label = self._install(key, result)
        head = self._lineage.heads()[label]
        if head.retired:
            self._lineage.retire(label, head.retired)  # its weights came after it
            self._discard(key)
            return self._held.step(Ended("forgotten", head.retired))
        if (entry := self._imported(key)) is not None:
            HeadAliases(self._root).set(entry.name, "candidate", entry.version)
        return self._held.step(Evaluated(label, _gain(head.evaluation)))

    def _champion(self) -> HeadEntry:
        """Return the head that the rule drafts with, if this one may go on from it, else the shipped one."""
        heads = self._lineage.heads()
        label = champion_of(heads, [self._rule], to_learn_from=True)
        if label and heads[label].serves in ((), self._serves):
            kept = None if label in {entry.label for entry in list_heads(self._root)} else self._lineage.weights(label)
            own = import_archive(kept, label, self._root) if kept else find_head(label, self._root)
            if own.target_fingerprint == self._target.identity:
                return own
        entry = fitting_entry(self._target.identity, self._root)
        if entry is None:
            target = f"{self._target.name} ({self._target.identity})"
            how = "`prolepsis train head` trains one, and the alias champion adopts it"
            raise ConfigError(f"{target} has no draft head to go on from; {how}", param="rule")
        return entry

    def _dataset(self) -> tuple[str, Split, Path] | str:
        """Return the key of the data set, its examples and the file of its base text; or what is missing."""
        began, run = self._folder.began(), self._held.run
        made_at = began.get("made_at", run.since)
        assert isinstance(made_at, float), "as it was written below"
        fingerprints = Fingerprints(self._target.identity, self._target.tokenizer.fingerprint[:16])
        examples = self._examples.read(run.rule, tenants=self._terms.tenants)
        found = dataset_of(examples, self._terms, fingerprints, made_at)
        if isinstance(found, str):
            return found
        base = self._base_text()
        manifest = replace(found[0], base=sha256_of(base))
        key = self._lineage.add_dataset(manifest)
        if not self._examples.has(manifest):
            return "examples were deleted while they were read"
        if began.get("dataset") not in (None, key):
            self._discard(str(began["dataset"]))
        self._folder.begin({"dataset": key, "made_at": made_at, "parent": self._parent.label})
        return key, found[1], base

    def _base_text(self) -> Path:
        """Return the file of the text that comes with a head of the target, else of what the target writes once."""
        entries = (entry for entry in list_heads(self._root) if entry.target_fingerprint == self._target.identity)
        own = data_directory() / "learning" / f"base-{self._target.identity}" / BASE
        file = next((file for entry in entries if (file := entry.folder / BASE).is_file()), own)
        if not file.is_file():
            data, total = file.parent / "data", self._recipe.base_tokens
            limits = SynthesisLimits(concurrency=8, prompt_tokens=256)
            request = DataRequest(data, total, self._target.recorded_layers[-1:], limits=limits)
            generate(self._config, request, lambda done: self._tell("base text", min(done, total), total))
            write_texts(file, data)
            shutil.rmtree(data)
        return file

    def _read(self, split: Split, base: Path) -> None:
        """Write the text, and the target's hidden states of it."""
        vocab, ends = self._target.shape.vocab, self._target.eos_token_ids
        if not self._folder.text.is_file():
            save_texts(self._folder.text, texts_of(split, read_texts(base, vocab, ends)))
        texts = read_texts(self._folder.text, vocab, ends)
        total = sum(min(len(text.prompt), PROMPT_TOKENS) + len(text.answer) for text in texts)
        data, layers = self._folder.data, self._target.recorded_layers
        request = DataRequest(data, sys.maxsize, layers, tokens_per_shard=_SHARD_TOKENS)
        record(
            self._config,
            request,
            self._folder.text,
            lambda done: self._tell("reading", done, total),
            most=_PASS_TOKENS,
            before_pass=self._held.check,
        )

    def _train(self, key: str) -> None:
        """Train the head from the one before it, then its levels, if that has some."""
        directory, machine = self._folder, (self._workers, training_dtype())
        manifests = [key, *self._parent.provenance.manifests]
        about = {"source": "learning", "parent": self._parent.label, "serves": self._serves, "manifests": manifests}
        recipe = self._recipe.of_head(self._parent.folder, about, *machine)
        training = HeadTraining(directory, self._target, recipe)
        try:
            for done in training.steps():
                status = f"loss={done.loss:.2f} first={done.right[0]:.2f}"
                self._tell("training", done.step, done.num_steps, status)
        except BudgetSpent:
            training.trainer.save(directory.checkpoint)
            raise
        if (self._parent.folder / LEVELS).is_file() and not (directory.exported / LEVELS).is_file():
            settings = self._recipe.of_levels(self._parent.folder, training.dataset.num_response_tokens, *machine)
            for done in LevelRun(directory.exported, directory.data, self._target, settings).steps():
                self._tell("levels", done.step, done.num_steps, f"loss={done.loss:.2f}")

    def _compare(self) -> EvaluationResult:
        directory, terms = self._folder, self._terms
        heads = HeadPair(self._target, self._parent.folder, directory.exported)
        refs = Dataset(directory.data).held_out

        def documents(first: int) -> Iterator[TrainingDocument]:
            for number, ref in enumerate(refs, first):
                self._tell("evaluation", number, 2 * len(refs))
                yield from read([ref])

        pairs = [*zip(*heads.scores(documents(0), documents(len(refs))), strict=True)]
        is_base = [pair[0].kind.startswith(_BASE_KIND) for pair in pairs]
        result = judge(
            [*compress(pairs, map(not_, is_base))],
            [*compress(pairs, is_base)],
            gain=terms.gain,
            loss=terms.loss,
            megabytes=sum(file.stat().st_size for file in directory.exported.rglob("*") if file.is_file()) / 1e6,
            ms=heads.draft_ms(*read(refs[:1])),
        )
        prompts = [document.tokens[: document.response_start].tolist() for document in read(refs[:_CHECKED])]
        if result.passed and not answers_alike(self._config, directory.exported, prompts):
            return replace(result, passed=False, reason="answers with its drafts differ from those without")
        return result

    def _install(self, key: str, result: EvaluationResult) -> str:
        """Import the head under the rule's name, and keep its lineage and its weights; return its NAME@VERSION."""
        self._held.check()
        entry = self._imported(key)
        if entry is None:
            is_name = NAME.fullmatch(self._rule) and self._rule not in ("auto", "none")
            name = self._rule if is_name else f"rule-{self._rule}"
            known = [*self._lineage.heads(), *(entry.label for entry in list_heads(self._root))]
            versions = [int(label.partition("@")[2]) for label in known if label.partition("@")[0] == name]
            entry = import_head(self._folder.exported, f"{name}@{1 + max(versions, default=0)}", self._root)
        lineage = HeadLineage(
            rule=self._rule,
            parent=self._parent.label,
            manifests=entry.provenance.manifests,
            serves=self._serves,
            sha256=entry.provenance.sha256,
            made_at=time.time(),
            evaluation=asdict(result),
        )
        self._lineage.put_weights(entry.label, archive_of(entry))
        self._lineage.add_head(entry.label, lineage)
        return entry.label

    def _imported(self, key: str) -> HeadEntry | None:
        """Return this machine's head of a data set."""
        return next((entry for entry in list_heads(self._root) if entry.provenance.manifests[:1] == (key,)), None)

    def _discard(self, key: str) -> None:
        """Delete this machine's head of a data set that is not used any more."""
        if (entry := self._imported(key)) is not None:
            remove_head(entry.label, self._root)

    def _tell(self, name: str, done: int, total: int, status: str = "") -> None:
        """Note progress, wait where the run pauses, and raise where it must end."""
        self._held.progress = (STEPS.index(name) + done / max(1, total)) / len(STEPS)
        self._say(name, done, total, f"{status} processor_s={self._held.processor_s:.0f}".strip())
        self._held.check()


def texts_of(split: Split, base: Sequence[WrittenText]) -> Iterator[WrittenText]:
    """Yield the examples, and as much of the base text, by numbers that hold out what is for the evaluation.

    The base text's part for it is of what heads never learn from, as far as there is enough.
    """
    for side, examples in enumerate((split.held_out, split.training)):
        yield from (_text(example, side) for example in examples)
    most = sum(len(example.prompt) + len(example.answer) for example in split.training)
    for i, text in enumerate(sorted(base, key=lambda text: (text.number % HELD_OUT_EVERY != 0, text.number))):
        is_trained = i >= LEAST_DOCUMENTS
        most -= len(text.tokens) * is_trained
        yield replace(text, number=numbered(text.tokens, int(is_trained)), kind=_BASE_KIND + text.kind)
        if most <= 0:
            return


def _text(example: Example, side: int) -> WrittenText:
    prompt, answer = [*example.prompt], [*example.answer]
    return WrittenText(numbered(prompt + answer, side), example.traffic_class, example.greedy, prompt, answer)


def _gain(evaluation: Mapping[str, object]) -> str:
    own = evaluation["own"]
    assert isinstance(own, Mapping), "a ratio, as `EvaluationResult` has it"
    return f"{own['estimate'] - 1:+.1%} tokens a pass on later examples, at least {own['lower'] - 1:+.1%}"
