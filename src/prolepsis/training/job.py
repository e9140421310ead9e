"""The job of a run of learning: from a rule's examples to a head that was tried on later ones.

What is done is found again, in the run's folder and in the store, so that a job that was killed goes on where it was:
the same data set, its hidden states, the checkpoint, the head that was imported, its lineage.
"""

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path

from prolepsis.control.learning.machine import Ended, Evaluated, Taken, champion_of
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.files import sha256_of, write_whole
from prolepsis.core.learning import Example, HeadLineage, LearningRun, report_folder, run_folders, tenant_digest
from prolepsis.engine.drafting.proposers.head import PROMPT_TOKENS
from prolepsis.engine.models.heads.exchange import NAME, archive_of, import_archive
from prolepsis.engine.models.heads.levels import LEVELS
from prolepsis.engine.models.heads.registry import HeadEntry, find_head, fitting_entry, list_heads
from prolepsis.engine.native.processor import default_threads
from prolepsis.training.data import BASE_KIND, HELD_OUT_EVERY, Dataset
from prolepsis.training.evaluation import BASE_DOCUMENTS, EvaluationResult, evaluate
from prolepsis.training.examples import dataset_of
from prolepsis.training.held_run import BudgetSpent, HeldRun, RunLost
from prolepsis.training.levels import LevelRun
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import LearningRecipe
from prolepsis.training.synthesis import DataRequest, SynthesisLimits, generate
from prolepsis.training.target import target_of, training_dtype
from prolepsis.training.text import WrittenText, numbered, read_texts, record, save_texts, write_texts
from prolepsis.training.training import HeadTraining

BASE = "base.jsonl.xz"  # in the folder of a head: half of what the heads that follow learn from
_PASS_TOKENS = 256  # so that a pause comes soon
_SHARD_TOKENS = 8192  # so that little is read again
STEPS = ("base text", "reading", "training", "levels", "evaluation")
Progress = Callable[[str, int, int, str], None]
"""Takes one of `STEPS`, what is done of it and all of it, and figures in words."""


def learn(
    config: EngineConfig, database: Database, held: HeldRun, *, say: Progress, recipe: LearningRecipe | None = None
) -> LearningRun:
    """Carry a run to its trial or its end, and return it as it is stored then; its text is deleted.

    It stays while the run can go on: where the budget is spent, by a hand, and where the store is away. Raises what
    makes a run fail, which ends it too, and `StoreUnavailable`.
    """
    folder = run_folders(database.name) / held.run.run_id
    for other in folder.parent.glob("*"):
        if other != folder:  # of a run that ended elsewhere
            shutil.rmtree(other)
    try:
        ended = _Job(config, database, held, say, recipe or LearningRecipe()).carry_out()
    except RunLost:
        ended = RunTable(database).read()
    except BudgetSpent:
        why = f"its {held.terms.processor_s:,.0f} s of processor time are spent"
        return held.step(Ended("stopped", f"{why}; `prolepsis learning run {held.run.rule}` goes on"))
    except KeyboardInterrupt:
        held.step(Taken(held.run.holder, 0.0))
        raise
    except StoreUnavailable:
        raise
    except Exception as error:  # contained: a run that fails each time must not be started for ever
        held.step(Ended("failed", str(error) or type(error).__name__))
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if (ended.run_id, ended.phase) != (held.run.run_id, "training"):  # no other process goes on with it
        shutil.rmtree(folder, ignore_errors=True)
    return ended


class _Job:
    """The steps of a run, each of which leaves out what was done before."""

    def __init__(
        self, config: EngineConfig, database: Database, held: HeldRun, say: Progress, recipe: LearningRecipe
    ) -> None:
        self._examples, self._lineage = ExampleTable(database), LineageTable(database)
        self._held, self._say, self._recipe = held, say, recipe
        self._directory = RunDirectory(run_folders(database.name) / held.run.run_id)
        self._terms, self._rule, self._root = held.terms, held.run.rule, config.model_dir
        self._workers = max(1, min(config.threads or sys.maxsize, int(self._terms.share * default_threads())))
        self._config = config.model_copy(update={"threads": self._workers})
        self._target = target_of(config)
        self._serves = tuple(sorted(map(tenant_digest, self._terms.tenants))) if self._terms.serves == "tenant" else ()
        self._parent = self._champion()

    def carry_out(self) -> LearningRun:
        key, texts = self._dataset()
        label = next((name for name, head in self._lineage.heads().items() if head.manifests[:1] == (key,)), "")
        if not label:
            self._read(texts)
            self._train(key)
            heads, refs = (self._parent.folder, self._directory.exported), Dataset(self._directory.data).held_out
            tell = partial(self._tell, "evaluation", total=len(refs))
            result = evaluate(self._config, self._target, heads, refs, self._terms, progress=tell)
            self._keep_report(result)
            if not result.passed:
                return self._held.step(Evaluated("", result.reason))
            label = self._keep(result)
        head = self._lineage.heads()[label]
        if head.retired:
            self._lineage.retire(label, head.retired)  # its weights came after it
            return self._held.step(Ended("forgotten", head.retired))
        return self._held.step(Evaluated(label, str(head.evaluation["reason"])))

    def _champion(self) -> HeadEntry:
        """Return the head that the rule drafts with, if this one may go on from it, else the shipped one."""
        heads = self._lineage.heads()
        label = champion_of(heads, [self._rule], to_learn_from=True)
        if label and heads[label].serves in ((), self._serves):
            archive = self._lineage.weights(label)
            own = import_archive(archive, label, self._root) if archive else find_head(label, self._root)
            if own.target_fingerprint == self._target.identity:
                return own
        entry = fitting_entry(self._target.identity, self._root)
        if entry is None:
            how = "`prolepsis train head` trains one, and the alias champion adopts it"
            raise ConfigError(f"{self._target.name} has no draft head to go on from; {how}", param="rule")
        return entry

    def _dataset(self) -> tuple[str, Sequence[WrittenText]]:
        """Return the key of the data set and its text; the folder of the run is emptied if it is of another one."""
        file, identity = self._directory.root / "began.json", self._target.identity
        began = json.loads(file.read_text()) if file.is_file() else {}
        made_at, tokenizer = began.get("made_at", self._held.run.since), self._target.tokenizer.fingerprint[:16]
        stored = self._examples.read(self._rule, tenants=self._terms.tenants)
        manifest, examples = dataset_of(stored, self._terms, made_at, target=identity, tokenizer=tokenizer)
        base = self._base_text()
        manifest = replace(manifest, base=sha256_of(base))
        key = self._lineage.add_dataset(manifest)
        if not self._examples.has(manifest):
            raise ConfigError("examples were deleted while they were read", param="rule")
        begins = {"dataset": key, "made_at": made_at, "parent": self._parent.label}
        if began != begins:
            shutil.rmtree(self._directory.root, ignore_errors=True)
            self._directory.root.mkdir(mode=0o700, parents=True)
            write_whole(file, json.dumps(begins).encode())
        base_texts = read_texts(base, self._target.shape.vocab, self._target.eos_token_ids)
        return key, [*texts_of(examples, manifest.held_out_from, base_texts)]

    def _base_text(self) -> Path:
        """Return the file of the text that comes with a head of the target, else of what the target writes once."""
        entries = (entry for entry in list_heads(self._root) if entry.target_fingerprint == self._target.identity)
        own = self._directory.root.parents[1] / f"base-{self._target.identity}" / BASE
        file = next((file for entry in entries if (file := entry.folder / BASE).is_file()), own)
        if not file.is_file():
            data, total = file.parent / "data", self._recipe.base_tokens
            limits = SynthesisLimits(concurrency=8, prompt_tokens=256)
            request = DataRequest(data, total, self._target.recorded_layers[-1:], limits=limits)
            generate(self._config, request, lambda done: self._tell("base text", min(done, total), total))
            write_texts(file, data)
            shutil.rmtree(data)
        return file

    def _read(self, texts: Sequence[WrittenText]) -> None:
        """Write the text, and the target's hidden states of it."""
        file = self._directory.root / "text.jsonl"
        save_texts(file, texts)
        total = sum(min(len(text.prompt), PROMPT_TOKENS) + len(text.answer) for text in texts)
        layers = self._target.recorded_layers
        request = DataRequest(self._directory.data, sys.maxsize, layers, tokens_per_shard=_SHARD_TOKENS)
        tell = partial(self._tell, "reading", total=total)
        record(self._config, request, file, tell, most=_PASS_TOKENS, before_pass=self._held.check)

    def _train(self, key: str) -> None:
        """Train the head from the one before it, then its levels, if that has some."""
        directory, machine = self._directory, (self._workers, training_dtype())
        manifests = [key, *self._parent.provenance.manifests]
        about = {"source": "learning", "parent": self._parent.label, "serves": self._serves, "manifests": manifests}
        recipe = self._recipe.of_head(self._parent.folder, about, *machine)
        training = HeadTraining(directory, self._target, recipe)
        for done in training.steps():
            status = f"loss={done.loss:.2f} first={done.right[0]:.2f}"
            self._tell("training", done.step, done.num_steps, status)
        if (self._parent.folder / LEVELS).is_file() and not (directory.exported / LEVELS).is_file():
            settings = self._recipe.of_levels(self._parent.folder, training.dataset.num_response_tokens, *machine)
            for done in LevelRun(directory.exported, directory.data, self._target, settings).steps():
                self._tell("levels", done.step, done.num_steps, f"loss={done.loss:.2f}")

    def _keep_report(self, result: EvaluationResult) -> None:
        """Keep figures and plots of the training, with those of the evaluation: the folder of the run goes."""
        home = report_folder(self._held.run.run_id)
        for file in (self._directory.report, *self._directory.root.glob("*.png")):
            shutil.copy(file, home)
        figures = json.dumps(asdict(result), indent=2)
        with (home / self._directory.report.name).open("a") as report:
            report.write(f"\n## Evaluation\n{result.reason}\n```json\n{figures}\n```\n")
        self._held.report = f"{socket.gethostname()}:{home}"

    def _keep(self, result: EvaluationResult) -> str:
        """Keep the head in the store under the rule's name, for servers to install; return its NAME@VERSION."""
        self._held.check()
        is_name = NAME.fullmatch(self._rule) and self._rule not in ("auto", "none")
        name = self._rule if is_name else f"rule-{self._rule}"
        taken = {*self._lineage.heads(), *(entry.label for entry in list_heads(self._root))}
        label = next(label for version in count(1) if (label := f"{name}@{version}") not in taken)
        entry = find_head(str(self._directory.exported))
        lineage = HeadLineage(
            rule=self._rule,
            parent=self._parent.label,
            manifests=entry.provenance.manifests,
            serves=self._serves,
            sha256=entry.provenance.sha256,
            made_at=time.time(),
            evaluation=asdict(result),
        )
        self._lineage.put_weights(label, archive_of(entry))
        self._lineage.add_head(label, lineage)
        return label

    def _tell(self, name: str, done: int, total: int, status: str = "") -> None:
        """Note progress, wait where the run pauses, and raise where it must end."""
        self._held.progress = (STEPS.index(name) + done / max(1, total)) / len(STEPS)
        self._say(name, done, total, f"{status} processor_s={self._held.processor_s:.0f}".strip())
        self._held.check()


def texts_of(examples: Sequence[Example], held_out_from: float, base: Sequence[WrittenText]) -> Iterator[WrittenText]:
    """Yield the examples, and as much of the base text, by numbers that hold out what is for the evaluation.

    Of the base text that is `BASE_DOCUMENTS`, or half of fewer than twice as many; first what no head learns from.
    """
    most = 0
    for example in examples:
        prompt, answer = [*example.prompt], [*example.answer]
        is_trained = example.at < held_out_from
        most += len(prompt + answer) * is_trained
        number = numbered(prompt + answer, int(is_trained))
        yield WrittenText(number, example.traffic_class, example.greedy, prompt, answer)
    num_held_out = min(BASE_DOCUMENTS, len(base) // 2)
    for i, text in enumerate(sorted(base, key=lambda text: (text.number % HELD_OUT_EVERY != 0, text.number))):
        is_trained = i >= num_held_out
        if is_trained and most <= 0:
            return
        most -= len(text.tokens) * is_trained
        yield replace(text, number=numbered(text.tokens, int(is_trained)), kind=BASE_KIND + text.kind)
