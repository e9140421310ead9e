"""Whatever is submitted, aborted or squeezed for memory: one terminal event each, and the reference's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.events import Aborted, Event, Finished
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.rows import Row
from prolepsis.engine.sampling.noise import noise_key
from tests.fake_proposer import Scripted
from tests.fakes import VOCAB, EngineSetup, build, draft_chain, draft_tree, drain, outputs, reference, submit, terminals

MAX_LEN = 128


@dataclass(frozen=True)
class Arrival:
    """A request, the step it comes before, and the step it is aborted before, if any."""

    source: GenerateRequest
    step: int
    abort: int | None


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    found = []
    for i in range(draw(st.integers(1, 8))):
        length, kind = draw(st.integers(1, 100)), draw(st.integers(0, 1))
        params = SamplingParams(
            temperature=draw(st.sampled_from([0.0, 1.0])),
            max_tokens=draw(st.integers(1, 60)),
            seed=draw(st.integers(0, 3)),
            ignore_eos=draw(st.booleans()),
            stop=draw(st.sampled_from([(), (), ("abc", "mn")])),
        )
        source = GenerateRequest(
            str(i),
            tuple((kind + j) % VOCAB for j in range(length)),
            params,
            n=draw(st.sampled_from([1, 1, 1, 3])),
            priority=draw(st.integers(0, 1)),
            cache_salt=draw(st.sampled_from(["", "t"])),
            speculation=SpeculationChoice("auto" if draw(st.booleans()) else "off"),
        )
        abort = draw(st.one_of(st.none(), st.none(), st.integers(0, 40)))
        found.append(Arrival(source, draw(st.integers(0, 25)), abort))
    return found


def mixed_drafts(sequence: SequenceView, limit: int) -> Draft | None:
    """Right, wrong, branching, absent and impossible, in turn."""
    match len(sequence.tokens) % 5:
        case 0:
            return draft_chain(sequence, limit, wrong_from=limit)
        case 1:
            return draft_chain(sequence, limit, wrong_from=1)
        case 2:
            return draft_tree(sequence, limit)
        case 3:
            return None
        case _:
            raise ValueError("a proposer may fail")


def serve(setup: EngineSetup, plan: SpecPlan, asked: Sequence[Arrival]) -> list[Event]:
    engine = build(setup)
    engine.send(ApplyPlan(plan))
    events: list[Event] = []
    for step in range(60):
        submit(engine, *(a.source for a in asked if a.step == step))
        for a in asked:
            if a.abort == step:
                engine.send(Abort(a.source.request_id))
        events += engine.step()
        engine.scheduler.check()
    events += drain(engine)
    assert engine.scheduler.kv_usage == 0
    assert engine.dead is None
    return events


class Sizes(ChunkLimit):
    """Chunks of any size next to rows that decode."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(1.0, flat_cost())
        self._sizes = cycle(sizes)

    def max_tokens(self, decoding: Sequence[Row], start: int, most: int, *, is_short: bool = False) -> int:
        return min(most, next(self._sizes)) if decoding or is_short else most


@st.composite
def rooms(draw: st.DrawFn) -> EngineSetup:
    return EngineSetup(
        num_pages=draw(st.integers(4, 12)),
        max_sequences=draw(st.integers(1, 6)),
        max_step_tokens=draw(st.sampled_from([16, 24, 200])),
        max_model_len=MAX_LEN,
        prefix_cache=draw(st.booleans()),
        chunks=draw(st.one_of(st.none(), st.builds(Sizes, st.lists(st.integers(1, 40), min_size=1, max_size=6)))),
        proposers=[Scripted(mixed_drafts)],
    )


@given(arrivals(), rooms(), st.sampled_from([0, 2, 7]))
def test_every_request_ends_once_with_the_reference_output(
    asked: list[Arrival], setup: EngineSetup, depth: int
) -> None:
    events = serve(setup, SpecPlan(fixed_depth=depth), asked)
    ends, texts = terminals(events), outputs(events)
    assert ends.keys() == {a.source.request_id for a in asked}
    for a in asked:
        end = ends[a.source.request_id]
        assert isinstance(end, Finished) or (isinstance(end, Aborted) and a.abort is not None)
        for i in range(a.source.n):
            text = texts.get((a.source.request_id, i), [])
            expected = reference(a.source, noise_key(a.source.params.seed, i), max_model_len=MAX_LEN)
            assert text == (expected if isinstance(end, Finished) else expected[: len(text)])
