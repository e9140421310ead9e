"""A run of learning: what it leaves, where it goes on, and what ends it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from prolepsis.control.learning import machine as state_machine
from prolepsis.control.store.database import Database
from prolepsis.control.store.lineage import LineageTable, RunTable, forget
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.files import data_directory, sha256_of
from prolepsis.core.learning import HeadLineage, run_folders, tenant_digest
from prolepsis.engine.models.heads.aliases import HeadAliases
from prolepsis.engine.models.heads.exchange import archive_of, import_archive, remove_head
from prolepsis.engine.models.heads.format import load_head
from prolepsis.engine.models.heads.levels import load_levels, save_levels
from prolepsis.engine.models.heads.registry import find_head, list_heads
from prolepsis.training.data import HELD_OUT_EVERY, shards_of
from prolepsis.training.job import BASE, STEPS, learn, texts_of
from prolepsis.training.levels import initial_levels
from prolepsis.training.report import TrainingOutcome
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import LevelSettings
from prolepsis.training.text import WrittenText, read_texts
from prolepsis.training.training import HeadTraining
from tests.training.learnt import (
    RECIPE,
    RULE,
    TENANT,
    TERMS,
    Machine,
    examples_of,
    make_machine,
    save_head,
    store_with,
    taken,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("machine") / "shared")


@pytest.fixture
def machine(shared: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path / "data"))
    return shared.copied(tmp_path / "machine")


class Killed(BaseException):
    """A process that is gone: nothing of its own runs after it."""


class MortalDatabase:
    """A database whose process is killed before its write number `last`."""

    def __init__(self, database: Database, last: int) -> None:
        self._database, self._left = database, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        if not self._left:
            raise Killed
        self._left -= 1
        with self._database.write() as connection:
            yield connection


def _at(step: str, act: Callable[[], None]) -> Callable[[str, int, int, str], None]:
    """Return what acts once, when a step has begun."""
    left = [act]

    def say(name: str, done: int, total: int, status: str) -> None:
        if name == step and done and left:
            left.pop()()

    return say


def _die() -> None:
    raise Killed


def _quiet(*_: object) -> None:
    """Say nothing."""


def _drop(_: object) -> None:
    """Take what a callback returns."""


def test_a_run_leaves_a_candidate_with_its_lineage_and_no_text(machine: Machine) -> None:
    database, said = store_with(examples_of(machine)), list[tuple[str, int, int, str]]()
    ended = learn(machine.config, database, taken(machine, database), say=lambda *at: said.append(at), recipe=RECIPE)
    assert (ended.phase, ended.outcome, ended.head) == ("trial", None, f"{RULE}@1")
    assert "tokens a pass on later examples, at least +" in ended.reason
    assert ended == RunTable(database).read()
    [(key, manifest)] = LineageTable(database).datasets().items()
    assert (manifest.target, manifest.rule) == (machine.target.identity, RULE)
    assert {name: len(ids) for name, ids in manifest.examples.items()} == {tenant_digest(TENANT): 82}
    [(label, lineage)] = LineageTable(database).heads().items()
    archive = LineageTable(database).weights(label)
    assert archive is not None
    entry = import_archive(archive, label, machine.root)
    assert (entry.provenance.parent, entry.provenance.manifests) == ("before@1", (key,))
    assert entry.provenance.serves == (tenant_digest(TENANT),)
    assert (lineage.sha256, lineage.manifests) == (entry.provenance.sha256, (key,))
    assert lineage.evaluation["passed"]
    before, after = (load_head(find_head(name, machine.root).folder)[1] for name in ("before@1", label))
    assert len(before.d2t) == len(after.d2t)
    answers = {token for text in machine.texts[42:] for token in text.answer}
    assert len(answers & {*before.target_ids.tolist()}) < len(answers & {*after.target_ids.tolist()})
    covered = lineage.evaluation["covered"]
    assert isinstance(covered, list)
    assert f"its vocabulary has {covered[1]:.1%} of their tokens, {covered[0]:.1%} before" in ended.reason
    report = Path(ended.report.partition(":")[2])
    assert ended.reason in (report / "report.md").read_text()
    assert len([*report.glob("*.png")]) == 5
    assert not [*run_folders(database.name).iterdir()]
    assert [name for name in STEPS if name in {name for name, *_ in said}] == ["reading", "training", "evaluation"]


def test_a_run_that_is_killed_anywhere_goes_on_and_makes_one_head(machine: Machine) -> None:
    database = store_with(examples_of(machine))
    held, keys, last = taken(machine, database), set[str](), 0
    for step in ("reading", "training", "evaluation"):
        with pytest.raises(Killed):
            learn(machine.config, database, held, say=_at(step, _die), recipe=RECIPE)
        held = taken(machine, database, lapsed=True)
        keys |= {*LineageTable(database).datasets()}
    while RunTable(database).read().phase == "training":
        mortal, last = MortalDatabase(database, last), last + 1
        try:
            learn(machine.config, mortal, held, say=_quiet, recipe=RECIPE)  # type: ignore[arg-type]
        except Killed:
            held = taken(machine, database, lapsed=True)
    assert last > 5, "it writes its data set, head, lineage and itself"
    run = RunTable(database).read()
    assert (run.phase, run.head) == ("trial", f"{RULE}@1")
    assert [*LineageTable(database).heads()] == [run.head]
    assert LineageTable(database).weights(run.head) is not None
    assert len(keys) == 1


def test_examples_that_are_forgotten_meanwhile_leave_no_head(machine: Machine) -> None:
    database = store_with(examples_of(machine))
    say = _at("evaluation", lambda: _drop(forget(database, tenant=TENANT)))
    ended = learn(machine.config, database, taken(machine, database), say=say, recipe=RECIPE)
    assert (ended.phase, ended.outcome) == ("ended", "forgotten")
    [lineage] = LineageTable(database).heads().values()
    assert ended.reason == lineage.retired != ""
    assert LineageTable(database).weights(f"{RULE}@1") is None
    assert not [entry for entry in list_heads(machine.root) if entry.is_learnt]
    assert not [*run_folders(database.name).iterdir()]


def test_a_run_that_goes_on_after_forgetting_begins_with_what_is_left(machine: Machine) -> None:
    database = store_with(examples_of(machine))
    kept = list[set[tuple[int, ...]]]()
    for lapsed in (False, True):
        held = taken(machine, database, lapsed=lapsed)
        with pytest.raises(Killed):
            learn(machine.config, database, held, say=_at("training", _die), recipe=RECIPE)
        [folder] = run_folders(database.name).iterdir()
        lines = [json.loads(line) for line in (folder / "text.jsonl").read_text().splitlines()]
        shards = shards_of(folder / "data")
        in_shards = {tuple(shard.response(i).tolist()) for shard in shards for i in range(len(shard))}
        kept.append(in_shards | {tuple(line["answer"]) for line in lines})
        forget(database, request_id="request-0")
    assert kept[0] - kept[1] == {tuple(machine.texts[0].answer)}
    assert len(LineageTable(database).datasets()) == 2


def _killed_in_training(machine: Machine, database: Database) -> RunDirectory:
    """Return the folder of a run that was killed after its first step."""
    with pytest.raises(Killed):
        learn(machine.config, database, taken(machine, database), say=_at("training", _die), recipe=RECIPE)
    [folder] = run_folders(database.name).iterdir()
    return RunDirectory(folder)


def test_later_examples_and_half_of_a_short_base_text_are_never_trained_on(machine: Machine) -> None:
    examples = examples_of(machine)
    directory = _killed_in_training(machine, store_with(examples))
    assert directory.root.stat().st_mode & 0o077 == 0, "for its user only"
    texts = read_texts(directory.root / "text.jsonl", machine.target.shape.vocab, ())
    by_tokens = {tuple(text.tokens): text.number % HELD_OUT_EVERY == 0 for text in texts}
    held_out = [by_tokens[example.prompt + example.answer] for example in examples]
    assert held_out == [False] * 42 + [True] * 40
    base = [text for text in texts if text.kind == "base: chat"]
    assert [text.number % HELD_OUT_EVERY == 0 for text in base] == [True] * 40 + [False] * 40


@pytest.mark.parametrize(("number", "num_held_out"), [(400, 120), (240, 120), (239, 119), (100, 50)])
def test_base_text_is_held_out_where_no_head_learnt_and_else_no_more_than_the_examples(
    machine: Machine, number: int, num_held_out: int
) -> None:
    examples = examples_of(machine)[:5]
    base = [WrittenText(number, "chat", True, [number], [1] * 19) for number in range(number)]
    texts = [*texts_of(examples, examples[3].at, base)]
    assert [text.number % HELD_OUT_EVERY == 0 for text in texts[:5]] == [False] * 3 + [True] * 2
    held_out = [text.tokens[0] for text in texts[5:] if text.number % HELD_OUT_EVERY == 0]
    never = [*range(0, number, HELD_OUT_EVERY)]
    others = [each for each in range(number) if each % HELD_OUT_EVERY]
    num_others = num_held_out - len(never)
    assert held_out == never + others[:num_others]
    trained = [text.tokens[0] for text in texts[5:] if text.number % HELD_OUT_EVERY]
    assert trained == others[num_others : num_others + 3], "60 tokens, as of three examples"


class DyingTraining(HeadTraining):
    def export(self, outcome: TrainingOutcome) -> None:
        raise Killed


def test_a_training_that_is_killed_as_it_exports_exports_again(machine: Machine) -> None:
    directory = _killed_in_training(machine, store_with(examples_of(machine)))
    parent = find_head("before@1", machine.root).folder
    recipe = replace(RECIPE, epochs=1.0).of_head(parent, {}, 1, "float32")
    with pytest.raises(Killed):
        list(DyingTraining(directory, machine.target, recipe).steps())
    list(HeadTraining(directory, machine.target, recipe).steps())
    assert find_head(str(directory.exported)).target_fingerprint == machine.target.identity


def test_a_spent_budget_keeps_the_checkpoint_and_a_hand_goes_on(machine: Machine) -> None:
    database = store_with(examples_of(machine))
    held = taken(machine, database)

    def spend() -> None:
        held.terms = held.terms.model_copy(update={"processor_s": 1e-9})

    ended = learn(machine.config, database, held, say=_at("training", spend), recipe=RECIPE)
    assert (ended.phase, ended.outcome) == ("ended", "stopped")
    assert ended.reason.endswith(f"s of processor time are spent; `prolepsis learning run {RULE}` goes on")
    said = list[tuple[str, int, int]]()

    def say(name: str, done: int, total: int, status: str) -> None:
        said.append((name, done, total))
        if name == "training":
            raise Killed

    again = taken(machine, database)
    assert (again.run.run_id, again.run.processor_s) == (ended.run_id, 0.0)
    with pytest.raises(Killed):
        learn(machine.config, database, again, say=say, recipe=RECIPE)
    [(name, done, total), (training, *_)] = said
    assert (name, done, training) == ("reading", total, "training"), "all was read before"


def test_a_head_that_does_not_gain_enough_is_not_imported(machine: Machine) -> None:
    parent = find_head("before@1", machine.root).folder
    count, width, hidden = 2, 32, machine.target.shape.hidden
    save_levels(parent, initial_levels(LevelSettings(count=count, width=width), hidden), {})
    database = store_with(examples_of(machine))
    sizes = list[tuple[int, ...]]()

    def look() -> None:
        [exported] = run_folders(database.name).glob("*/head")
        levels = load_levels(exported, hidden)
        assert levels is not None
        sizes.append((levels.count, levels.width))

    held = taken(machine, database, TERMS.model_copy(update={"gain": 0.9}))
    ended = learn(machine.config, database, held, say=_at("evaluation", look), recipe=RECIPE)
    assert (ended.phase, ended.outcome, ended.head) == ("ended", "rejected", "")
    assert ended.reason.startswith("own text: ")
    assert sizes == [(count, width)], "levels begin with those of the head before"
    assert not LineageTable(database).heads()
    assert not [entry for entry in list_heads(machine.root) if entry.is_learnt]
    assert not [*run_folders(database.name).iterdir()]


def test_a_target_without_a_base_text_writes_one_once(machine: Machine) -> None:
    (find_head("before@1", machine.root).folder / BASE).unlink()
    database, said = store_with(examples_of(machine)), list[str]()

    def say(name: str, done: int, total: int, status: str) -> None:
        said.append(name)
        if name == "reading":
            raise Killed

    for _ in range(2):
        held = taken(machine, database, lapsed=bool(said))
        with pytest.raises(Killed):
            learn(machine.config, database, held, say=say, recipe=replace(RECIPE, base_tokens=300))
    assert said.index("reading") == len(said) - 2 > 0, "the second time there is one"
    [manifest] = LineageTable(database).datasets().values()
    [file] = data_directory().glob(f"learning/base-*/{BASE}")
    assert manifest.base == sha256_of(file)


@pytest.mark.parametrize(
    ("lineage", "parent"),
    [
        ({}, f"{RULE}@1"),
        ({"serves": ()}, f"{RULE}@1"),
        ({"promoted_at": 0.0}, "before@1"),
        ({"retired": "by hand"}, "before@1"),
        ({"touched": "a tenant was forgotten"}, "before@1"),
        ({"serves": (tenant_digest("other"),)}, "before@1"),
        ({"rule": "another"}, "before@1"),
    ],
)
def test_a_run_begins_from_the_champion_that_may_be_learnt_from(
    machine: Machine, lineage: dict[str, Any], parent: str
) -> None:
    database, champion = store_with(examples_of(machine)), save_head(machine, RULE)
    HeadAliases(machine.root).set(RULE, "champion", None)
    LineageTable(database).put_weights(champion.label, archive_of(champion))
    remove_head(champion.label, machine.root)
    head = HeadLineage(rule=RULE, parent="", manifests=(), serves=(tenant_digest(TENANT),), sha256="", made_at=1.0)
    LineageTable(database).add_head(champion.label, replace(replace(head, promoted_at=2.0), **lineage))
    with pytest.raises(Killed):
        learn(machine.config, database, taken(machine, database), say=_at("reading", _die), recipe=RECIPE)
    [began] = run_folders(database.name).glob("*/began.json")
    assert json.loads(began.read_text())["parent"] == parent


def test_a_target_without_a_head_ends_the_run(machine: Machine) -> None:
    HeadAliases(machine.root).set("before", "champion", None)
    database = store_with(examples_of(machine))
    with pytest.raises(ConfigError, match="no draft head to go on from; `prolepsis train head`"):
        learn(machine.config, database, taken(machine, database), say=_quiet, recipe=RECIPE)
    run = RunTable(database).read()
    assert (run.phase, run.outcome) == ("ended", "failed")
    assert "no draft head to go on from" in run.reason


def test_too_few_examples_end_the_run(machine: Machine) -> None:
    database = store_with(examples_of(machine)[:79])
    with pytest.raises(ConfigError, match="there are 79 of 80 different examples"):
        learn(machine.config, database, taken(machine, database), say=_quiet)
    run = RunTable(database).read()
    assert (run.outcome, run.reason) == ("failed", "there are 79 of 80 different examples")


def test_a_run_that_is_stopped_elsewhere_ends_here(machine: Machine) -> None:
    database = store_with(examples_of(machine))
    held, runs = taken(machine, database), RunTable(database)

    def stop() -> None:
        by_ann = state_machine.Ended("stopped", "by ann")
        assert runs.swap(state_machine.step(runs.read(), by_ann, runs.now())[0])

    ended = learn(machine.config, database, held, say=_at("reading", stop), recipe=RECIPE)
    assert (ended.phase, ended.outcome) == ("ended", "stopped")
    assert not [*run_folders(database.name).iterdir()]


def test_a_store_that_is_away_leaves_the_run_as_a_kill_does(machine: Machine) -> None:
    database = store_with(examples_of(machine))
    held = taken(machine, database)
    database.failing = {"write": "gone"}
    with pytest.raises(StoreUnavailable):
        learn(machine.config, database, held, say=_quiet, recipe=RECIPE)
    database.failing = {}
    assert RunTable(database).read() == held.run
