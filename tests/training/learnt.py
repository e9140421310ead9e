"""A machine where a rule may learn: a tiny target, a head that drafts for it, a base text and a store of examples."""

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleItem, example_id
from prolepsis.control.store.lineage import RunTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.config import EngineConfig
from prolepsis.core.learning import Example, LearningRun
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.format import save_with_checksum
from prolepsis.engine.models.heads.registry import HeadEntry, find_head
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.training.held_run import LEASE_S, HeldRun
from prolepsis.training.job import BASE
from prolepsis.training.learning import TARGET_DIGITS, take
from prolepsis.training.settings import LearningRecipe
from prolepsis.training.target import Target, open_target
from prolepsis.training.text import WrittenText, save_texts
from tests.engine.models.random_heads import random_head
from tests.training.targets import config_of, save_target

RULE, TENANT = "acme-code", "acme"
TERMS = LearningTerms(tenants=(TENANT,), processor_s=600.0, share=1.0, gain=0.001, loss=0.5)
RECIPE = LearningRecipe(rate=3e-2, level_rate=1e-3, epochs=6.0, noise=0.0, anchors_per_step=200)
_EXAMPLES, _BASE_TEXTS, _PROMPT, _ANSWER = 82, 80, 8, 12


@dataclass(frozen=True, slots=True)
class Machine:
    folder: Path
    config: EngineConfig
    target: Target
    texts: Sequence[WrittenText]  # prompts, and the target's greedy answers

    @property
    def root(self) -> Path:
        return self.folder / "models"

    def copied(self, folder: Path) -> "Machine":
        """Return the same files elsewhere: a run leaves a head."""
        shutil.copytree(self.folder, folder)
        return _machine(folder, self.texts)


def _machine(folder: Path, texts: Sequence[WrittenText]) -> Machine:
    root = folder / "models"
    config = config_of(root / "tiny").model_copy(update={"model_dir": root})
    return Machine(folder, config, open_target(config.model, root), texts)


def make_machine(folder: Path) -> Machine:
    save_target(folder / "models" / "tiny")
    machine = _machine(folder, ())
    texts = _written(machine, _EXAMPLES + _BASE_TEXTS)
    save_head(machine, "before", texts[_EXAMPLES:])
    return replace(machine, texts=texts[:_EXAMPLES])


def save_head(machine: Machine, name: str, base: Sequence[WrittenText] = ()) -> HeadEntry:
    """Write a random head that an operator adopted."""
    config, weights = random_head(machine.target.shape)
    provenance = {"version": 1, "target_fingerprint": machine.target.identity}
    home = head_folder(machine.root) / f"{name}@1"
    home.mkdir(parents=True)
    config = replace(config, aux_layers=machine.target.aux_layers, provenance=provenance)
    save_with_checksum(home, config, weights, {"rope_type": "default", "rope_theta": 10000.0})
    HeadAliases(machine.root).set(name, "champion", 1)
    if base:
        save_texts(home / BASE, base)
    return find_head(f"{name}@1", machine.root)


def _written(machine: Machine, number: int) -> list[WrittenText]:
    """Return random prompts with the target's greedy answers."""
    model = load_model(machine.config).model
    random = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, model.info.vocab_size, (number, _PROMPT), generator=random).tolist()
    pages = [[2 * i, 2 * i + 1] for i in range(number)]
    cache = model.make_cache(2 * number)
    answers: list[list[int]] = [[] for _ in prompts]
    new, start = prompts, 0
    for _ in range(_ANSWER):
        parts = [SequenceInput(ids, start, own) for ids, own in zip(new, pages, strict=True)]
        chosen = model.forward(pack(parts), cache).argmax(-1).tolist()
        for answer, token in zip(answers, chosen, strict=True):
            answer.append(token)
        start, new = start + len(new[0]), [[token] for token in chosen]
    return [WrittenText(i, "chat", True, *text) for i, text in enumerate(zip(prompts, answers, strict=True))]


def examples_of(machine: Machine) -> list[Example]:
    """Return the texts as examples of `RULE`, of requests `request-0` and so on, one a second."""
    tokenizer = machine.target.tokenizer.fingerprint[:16]
    return [
        Example(
            example_id=example_id(f"request-{i}"),
            tokenizer=tokenizer,
            rule=RULE,
            tenant=TENANT,
            traffic_class="/v1/chat/completions/long",
            at=1000.0 + i,
            prompt=tuple(text.prompt),
            answer=tuple(text.answer),
            greedy=True,
        )
        for i, text in enumerate(machine.texts)
    ]


def store_with(examples: Iterable[Example]) -> Database:
    database = migrated_in_memory()
    items = [ExampleItem(partial(_same, each), each.tenant, each.at, lambda _: None) for each in examples]
    with database.write() as connection:
        ExampleItem.write(connection, items)
    return database


def _same(example: Example) -> Example:
    return example


def due_for(machine: Machine, terms: LearningTerms = TERMS) -> LearningRun:
    target = machine.target.identity[:TARGET_DIGITS]
    return LearningRun(rule=RULE, trigger="hand", target=target, terms=terms.model_dump(mode="json"))


def taken(machine: Machine, database: Database, terms: LearningTerms = TERMS, *, lapsed: bool = False) -> HeldRun:
    """Take the run of `RULE`, or begin one. `lapsed`: the lease of the process that had it has run out."""
    runs = RunTable(database, (lambda: time.time() + 2 * LEASE_S) if lapsed else None)
    run = take(runs, RULE, due_for(machine, terms), machine.target.identity, store=database.name)
    assert isinstance(run, LearningRun), run
    return HeldRun(RunTable(database), run)
