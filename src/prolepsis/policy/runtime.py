"""The policy in use, as its file has it: taken over as a whole when it is right, otherwise the last good one stays."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

import structlog

from prolepsis.api.admission.load_shedding import TIERS
from prolepsis.api.openai.facts import GENERATION_ROUTES
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.config import PROPOSER_NAMES
from prolepsis.core.ended import Assignment
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.files import LastGood, Reload
from prolepsis.core.yaml_document import read_text
from prolepsis.policy.check import NOTHING_KNOWN, Known, check, usable_policy
from prolepsis.policy.model import DEFAULT_RULE, Policy, Terms
from prolepsis.rollout.runtime import Rollouts
from prolepsis.web.caller import ROLES

log = structlog.get_logger(__name__)


class PolicyFile(LastGood[Policy]):
    """Holds the last good policy of a file."""

    def __init__(self, path: Path, known: Known = NOTHING_KNOWN) -> None:
        """Raises `ConfigError` where the file has no usable policy."""
        self._known = known
        super().__init__(path)

    @property
    def policy(self) -> Policy:
        return self.value

    @property
    def name(self) -> str:
        return str(self.path)

    def _read(self) -> str:
        return read_text(self.path, "policy")

    def _parse(self, text: str) -> Policy:
        return usable_policy(text, self.name, self._known)

    def _version(self, policy: Policy) -> str:
        return policy.full_version


LOOK_EVERY_S = 0.8
"""How often the source is looked at for changes."""
KNOWN = Known(proposers=PROPOSER_NAMES, tier=tuple(TIERS), roles=ROLES, route=GENERATION_ROUTES)
"""Names that exist on every server."""
_NO_POLICY = Policy()


class PolicySource(Protocol):
    """Where the policy is kept: a file, or the store."""

    @property
    def policy(self) -> Policy | None:
        """The last good one; None where there is none yet."""

    @property
    def name(self) -> str:
        """What people call the source."""

    @property
    def fault(self) -> str:
        """Why what is there now is not in use; empty where it is."""

    def look(self) -> Reload:
        """Take over what changed; may block, and raises nothing."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the policy says of one request."""

    rule: str
    terms: Terms
    policy_version: str
    assignment: Assignment | None = None
    """What the rule's rollout gives the request; None where the rule is not rolled out."""
    flags: tuple[FlagDecision, ...] = ()
    """What the flags said that rules ask."""


class Policies:
    """Holds the policy in use with its rollouts; both change in one step of the event loop that it belongs to."""

    def __init__(
        self,
        source: PolicySource,
        loaded: Collection[str],
        rollouts: Rollouts,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        emit: Emit = discard,
        flags: bool | None = None,
        replays: bool = True,
    ) -> None:
        """`loaded`: proposers of the engine; `flags`, `replays`: whether flags are asked, requests decoded again.

        `audit`: the audit log. The log of the server says where a rule waits in vain for what is not there.
        """
        self.now = now
        self.source = source
        self.policy: Policy | None = None
        self.rollouts = rollouts
        """Of the policy in use."""
        self.known = Known(loaded=loaded, flags=flags, replays=replays)
        """What there is on this server."""
        self._emit = emit
        self._lock = asyncio.Lock()
        if source.fault:
            log.error("policy_not_loaded", error=source.fault)
        if source.policy is not None:
            self._take("loaded")

    @property
    def version(self) -> str:
        """Of the policy in use; empty where there is none."""
        return self.policy.full_version if self.policy else ""

    @property
    def flag_names(self) -> tuple[str, ...]:
        """The flags that have to be asked of a request before its ruling."""
        return self.policy.flag_names if self.policy else ()

    def ruling(self, facts: RequestFacts, flags: tuple[FlagDecision, ...] = ()) -> Ruling | None:
        """Return the terms of the first rule that matches; None where there is no policy, and callers decide alone.

        `flags`: what those said that rules ask; one that was not asked is false.
        """
        policy = self.policy
        if policy is None:
            return None
        facts = replace(facts, flag=frozenset(one.key for one in flags if one.value)) if flags else facts
        rule = policy.rule_for(facts)
        name, terms = (rule.name, rule.terms) if rule else (DEFAULT_RULE, policy.default_terms)
        assignment = None
        if terms.rollout is not None:
            assert facts.targeting_key is not None, "requests that are served have a key"
            assignment = self.rollouts.assign(name, facts.targeting_key)
        return Ruling(name, terms, policy.full_version, assignment, flags)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # contained: if control fails, the last policy stays
                log.exception("policy_not_looked_at")
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Take over what the source has now; the last good policy stays where that cannot be used."""
        async with self._lock:
            seen = await asyncio.to_thread(self.source.look)
            if seen.refused is not None:
                in_use = self.policy.full_version if self.policy else None
                log.error("policy_not_reloaded", error=str(seen.refused), in_use=in_use)
            elif seen.changed:
                self._take("reloaded")

    def _take(self, what: Literal["loaded", "reloaded"]) -> None:
        policy, source = self.source.policy, self.source.name
        self.rollouts.adopt(policy or _NO_POLICY)
        before, self.policy = self.policy, policy
        version, rules = (policy.full_version, len(policy.rules)) if policy else (None, 0)
        log.info(f"policy_{what}", source=source, version=version, rules=rules)
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"policy.{what}",
                subject=source,
                before=before.content() if before else None,
                after=policy.content() if policy else None,
                versions={"policy": policy.full_version if policy else ""},
            )
        )
        for finding in check(policy, self.known) if policy else ():
            log.warning("policy_warning", finding=finding.in_file(source))


def open_policy(path: Path) -> PolicyFile:
    """Return the policy file a server is to use; raises `ConfigError` where it holds no usable policy."""
    return PolicyFile(path, KNOWN)
