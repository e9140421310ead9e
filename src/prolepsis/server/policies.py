"""The policy in use while serving: looked at for changes, asked by admission."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import structlog

from prolepsis.control.check import Known, check
from prolepsis.control.facts import RequestFacts
from prolepsis.control.policy import DEFAULT_RULE, Policy
from prolepsis.control.policy_file import PolicyFile
from prolepsis.control.rollouts.live import Pin
from prolepsis.control.terms import Terms
from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.server.acts import Acts
from prolepsis.server.caller import ROLES
from prolepsis.server.door.tiers import TIERS
from prolepsis.server.request_facts import GENERATION_ROUTES
from prolepsis.server.rollouts import Rollouts

LOOK_EVERY_S = 1.0
"""How often the file is looked at for changes, at most."""
KNOWN = Known(proposers=PROPOSER_NAMES, tier=tuple(TIERS), roles=ROLES, route=GENERATION_ROUTES)
"""Names that exist on every server."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the policy says of one request."""

    rule: str
    terms: Terms
    policy_version: str
    pin: Pin | None = None
    """What the rule's rollout gives the request; None where the rule is not rolled out."""


class Policies:
    """Asks the policy file; belongs to one event loop."""

    def __init__(
        self,
        file: PolicyFile,
        loaded: Collection[str],
        rollouts: Rollouts,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        acts: Acts | None = None,
    ) -> None:
        """`loaded`: proposers of the engine; the log says where a rule names none of them. `acts`: the audit log."""
        self.now = now
        self.rollouts = rollouts
        """Of the policy in use."""
        self._file = file
        self._loaded = loaded
        self._clock = clock
        self._looked = clock()
        self._acts = acts or Acts(None)
        self._tell("loaded", None)

    @property
    def version(self) -> str:
        """Of the policy in use."""
        return self._file.policy.full_version

    def ruling(self, facts: RequestFacts) -> Ruling:
        """Return the terms of the first rule that matches, as the file says now or last said rightly."""
        self._look()
        policy = self._file.policy
        rule = policy.rule_for(facts)
        name, terms = (rule.name, rule.terms) if rule else (DEFAULT_RULE, policy.default_terms)
        pin = None
        if terms.rollout is not None:
            assert facts.targeting_key is not None, "requests that are served have a key"
            pin = self.rollouts.place(name, facts.targeting_key)
        return Ruling(name, terms, policy.full_version, pin)

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        before = self._file.policy
        seen = self._file.look()
        if seen.refused is not None:
            log.error("policy_not_reloaded", error=str(seen.refused), in_use=self._file.policy.full_version)
        elif seen.changed:
            self._tell("reloaded", before)

    def _tell(self, what: Literal["loaded", "reloaded"], before: Policy | None) -> None:
        policy = self._file.policy
        self.rollouts.adopt(policy)
        log.info(f"policy_{what}", file=str(self._file.path), version=policy.full_version, rules=len(policy.rules))
        self._acts.policy_changed(what, self._file.path, before, policy)
        for finding in check(policy, Known(loaded=self._loaded)):
            log.warning("policy_warning", finding=finding.in_file(str(self._file.path)))


def open_policy(path: Path) -> PolicyFile:
    """Return the policy file a server is to use; raises `ConfigError` where it holds no usable policy."""
    return PolicyFile(path, KNOWN)
