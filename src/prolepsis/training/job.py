"""The job of a run of learning: from a rule's examples to a head that was tried on later ones.

What is done is found again, in the run's folder and in the store, so that a job that was killed goes on where it was:
the same data set, its hidden states, the checkpoint, the head that was imported, its lineage.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

import torch

from prolepsis.control.learning.machine import Ended, Evaluated, Taken, champion_of
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.core.config import CANDIDATE_HEAD, EngineConfig
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.events import Tokens
from prolepsis.core.files import data_directory, sha256_of, write_whole
from prolepsis.core.learning import Example, HeadLineage, LearningRun, run_folders, tenant_digest
from prolepsis.core.messages import Submit
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.drafting.proposers.head import PROMPT_TOKENS
from prolepsis.engine.models.heads.aliases import HeadAliases
from prolepsis.engine.models.heads.exchange import NAME, archive_of, import_archive, import_head, remove_head
from prolepsis.engine.models.heads.levels import LEVELS, HeadLevels, load_levels
from prolepsis.engine.models.heads.registry import HeadEntry, find_head, fitting_entry, list_heads
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.targets.lean_weights import output_rows
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.step import Engine
from prolepsis.training.batches import lay_flat
from prolepsis.training.data import HELD_OUT_EVERY, Dataset, TrainingDocument, read
from prolepsis.training.evaluation import DEPTH, LEAST_DOCUMENTS, DocumentScore, EvaluationResult, judge, scores
from prolepsis.training.examples import Fingerprints, Split, dataset_of
from prolepsis.training.head import read_head
from prolepsis.training.held_run import BudgetSpent, HeldRun, RunLost
from prolepsis.training.levels import LevelRun
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import LearningRecipe
from prolepsis.training.synthesis import DataRequest, SynthesisLimits, generate, plain
from prolepsis.training.target import target_of, training_dtype
from prolepsis.training.text import WrittenText, numbered, read_texts, record, save_texts, write_texts
from prolepsis.training.training import HeadTraining
from prolepsis.training.unroll import unroll

BASE = "base.jsonl.xz"
"""The base text in the folder of a head: half of what the heads that follow learn from."""
_BASE_KIND = "base: "
_PASS_TOKENS = 256  # so that a pause comes soon
_SHARD_TOKENS = 8192  # so that little is read again
_TIMED = 20
_CHECKED, _CHECKED_TOKENS = 4, 32
STEPS = ("base text", "reading", "training", "levels", "evaluation")
Progress = Callable[[str, int, int, str], None]
"""Takes one of `STEPS`, what is done of it and all of it, and figures in words."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run on this machine, for its user only: text, hidden states, checkpoint and exported head."""

    directory: RunDirectory

    @classmethod
    def of(cls, run: LearningRun, store: str) -> "RunFolder":
        return cls(RunDirectory(run_folders(store) / run.run_id))

    @property
    def text(self) -> Path:
        return self.directory.root / "text.jsonl"

    @property
    def evaluation(self) -> Path:
        return self.directory.root / "evaluation.json"

    def began(self) -> Mapping[str, object]:
        """Return what `begin` was given; empty where the folder is new."""
        file = self.directory.root / "began.json"
        began: dict[str, object] = json.loads(file.read_text()) if file.is_file() else {}
        return began

    def begin(self, about: Mapping[str, object]) -> None:
        """Empty the folder unless it began with the same."""
        if self.began() != about:
            self.delete()
            self.directory.root.mkdir(mode=0o700, parents=True)
            write_whole(self.directory.root / "began.json", json.dumps(about).encode())

    def delete(self) -> None:
        shutil.rmtree(self.directory.root, ignore_errors=True)


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
    for other in folder.directory.root.parent.glob("*"):
        if other != folder.directory.root:  # of a run that ended elsewhere
            shutil.rmtree(other)
    with held:
        try:
            ended = _Job(config, database, held, say=say, recipe=recipe or LearningRecipe()).carry_out()
        except BudgetSpent:
            why = f"its {held.terms.processor_s:,.0f} s of processor time are spent"
            return held.step(Ended("stopped", f"{why}; `prolepsis learning run {held.run.rule}` goes on"))
        except RunLost:
            ended = RunTable(database).read()
        except StoreUnavailable:
            raise
        except KeyboardInterrupt:
            held.step(Taken(held.run.holder, 0.0))
            raise
        except Exception as error:  # contained: a run that fails each time must not be started for ever
            held.step(Ended("failed", str(error) or type(error).__name__))
            folder.delete()
            raise
    if (ended.run_id, ended.phase) != (held.run.run_id, "training"):
        folder.delete()
    return ended


class _Job:
    """The steps of a run, each of which leaves out what was done before."""

    def __init__(
        self, config: EngineConfig, database: Database, held: HeldRun, *, say: Progress, recipe: LearningRecipe
    ) -> None:
        self._examples, self._lineage = ExampleTable(database), LineageTable(database)
        self._held, self._folder, self._say, self._recipe = held, RunFolder.of(held.run, database.name), say, recipe
        self._terms, self._rule, self._root = held.terms, held.run.rule, config.model_dir
        self._workers = config.threads or max(1, int(self._terms.share * default_threads()))
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
                write_whole(self._folder.evaluation, self._evaluate().to_json().encode())
            result = EvaluationResult.from_json(self._folder.evaluation.read_bytes())
            if not result.passed:
                return self._held.step(Evaluated("", result.reason))
            label = self._install(key, result)
        head = self._lineage.heads()[label]
        if head.retired:
            self._lineage.retire(label, head.retired)  # its weights came after it
            self._discard(key)
            return self._held.step(Ended("forgotten", head.retired))
        name, _, version = label.partition("@")
        HeadAliases(self._root).set(name, "candidate", int(version))
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
        tokenizer = self._target.tokenizer.fingerprint[:16]
        found = dataset_of(
            self._examples.read(run.rule, tenants=self._terms.tenants),
            self._terms,
            Fingerprints(self._target.identity, tokenizer),
            made_at,
        )
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
            save_texts(self._folder.text, _texts(split, read_texts(base, vocab, ends)))
        texts = read_texts(self._folder.text, vocab, ends)
        total = sum(min(len(text.prompt), PROMPT_TOKENS) + len(text.answer) for text in texts)
        data, layers = self._folder.directory.data, self._target.recorded_layers
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
        directory, machine = self._folder.directory, (self._workers, training_dtype())
        before = self._parent.provenance.manifests
        about = {
            "source": "learning",
            "parent": self._parent.label,
            "manifests": [key, *before],
            "serves": self._serves,
        }
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

    def _evaluate(self) -> EvaluationResult:
        """Compare the head with the one before it on what neither learnt from."""
        exported, refs = self._folder.directory.exported, Dataset(self._folder.directory.data).held_out
        folders, total = (self._parent.folder, exported), 2 * len(refs)

        def documents(first: int) -> Iterator[TrainingDocument]:
            for number, ref in enumerate(refs, first):
                self._tell("evaluation", number, total)
                yield from read([ref])

        pairs = zip(*(self._scores(folder, documents(i * len(refs))) for i, folder in enumerate(folders)), strict=True)
        by_text: dict[bool, list[tuple[DocumentScore, DocumentScore]]] = {False: [], True: []}
        for champion, candidate in pairs:
            by_text[champion.kind.startswith(_BASE_KIND)].append((champion, candidate))
        num_bytes = sum(file.stat().st_size for file in exported.rglob("*") if file.is_file())
        result = judge(
            by_text[False],
            by_text[True],
            gain=self._terms.gain,
            loss=self._terms.loss,
            megabytes=num_bytes / 1e6,
            ms=self._draft_ms(folders, next(documents(0))),
        )
        prompts = [document.tokens[: document.response_start] for ref in refs[:_CHECKED] for document in read([ref])]
        if result.passed and not self._answers_alike([prompt.tolist() for prompt in prompts]):
            return replace(result, passed=False, reason="answers with its drafts differ from those without")
        return result

    def _scores(self, folder: Path, documents: Iterator[TrainingDocument]) -> Sequence[DocumentScore]:
        head = read_head(folder, self._target)
        stored = load_levels(folder, head.config.shape.hidden)
        levels = HeadLevels(stored.to(torch.float32), head.weights.norm, head.config.shape.eps) if stored else None
        whole = output_rows(self._target.ends, torch.arange(self._target.shape.vocab)).float()
        return scores(head, levels, documents, self._target.ends_for(head.weights.target_ids), whole)

    @torch.no_grad()
    def _draft_ms(self, folders: Sequence[Path], document: TrainingDocument) -> tuple[float, float]:
        """Return the milliseconds that each of two heads takes to draft from every token of a document, at best."""
        heads = [read_head(folder, self._target) for folder in folders]
        batches = [
            lay_flat([document], self._target.ends_for(head.weights.target_ids), len(head.config.aux_layers)).flat
            for head in heads
        ]
        best = [inf, inf]
        for _ in range(_TIMED):
            for i, (head, batch) in enumerate(zip(heads, batches, strict=True)):
                started = time.perf_counter()
                list(unroll(head, batch, DEPTH))
                best[i] = min(best[i], 1e3 * (time.perf_counter() - started))
        return best[0], best[1]

    def _answers_alike(self, prompts: Sequence[list[int]]) -> bool:
        """Return whether the answers to `prompts` are the same with the head's drafts and without."""
        config = plain(self._config, max(map(len, prompts)) + _CHECKED_TOKENS)
        own = {"num_speculative_tokens": DEPTH, "max_requests": 1, "proposers": (), "draft_head": "none"}
        config = config.model_copy(update=own)
        engine = assemble(config, load_model(config))
        plainly = _answers(engine, prompts)
        swap, _ = engine.load_head(str(self._folder.directory.exported), CANDIDATE_HEAD)
        engine.send(swap)
        return _answers(engine, prompts) == plainly

    def _install(self, key: str, result: EvaluationResult) -> str:
        """Import the head under the rule's name, and keep its lineage and its weights; return its NAME@VERSION."""
        self._held.check()
        entry = self._imported(key)
        if entry is None:
            name = (
                self._rule
                if NAME.fullmatch(self._rule) and self._rule not in ("auto", "none")
                else f"rule-{self._rule}"
            )
            known = [*self._lineage.heads(), *(entry.label for entry in list_heads(self._root))]
            versions = [int(label.partition("@")[2]) for label in known if label.partition("@")[0] == name]
            entry = import_head(self._folder.directory.exported, f"{name}@{1 + max(versions, default=0)}", self._root)
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


def _texts(split: Split, base: Sequence[WrittenText]) -> Iterator[WrittenText]:
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


def _answers(engine: Engine, prompts: Sequence[list[int]]) -> list[tuple[int, ...]]:
    """Return the greedy answers to `prompts`, one after another, with all drafts verified."""
    answers = []
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=_CHECKED_TOKENS)
        always = SpeculationChoice(mode="always", proposers=(CANDIDATE_HEAD,))
        request = GenerateRequest(str(number), tuple(prompt), params, traffic_class=UNCOUNTED_CLASS, speculation=always)
        engine.send(Submit(request, time.monotonic()))
        tokens: list[int] = []
        is_over = False
        while not is_over:
            for event in engine.step():
                if isinstance(event, Tokens):
                    tokens += event.token_ids
                    is_over = event.finish_reason is not None
        answers.append(tuple(tokens))
    return answers


def _gain(evaluation: Mapping[str, object]) -> str:
    own = evaluation["own"]
    assert isinstance(own, Mapping), "a ratio, as `EvaluationResult` has it"
    return f"{own['estimate'] - 1:+.1%} tokens a pass on later examples, at least {own['lower'] - 1:+.1%}"
