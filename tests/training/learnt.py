"""A machine where a rule may learn: a tiny target, a head that drafts for it, a base text, and a store with examples."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from prolepsis.control.learning.machine import Due
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleItem
from prolepsis.control.store.lineage import RunTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.config import EngineConfig
from prolepsis.core.learning import Example, LearningRun
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.format import save_with_checksum
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import FeatureModel, SequenceInput, pack
from prolepsis.training.held_run import HeldRun
from prolepsis.training.job import BASE, Progress, learn
from prolepsis.training.learning import TARGET_DIGITS, take
from prolepsis.training.settings import LearningRecipe
from prolepsis.training.target import Target, open_target
from prolepsis.training.text import WrittenText, numbered, save_texts
from tests.engine.models.random_heads import random_head
from tests.training.targets import config_of, save_target

RULE, TENANT = "acme-code", "acme"
TERMS = LearningTerms(tenants=(TENANT,), processor_s=600.0, share=1.0, gain=0.01)
RECIPE = LearningRecipe(rate=1e-2, epochs=4.0, anchors_per_step=200)
NUM_EXAMPLES, NUM_BASE, PROMPT, ANSWER = 82, 60, 8, 12


@dataclass(frozen=True, slots=True)
class Machine:
    """The files; a test copies them, as a run leaves a head."""

    config: EngineConfig
    target: Target
    texts: Sequence[WrittenText]  # prompts, and the target's greedy answers


def make_machine(folder: Path) -> Machine:
    config = config_of(save_target(folder / "models" / "tiny")).model_copy(update={"model_dir": folder / "models"})
    target = open_target(config.model, config.model_dir)
    texts = _written(config, NUM_EXAMPLES + NUM_BASE)
    head, weights = random_head(target.shape)
    provenance = {"version": 1, "target_fingerprint": target.identity}
    home = head_folder(config.model_dir) / "before@1"
    home.mkdir(parents=True)
    config_of_head = replace(head, aux_layers=target.aux_layers, provenance=provenance)
    save_with_checksum(home, config_of_head, weights, {"rope_type": "default", "rope_theta": 10000.0})
    HeadAliases(config.model_dir).set("before", "champion", 1)
    save_texts(home / BASE, texts[NUM_EXAMPLES:])
    return Machine(config, target, texts[:NUM_EXAMPLES])


def _written(config: EngineConfig, number: int) -> list[WrittenText]:
    """Return random prompts with the target's greedy answers."""
    model = load_model(config).model
    random = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, model.info.vocab_size, (number, PROMPT), generator=random).tolist()
    pages = [[2 * i, 2 * i + 1] for i in range(number)]
    cache = model.make_cache(2 * number)
    answers: list[list[int]] = [[] for _ in prompts]
    new, start = prompts, 0
    for _ in range(ANSWER):
        parts = [SequenceInput(ids, start, own) for ids, own in zip(new, pages, strict=True)]
        ids = model.forward(pack(parts), cache).argmax(-1).tolist()
        for answer, token in zip(answers, ids, strict=True):
            answer.append(token)
        start, new = start + len(new[0]), [[token] for token in ids]
    return [WrittenText(numbered(p, i), "chat", True, p, a) for i, (p, a) in enumerate(zip(prompts, answers))]


def examples_of(machine: Machine, tenant: str = TENANT) -> list[Example]:
    tokenizer = machine.target.tokenizer.fingerprint[:16]
    return [
        Example(
            example_id=f"{i:032x}",
            tokenizer=tokenizer,
            rule=RULE,
            tenant=tenant,
            traffic_class="chat/long",
            at=1000.0 + i,
            prompt=tuple(text.prompt),
            answer=tuple(text.answer),
            greedy=True,
        )
        for i, text in enumerate(machine.texts)
    ]


def keep(database: Database, examples: Sequence[Example]) -> None:
    with database.write() as connection:
        items = [ExampleItem(lambda example=example: example, example.tenant, example.at, lambda _: None) for example in examples]
        for item in items:
            item.prepare()
        ExampleItem.write(connection, items)
