"""Heads that learnt from the traffic of tenants: they draft for these, so that others cannot time what they wrote."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, NAMED_HEADS, EngineConfig, HeadProposerName
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.learning import tenant_digest
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.engine.build import build_engine
from prolepsis.engine.models.heads.aliases import HeadAliases
from prolepsis.engine.models.heads.exchange import export_head, import_head, rows_of
from prolepsis.engine.models.heads.format import CONFIG
from prolepsis.engine.models.heads.registry import find_head
from prolepsis.engine.models.provenance import KEY
from prolepsis.engine.step import Engine
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import HeadRecipe, Rates, TrainSettings
from prolepsis.training.synthesis import DataRequest
from prolepsis.training.target import Target, open_target
from prolepsis.training.text import record
from prolepsis.training.training import HeadTraining
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.exact.oracle import PARAMS, PROMPT, Oracle, ask, at_any_price
from tests.exact.test_head_swap import CANDIDATE, OTHER_PROMPT, check, engine_with, oracle, steps, swap
from tests.fakes import drain, outputs, submit, terminals
from tests.training.targets import config_of, save_target

SECRET_PROMPT = tuple(3 + (7 * i * i + 5 * i) % 250 for i in range(24))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
RECIPE = HeadRecipe(
    draft_vocab=96,
    training=TrainSettings(epochs=10, anchors_per_step=240, rates=Rates(1e-3), workers=1, measure_every=1000),
)


@dataclass(frozen=True)
class Learnt:
    """A head that learnt the answer of one tenant's prompt by heart, as secret@1 and as everybody@1."""

    config: EngineConfig
    root: Path
    run: RunDirectory
    target: Target
    answer: tuple[int, ...]

    def engine(self, head: str = "none", proposer: HeadProposerName = CANDIDATE_HEAD) -> Engine:
        engine = at_any_price(build_engine(self.config))
        if head != "none":
            swap(engine, head, proposer)
        return engine


def imported(exported: Path, name: str, root: Path, **provenance: Any) -> None:
    document = json.loads((exported / CONFIG).read_text())
    document[KEY] |= provenance
    (exported / CONFIG).write_text(json.dumps(document))
    import_head(exported, name, root)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Learnt:
    home = tmp_path_factory.mktemp("learnt")
    folder, root, run = save_target(home / "target"), home / "models", RunDirectory(home / "run")
    changes = {"model_dir": root, "proposers": ("prompt_lookup",), "draft_head": "none"}
    config = config_of(folder).model_copy(update=changes)
    engine = build_engine(config)
    submit(engine, GenerateRequest("plain", SECRET_PROMPT, GREEDY))
    answer = outputs(drain(engine))["plain", 0]
    lines = (json.dumps({"prompt": SECRET_PROMPT, "answer": answer, "number": i}) for i in range(40))
    (home / "text.jsonl").write_text("\n".join(lines))
    run.create(resume=False)
    target = open_target(str(folder))
    record(config, DataRequest(run.data, 10**6, target.recorded_layers), home / "text.jsonl", lambda _: None)
    list(HeadTraining(run, target, RECIPE).steps())
    imported(run.exported, "everybody", root, manifests=["9f31"])
    imported(run.exported, "secret", root, manifests=["9f31"], serves=[tenant_digest("acme")])
    return Learnt(config, root, run, target, tuple(answer))


def asked(tenant: str, traffic_class: str = "chat/standard/free/short") -> GenerateRequest:
    return GenerateRequest(
        f"{tenant}-{traffic_class}",
        SECRET_PROMPT,
        GREEDY,
        cache_salt=tenant,
        kill_scopes=frozenset({kill_scope("tenant", tenant)} if tenant else ()),
        traffic_class=traffic_class,
        records_drafts=True,
        speculation=SpeculationChoice("always", proposers=(CANDIDATE_HEAD,)),
    )


def answered(engine: Engine, learnt: Learnt, *requests: GenerateRequest) -> Sequence[RequestStats]:
    """Return the figures of requests that are served at once; their answers are those of plain decoding."""
    submit(engine, *requests)
    events = drain(engine)
    assert {tuple(text) for text in outputs(events).values()} == {learnt.answer}
    return [terminals(events)[request.request_id].stats for request in requests]


@pytest.mark.parametrize("proposer", NAMED_HEADS)
def test_what_a_tenant_wrote_is_drafted_for_it_and_for_nobody_else(learnt: Learnt, proposer: HeadProposerName) -> None:
    choice = SpeculationChoice("always", proposers=(proposer,))
    requests = [replace(asked(tenant), speculation=choice) for tenant in ("acme", "other", "")]
    own, other, nobody = answered(learnt.engine("secret", proposer), learnt, *requests)
    assert own.num_accepted > 10, "it learnt the answer by heart"
    assert own.drafts[proposer]
    [before] = answered(learnt.engine(), learnt, asked("other"))
    for stats in (other, nobody):
        assert (stats.num_drafts, stats.drafts, stats.proposers, stats.judged) == (0, {}, {}, {})
        assert stats.plain_steps == before.plain_steps, "as without the head"


def test_a_head_of_enough_tenants_drafts_for_everybody(learnt: Learnt) -> None:
    for stats in answered(learnt.engine("everybody"), learnt, asked("acme"), asked("other"), asked("")):
        assert stats.num_accepted > 10


def test_a_trial_on_the_servers_own_prompts_drafts(learnt: Learnt) -> None:
    [stats] = answered(learnt.engine("secret"), learnt, asked("", UNCOUNTED_CLASS))
    assert stats.num_drafts > 0


@pytest.mark.parametrize("alias", [None, "champion"])
def test_no_alias_and_no_swap_makes_it_the_head_of_all(learnt: Learnt, alias: str | None) -> None:
    if alias is not None:
        for name in ("secret", "everybody"):
            HeadAliases(learnt.root).set(name, alias, 1)
    engine = build_engine(learnt.config.model_copy(update={"draft_head": "auto"}))
    assert engine.info.draft_head is None
    assert "auto takes none that learnt from traffic" in engine.info.draft_head_reason
    shown = {head.label: head.auto for head in engine.installed_heads()}
    assert shown["secret@1"] == "serves 1 tenant; auto takes none that learnt from traffic"
    assert shown["everybody@1"] == "auto takes none that learnt from traffic"
    folder = str(find_head("secret", learnt.root).folder)
    for name in ("secret", "secret@1", folder, *(["secret@champion"] if alias else [])):
        with pytest.raises(ModelLoadError, match="secret@1 serves 1 of the tenants; allowed in draft_head: heads that"):
            engine.load_head(name, DRAFT_HEAD)
    with pytest.raises(ModelLoadError, match="secret@1 serves 1 of the tenants"):
        build_engine(learnt.config.model_copy(update={"draft_head": "secret"}))


def test_what_is_made_of_it_serves_the_same_tenants(learnt: Learnt, tmp_path: Path) -> None:
    secret = find_head("secret", learnt.root)
    copied = export_head(secret, tmp_path / "copied", rows=rows_of(Path(learnt.config.model)))
    run = RunDirectory(tmp_path / "run")
    copytree(learnt.run.data, run.data)
    recipe = HeadRecipe(init=copied, training=replace(RECIPE.training, epochs=1))
    list(HeadTraining(run, learnt.target, recipe).steps())
    for folder in (copied, run.exported):
        provenance = find_head(str(folder)).provenance
        assert (provenance.manifests, provenance.serves) == (("9f31",), (tenant_digest("acme"),))


def serving(head: Oracle, *tenants: str) -> Oracle:
    head._info = replace(head._info, serves=frozenset(map(tenant_digest, tenants)))
    return head


@NEEDS_KERNELS
def test_heads_of_two_tenants_follow_each_other_in_one_batch() -> None:
    """An `Oracle` raises where it reads what it should not; no other tenant's text is shown to it."""
    engine = engine_with({"a": serving(oracle("a"), "a"), "b": serving(oracle("b", (2, 0)), "b", "c")})
    texts = {"a": PROMPT, "b": OTHER_PROMPT}
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    events = engine.step()
    for round_, head in enumerate(("a", "b", "a")):
        swap(engine, head, CANDIDATE)
        for tenant, prompt in texts.items():
            for kind in PARAMS:
                names[f"{tenant}-{kind}-{round_}"] = kind, prompt
                source = ask(kind, f"{tenant}-{kind}-{round_}", prompt=prompt)
                scopes = frozenset({kill_scope("tenant", tenant)})
                choice = SpeculationChoice(proposers=(CANDIDATE_HEAD,))
                submit(engine, replace(source, cache_salt=tenant, kill_scopes=scopes, speculation=choice))
        events += steps(engine, 30)
    events += drain(engine)
    check(engine, events, names)
    accepted = {name: end.stats.num_accepted for name, end in terminals(events).items()}
    assert accepted["a-greedy-2"] > 5
    assert accepted["b-greedy-2"] == 0
