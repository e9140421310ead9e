"""A rule's terms while a head that it learnt is tried, and once one of them was promoted. Pure."""

from prolepsis.control.policy.model import Terms
from prolepsis.control.policy.rollout_terms import AgainstTerms, GuardrailTerms, TrialTerms
from prolepsis.core.config import (
    CANDIDATE_HEAD,
    DAY_S,
    DRAFT_HEAD,
    HEAD_PROPOSERS,
    LEARNT_HEAD,
    PROPOSER_NAMES,
    HeadProposerName,
)

HOLDOUT = 5.0
"""Percent of the requests that draft with the champion to the end of a trial, for comparison."""
_SHADOW = 5.0  # percent of the requests that draft with the candidate for comparison, before it drafts for any


def with_trial(terms: Terms, head: str, champion: HeadProposerName, *, shadow_limit: float) -> Terms:
    """Return the terms by which the candidate `head` (NAME@VERSION) is tried against the champion.

    `champion`: the slot that the champion drafts in; with `draft_head` the control has the rule's own proposers.
    `shadow_limit`: the acceptance rate, in (0, 1), that the candidate alone has to be above in the shadow stage.
    """
    assert terms.learning is not None, "a rule that learns"
    control = terms.proposers if champion == DRAFT_HEAD else _drafting_with(terms, champion)
    rollout = TrialTerms(
        trial=head,
        stages=terms.learning.stages,
        holdout=HOLDOUT,
        gate="automatic",
        on_inconclusive="rollback",
        max_stage_s=7 * DAY_S,
        assign_by=terms.rollout.assign_by if terms.rollout is not None else "request",
        against=AgainstTerms(proposers=control),
    )
    guardrails = (
        GuardrailTerms(name="gain", metric="acceptance_length", gain=terms.learning.gain),
        GuardrailTerms(name="time", metric="latency_per_token_p50_ms", margin=0.1),
        GuardrailTerms(name="errors", metric="error_rate", margin=0.02),
        GuardrailTerms(name="alone", metric="acceptance_rate", limit=shadow_limit),
    )
    changes = {"shadow_percentage": _SHADOW, "guardrails": guardrails, "rollout": rollout}
    return terms.model_copy(update={"proposers": _drafting_with(terms, CANDIDATE_HEAD), **changes})


def with_champion(terms: Terms) -> Terms:
    """Return the terms of a rule whose promoted head drafts in place of its own."""
    return terms.model_copy(update={"proposers": _drafting_with(terms, LEARNT_HEAD)})


def _drafting_with(terms: Terms, head: HeadProposerName) -> tuple[str, ...]:
    """Return the rule's proposers with `head` as the only draft head."""
    own = PROPOSER_NAMES if terms.proposers is None else terms.proposers
    return head, *(name for name in own if name not in HEAD_PROPOSERS)
