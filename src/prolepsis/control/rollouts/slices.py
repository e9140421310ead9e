"""The rules of a policy that are rolled out: each is a slice with a rollout of its own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from prolepsis.control.policy import Policy, plain_match, plain_terms
from prolepsis.control.rollouts.settings import RolloutSettings
from prolepsis.control.terms import Terms

_DIGEST_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Slice:
    """One rule, as it is rolled out."""

    rollout_id: str
    """RULE@DIGEST, of its conditions and terms and of the model: what is edited is rolled out anew, what is put back
    goes on where it stood."""
    rule: str
    settings: RolloutSettings
    starts_itself: bool


def slices_of(policy: Policy, model: str) -> Mapping[str, Slice]:
    """Return the slices of a policy without errors by the names of their rules; `model` is the one served."""
    conditions: dict[str, object] = {rule.name: plain_match(rule.match) for rule in policy.rules}
    return {
        name: Slice(
            rollout_id=f"{name}@{_digest([model, conditions.get(name), _drafting(terms)])}",
            rule=name,
            settings=terms.rollout.settings(terms.guardrails, terms.shadow_percentage),
            starts_itself=terms.rollout.gate == "automatic",
        )
        for name, terms in policy.named_terms()
        if terms.rollout is not None
    }


def _drafting(terms: Terms) -> dict[str, object]:
    """Return the terms that change how requests are served; what is kept of them changes nothing that is judged."""
    return plain_terms(replace(terms, audit=None))


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]
