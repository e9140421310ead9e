"""A sequence as proposers see it, with plain fields, and small builders around it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ChosenDraft, ProposerSet
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.window import StepLoad
from prolepsis.engine.text.grammar.matcher import Matcher

VOCAB = 100


@dataclass
class FakeSequence:
    tokens: list[int]
    num_prompt_tokens: int = 0
    key: str = "r0/0"
    cache_salt: str = ""
    tenant: str = ""
    traffic_class: str = ""
    prediction: tuple[int, ...] = ()
    client_draft: ClientDraft | None = None
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    noise_key: int = 0
    matcher: Matcher | None = None
    pages: list[int] = field(default_factory=list)


def accepted(draft: Draft, truth: list[int]) -> list[int]:
    """Return the nodes of `draft` that verification against `truth`, the target's tokens, would accept."""
    path: list[int] = []
    for token in truth:
        above = path[-1] if path else -1
        children = [i for i in range(len(draft.tokens)) if draft.parents[i] == above and draft.tokens[i] == token]
        if not children:
            break
        path.append(children[0])
    return path


def choose(
    proposers: ProposerSet,
    sequences: Sequence[SequenceView],
    limits: Sequence[int],
    plan: SpecPlan,
    load: StepLoad | None = None,
    *,
    allowed: Sequence[tuple[str, ...] | None] | None = None,
) -> list[ChosenDraft]:
    """Return what `proposers` choose for each sequence, with the limit and proposers of the same place."""
    names = allowed or [None] * len(sequences)
    requests = [
        DraftRequest(sequence, min(limit, plan.ceiling), name)
        for sequence, limit, name in zip(sequences, limits, names, strict=True)
    ]
    return proposers.propose(requests, plan, load)


def drafts_of(
    proposers: ProposerSet,
    sequences: Sequence[SequenceView],
    limits: Sequence[int],
    plan: SpecPlan,
    load: StepLoad | None = None,
    *,
    allowed: Sequence[tuple[str, ...] | None] | None = None,
) -> list[Draft | None]:
    """Return the drafts of `choose` alone."""
    return [choice.draft for choice in choose(proposers, sequences, limits, plan, load, allowed=allowed)]
