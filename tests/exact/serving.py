"""What the equality tests share: an engine over the table model with the real verification, and flawed oracles."""

from collections.abc import Sequence

from prolepsis.core.events import Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.verification import Verification
from tests.fakes import EOS, VOCAB, EngineSetup, build, drain, outputs, submit, terminals


def setup_of(**changes: object) -> EngineSetup:
    found = EngineSetup(**changes)  # type: ignore[arg-type]
    found.verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=found.max_model_len)
    return found


def serve(setup: EngineSetup, plan: SpecPlan, *sources: GenerateRequest) -> dict[tuple[str, int], list[int]]:
    engine = build(setup)
    engine.send(ApplyPlan(plan))
    submit(engine, *sources)
    events = drain(engine)
    assert all(isinstance(end, Finished) for end in terminals(events).values())
    return outputs(events)


def flawed(kind: str, right: Sequence[int], limit: int) -> Draft | None:
    """Return a draft made of the tokens to come: right, wrong from the third token on, or in branches."""
    wrong = [(token + 1) % VOCAB for token in right]
    if kind == "right" or len(right) < 3 or limit < 6:
        return chain(tuple(right), "scripted") if right else None
    if kind == "wrong":
        return chain((*right[:2], *wrong[2:]), "scripted")
    tokens = (wrong[0], wrong[1], right[0], wrong[1], right[1], right[2])
    return Draft(tokens, (-1, 0, -1, 2, 2, 4), "scripted")
