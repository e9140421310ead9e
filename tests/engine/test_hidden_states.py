"""Who sees hidden states of which tokens, and who learns what of requests that may not draft."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import HiddenStates, Proposer, SequenceView
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.step import Engine
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, TableModel, build, draft_chain, request, run, submit

PROMPT = list(range(1, 11))
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
OFF = SpeculationChoice("off")


class CapturedModel(TableModel):
    """Its hidden states are the token ids, once for each layer asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[tuple[int, ...]] = []

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        self.captured.append(())
        return super().forward(batch, cache)

    def forward_features(self, batch: Batch, cache: KVCache, aux_layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        logits = super().forward(batch, cache)
        self.captured.append(aux_layers)
        return logits, batch.token_ids[:, None].repeat(1, len(aux_layers)).to(torch.bfloat16)


@dataclass
class Recorder:
    """Wants to see everything."""

    aux_layers: tuple[int, ...] = (1, 2)
    seen: dict[str, list[int]] = field(default_factory=dict)

    def take(self, shown: Sequence[HiddenStates]) -> None:
        for part in shown:
            assert part.features[:, 0].tolist() == [float(token) for token in part.tokens]
            assert part.features.shape[1] == len(self.aux_layers)
            self.seen.setdefault(part.sequence.key, []).extend(part.tokens)


@dataclass
class Drafter(Recorder, Proposer):
    """A proposer that drafts from hidden states."""

    name: str = "scripted"
    aux_layers: tuple[int, ...] = (5,)
    missed: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        raise AssertionError("it only takes hidden states")

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:
        self.missed.setdefault(sequence.key, []).append((start, end))

    def forget(self, sequence: SequenceView) -> None:
        self.forgotten.append(sequence.key)


def engine_with(*consumers: Recorder, proposer: Scripted | None = None) -> tuple[Engine, CapturedModel]:
    proposer = proposer or Scripted(lambda sequence, limit: draft_chain(sequence, min(limit, 3), wrong_from=2))
    model = CapturedModel()
    engine = build(EngineSetup(proposers=[proposer], consumers=consumers, model=model))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=3)))
    return engine, model


def asked(request_id: str, choice: SpeculationChoice) -> GenerateRequest:
    return replace(request(request_id, PROMPT, PARAMS), speculation=choice)


def test_a_proposer_sees_prompts_and_only_where_it_may_draft_what_follows() -> None:
    drafter = Drafter()
    engine, _ = engine_with(drafter)
    run(
        engine, asked("on", SpeculationChoice()), asked("off", OFF), asked("other", SpeculationChoice(proposers=("x",)))
    )
    assert drafter.seen["off/0"] == drafter.seen["other/0"] == PROMPT
    assert drafter.seen["on/0"][: len(PROMPT)] == PROMPT
    assert len(drafter.seen["on/0"]) > len(PROMPT) + 6
    assert drafter.missed["off/0"] == drafter.missed["other/0"] == [(i, i + 1) for i in range(10, 21)]
    assert "on/0" not in drafter.missed


def test_a_pass_captures_hidden_states_only_for_a_consumer_that_takes_some() -> None:
    engine, model = engine_with(Drafter())
    run(engine, asked("off", OFF))
    assert model.captured == [(5,)] + 11 * [()]
    engine, model = engine_with(Drafter(), Recorder())
    run(engine, asked("off", OFF))
    assert model.captured == [(5, 1, 2)] + 11 * [(1, 2)]


def test_a_proposer_sees_nothing_of_sequences_that_it_does_not_serve() -> None:
    class Reserved(Drafter):
        def serves(self, sequence: SequenceView) -> bool:
            return sequence.tenant == "acme"

    drafter = Reserved()
    engine, model = engine_with(drafter)
    for tenant in ("other", "acme"):
        scopes = frozenset({kill_scope("tenant", tenant)})
        run(engine, replace(asked(tenant, SpeculationChoice()), kill_scopes=scopes))
        if tenant == "other":
            assert set(model.captured) == {()}, "its passes take no longer either"
    assert drafter.seen.keys() == {"acme/0"}


def test_consumers_that_do_not_draft_get_all_hidden_states() -> None:
    drafter, recorder = Drafter(), Recorder()
    engine, _ = engine_with(drafter, recorder)
    run(engine, asked("off", OFF), asked("on", SpeculationChoice()))
    assert {key: len(seen) for key, seen in recorder.seen.items()} == {"off/0": 21, "on/0": 21}
    assert len(drafter.seen["off/0"]) == 10


def test_a_plan_that_stops_all_drafts_hides_what_follows_until_it_ends() -> None:
    drafter = Drafter()
    engine, _ = engine_with(drafter)
    submit(engine, asked("on", SpeculationChoice()))
    engine.step()
    engine.send(ApplyPlan(SpecPlan(num_speculative_tokens=0)))
    engine.step()
    assert drafter.missed == {"on/0": [(10, 11)]}
    engine.send(ApplyPlan(SpecPlan(fixed_depth=3)))
    engine.step()
    assert drafter.missed == {"on/0": [(10, 11)]}
    assert len(drafter.seen["on/0"]) > 10


def test_proposers_learn_at_the_end_from_sequences_that_may_not_draft() -> None:
    proposer = Scripted(lambda sequence, limit: None)
    engine, _ = engine_with(proposer=proposer)
    run(engine, asked("off", OFF))
    assert proposer.committed == [("off/0", 22)]
    assert proposer.forgotten == ["off/0"]
    submit(engine, asked("early", OFF), asked("late", OFF))
    engine.send(Abort("late"))
    engine.step()
    engine.send(Abort("early"))
    engine.step()
    assert proposer.committed[1:] == [("early/0", 11)], "nothing of one that emitted nothing"


def test_proposers_are_called_for_every_sequence_that_ended() -> None:
    drafter = Drafter()
    engine, _ = engine_with(drafter)
    long = replace(request("long", list(range(1, 20)) * 8, PARAMS))
    submit(engine, long)
    engine.step()
    engine.send(Abort("long"))
    engine.step()
    assert drafter.forgotten == ["long/0"]


def test_a_model_whose_passes_differ_captures_in_all_of_them() -> None:
    drafter = Drafter()
    engine, model = engine_with(drafter)
    engine.hidden_states = HiddenStateRouter([drafter], always_capture=True)
    run(engine, asked("off", OFF))
    assert model.captured == 12 * [(5,)]
    assert drafter.seen["off/0"] == PROMPT


def test_tokens_emitted_while_drafting_was_off_are_passed_on_before_the_first_draft() -> None:
    proposer = Scripted(lambda sequence, limit: None)
    engine, _ = engine_with(proposer=proposer)
    submit(engine, asked("on", SpeculationChoice()))
    engine.step()
    engine.send(ApplyPlan(SpecPlan(num_speculative_tokens=0)))
    engine.step()
    engine.step()
    assert proposer.committed == [("on/0", 11)]
    engine.send(ApplyPlan(SpecPlan(fixed_depth=3)))
    engine.step()
    assert proposer.committed == [("on/0", 11), ("on/0", 2), ("on/0", 1)]
