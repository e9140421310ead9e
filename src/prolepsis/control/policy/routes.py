"""/admin/policy: the policy in use, its versions, and another one in its place."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

from pydantic import Field

from prolepsis.control.policy.check import InvalidPolicy, Known, check, parse_policy, usable_policy
from prolepsis.control.policy.explain import Change, diff
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.policy.source import PolicyChange, SourceKind, StoredPolicy
from prolepsis.control.policy.versions import PolicyText, PolicyVersion
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import Caller, SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.intake import LargeWork
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes
from prolepsis.core.errors import InvalidParameter

_MOST = 2**31 - 1
_MOST_FINDINGS = 20


class PolicyChangeBody(Body):
    expect: Annotated[int, Field(ge=0, le=_MOST)]
    """The version that is to be replaced, as the author saw it; 0 before the first."""
    reason: Annotated[str, Field(max_length=500)] = ""


class PolicyBody(PolicyChangeBody):
    text: Annotated[str, Field(max_length=2**18)]  # YAML


class PolicyCheckBody(Body):
    text: Annotated[str, Field(max_length=2**18)]  # YAML
    against: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    """The version to compare with; null: the policy in use."""


class PolicyRollbackBody(PolicyChangeBody):
    to: Annotated[int, Field(ge=1, le=_MOST)]  # the version whose text is to be in use again, as a new version


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReply:
    """The policy in use on this server."""

    source: SourceKind  # none: there is neither, and callers decide alone
    name: str | None
    version: int | None  # in the store: 0 before the first, null if it was not read yet or a file is the source
    policy_version: str | None  # the version that requests name; null if no policy is in use
    rules: list[str]
    fault: str | None  # reason why the source's present content is not in use
    content: Mapping[str, object] | None
    """Default and rules with match and terms in full; null if no policy is in use."""


@dataclass(frozen=True, slots=True)
class PolicyVersionsReply:
    in_use: int | None  # on this server
    versions: list[PolicyVersion]  # the newest first, at most 100


@dataclass(frozen=True, slots=True)
class PolicyCheckReply:
    """Result of checking a text as the policy of this server."""

    policy_version: str | None  # null: it cannot be used
    errors: list[str]
    warnings: list[str]
    changes: list[Change]  # changes against the compared policy; none if the text cannot be used


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChangedReply(PolicyVersion):
    """A version that is in use now."""

    policy_version: str
    warnings: list[str]  # doubts about the policy that did not prevent its use


def policy_routes(policies: Policies) -> Sequence[Route]:
    """Return the routes that show and change the policy."""
    routes, large_work = Routes(), LargeWork()

    @routes.get("/admin/policy", roles=READERS, summary="The policy in use")
    async def in_use() -> PolicyReply:
        source, policy = policies.source, policies.policy
        return PolicyReply(
            source=source.kind,
            name=source.name or None,
            version=source.version if isinstance(source, StoredPolicy) else None,
            policy_version=policy.full_version if policy else None,
            rules=[rule.name for rule in policy.rules] if policy else [],
            fault=source.fault or None,
            content=policy.content() if policy else None,
        )

    @routes.get("/admin/policy/versions", roles=READERS, summary="Versions of the policy", errors=(409, 504))
    async def versions() -> PolicyVersionsReply:
        source = _stored(policies)
        return PolicyVersionsReply(source.version, await asyncio.to_thread(source.history))

    @routes.get(
        "/admin/policy/versions/{version}", roles=READERS, summary="One version with its text", errors=(409, 504)
    )
    async def version(version: str) -> PolicyText:
        source = _stored(policies)
        if not version.isdecimal() or len(version) > 9:
            message = f"version is {version[:64]!r}; allowed: a whole number"
            raise RequestRefused(message, code="unknown_version", param="version", status=404)
        try:
            return await asyncio.to_thread(source.stored, int(version))
        except InvalidParameter as error:
            raise RequestRefused(str(error), code="unknown_version", param="version", status=404) from None

    @routes.post("/admin/policy/check", roles=READERS, summary="Check and compare a text, without using it")
    async def check_text(
        body: Annotated[PolicyCheckBody, read_body(PolicyCheckBody)], caller: SignedIn
    ) -> PolicyCheckReply:
        return await large_work.off_loop(caller.tenant, partial(_checked, policies, body))

    @routes.put("/admin/policy", roles=OPERATORS, summary="Replace the policy", errors=(409, 504))
    async def apply(body: Annotated[PolicyBody, read_body(PolicyBody)], caller: SignedIn) -> PolicyChangedReply:
        source = _stored(policies)
        return await _changed(policies, lambda: source.apply(body.text, _change(caller, body)))

    @routes.post(
        "/admin/policy/rollback",
        roles=OPERATORS,
        summary="Apply the text of an earlier version as a new version",
        errors=(409, 504),
    )
    async def roll_back(
        body: Annotated[PolicyRollbackBody, read_body(PolicyRollbackBody)], caller: SignedIn
    ) -> PolicyChangedReply:
        source = _stored(policies)
        return await _changed(policies, lambda: source.roll_back(body.to, _change(caller, body)))

    return routes.all


def _change(caller: Caller, body: PolicyChangeBody) -> PolicyChange:
    return PolicyChange(caller.actor, body.reason, body.expect)


async def _changed(policies: Policies, work: Callable[[], tuple[PolicyText, Policy]]) -> PolicyChangedReply:
    """Change the policy and take it over; raises `RequestRefused` (400) with all that is wrong with it."""
    try:
        stored, policy = await asyncio.to_thread(work)
    except InvalidPolicy as error:
        named = [finding.in_file(error.name) for finding in error.findings[:_MOST_FINDINGS]]
        left = len(error.findings) - len(named)
        message = "; ".join([*named, *([f"and {left} more"] if left else [])])
        raise RequestRefused(message, code="invalid_policy", param="text") from None
    await policies.tick()
    version = {name: value for name, value in asdict(stored).items() if name != "text"}
    warnings = _warnings(policy, policies.known)
    return PolicyChangedReply(**version, policy_version=policy.full_version, warnings=warnings)


def _checked(policies: Policies, body: PolicyCheckBody) -> PolicyCheckReply:
    try:
        policy = usable_policy(body.text, "policy", policies.known)
    except InvalidPolicy as error:
        found = [finding.in_file(error.name) for finding in error.findings[:_MOST_FINDINGS]]
        return PolicyCheckReply(None, found, [], [])
    before = policies.policy
    if body.against is not None:
        before, _ = parse_policy(_stored(policies).stored(body.against).text, f"version {body.against}")
    warnings = _warnings(policy, policies.known)
    return PolicyCheckReply(policy.full_version, [], warnings, diff(before or Policy(), policy))


def _warnings(policy: Policy, known: Known) -> list[str]:
    return [finding.in_file("policy") for finding in check(policy, known) if finding.severity == "warning"]


def _stored(policies: Policies) -> StoredPolicy:
    """Return the store as source of the policy; raises `RequestRefused` (409) that names the real source instead."""
    source = policies.source
    if isinstance(source, StoredPolicy):
        return source
    message = f"the policy of this server is the file {source.name}: edit it, and it is in use within a second"
    if source.kind == "none":
        message = "this server keeps no store, so no versions of the policy; serve with --store, or with --policy FILE"
    raise RequestRefused(message, code="policy_not_in_store", status=409)
