"""Shapes of /admin/policy."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from prolepsis.api.room import Room
from prolepsis.core.errors import InvalidParameter
from prolepsis.policy import stored_policy as policy_versions
from prolepsis.policy.check import Known, check
from prolepsis.policy.model import Policy
from prolepsis.policy.reading import InvalidPolicy
from prolepsis.policy.runtime import Policies
from prolepsis.policy.stored_policy import Change, Changed, StoredPolicy
from prolepsis.policy.versions import PolicyVersion
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import Caller, SignedIn
from prolepsis.web.errors import RequestRefused
from prolepsis.web.fields import Body, Reply
from prolepsis.web.routes import OPERATORS, READERS, Route, Routes

_MOST = 2**31 - 1


class PolicyChangeBody(Body):
    expect: Annotated[int, Field(ge=0, le=_MOST)]
    """The version that is to be replaced, as whoever decided saw it; 0 before the first."""
    reason: Annotated[str, Field(max_length=500)] = ""


class PolicyBody(PolicyChangeBody):
    text: Annotated[str, Field(max_length=2**18)]
    """YAML."""


class PolicyRollbackBody(PolicyChangeBody):
    to: Annotated[int, Field(ge=1, le=_MOST)]
    """The version whose text is to be in use again, as a new version."""


class PolicyReply(Reply):
    """What this server has in use."""

    source: Literal["file", "store", "none"]
    """none: there is neither, and callers decide alone."""
    name: str | None
    version: int | None
    """Of the store: 0 before the first, null where it was not read yet or is not the source."""
    policy_version: str | None
    """As requests name it; null where no policy is in use."""
    rules: list[str]
    fault: str | None
    """Why what the source has now is not in use."""


class PolicyVersionReply(Reply):
    version: int
    digest: str
    """SHA-256 of the text."""
    author: str
    reason: str
    created_at: float
    """Unix time."""


class PolicyVersionsReply(Reply):
    in_use: int | None
    """On this server."""
    versions: list[PolicyVersionReply]
    """The newest first, at most 100."""


class PolicyTextReply(PolicyVersionReply):
    text: str


class PolicyChangedReply(PolicyVersionReply):
    policy_version: str
    warnings: list[str]
    """What is odd about it, and did not keep it from being used."""


_MOST_FINDINGS = 20


def policy_routes(room: Room) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/policy", roles=READERS, summary="The policy in use")
    async def policy() -> PolicyReply:
        return _shown(room.policies)

    @routes.get("/admin/policy/versions", roles=READERS, summary="Versions of the policy", errors=(409, 504))
    async def versions() -> PolicyVersionsReply:
        source = _stored(room)
        found = await asyncio.to_thread(policy_versions.newest, source.database)
        return PolicyVersionsReply(in_use=source.version, versions=[_version(one) for one in found])

    @routes.get(
        "/admin/policy/versions/{version}", roles=READERS, summary="One version with its text", errors=(409, 504)
    )
    async def version(version: str) -> PolicyTextReply:
        source = _stored(room)
        if not version.isdecimal() or len(version) > 9:
            message = f"version is {version[:64]!r}; allowed: a whole number"
            raise RequestRefused(message, code="unknown_version", param="version", status=404)
        try:
            found = await asyncio.to_thread(policy_versions.version_of, source.database, int(version))
        except InvalidParameter as error:
            raise RequestRefused(str(error), code="unknown_version", param="version", status=404) from None
        return PolicyTextReply(**dict(_version(found)), text=found.text)

    @routes.put("/admin/policy", roles=OPERATORS, summary="Replace the policy", errors=(409, 504))
    async def apply(body: Annotated[PolicyBody, read_body(PolicyBody)], caller: SignedIn) -> PolicyChangedReply:
        source, change = _stored(room), _change(caller, body)
        return await _changed(room, lambda: policy_versions.apply(source.database, body.text, change))

    @routes.post(
        "/admin/policy/rollback",
        roles=OPERATORS,
        summary="Apply the text of an earlier version as a new version",
        errors=(409, 504),
    )
    async def roll_back(
        body: Annotated[PolicyRollbackBody, read_body(PolicyRollbackBody)], caller: SignedIn
    ) -> PolicyChangedReply:
        source, change = _stored(room), _change(caller, body)
        return await _changed(room, lambda: policy_versions.roll_back(source.database, body.to, change))

    return routes.all


def _change(caller: Caller, body: PolicyChangeBody) -> Change:
    return Change(caller.actor, body.reason, body.expect)


async def _changed(room: Room, work: Callable[[], Changed]) -> PolicyChangedReply:
    """Change the policy and take it over; raises `RequestRefused` (400) with all that is wrong with it."""
    try:
        stored, policy = await asyncio.to_thread(work)
    except InvalidPolicy as error:
        raise RequestRefused(_findings(error), code="invalid_policy", param="text") from None
    assert room.policies is not None, "it has the source that was changed"
    await room.policies.look()
    warnings = _warnings(policy, room.policies.known)
    return PolicyChangedReply(**dict(_version(stored)), policy_version=policy.full_version, warnings=warnings)


def _findings(error: InvalidPolicy) -> str:
    shown = [finding.in_file(error.name) for finding in error.findings[:_MOST_FINDINGS]]
    left = len(error.findings) - len(shown)
    return "; ".join([*shown, *([f"and {left} more"] if left else [])])


def _warnings(policy: Policy, known: Known) -> list[str]:
    return [finding.in_file("policy") for finding in check(policy, known) if finding.severity == "warning"]


def _shown(policies: Policies | None) -> PolicyReply:
    if policies is None:
        return PolicyReply(source="none", name=None, version=None, policy_version=None, rules=[], fault=None)
    source, policy = policies.source, policies.policy
    return PolicyReply(
        source="store" if isinstance(source, StoredPolicy) else "file",
        name=source.name,
        version=source.version if isinstance(source, StoredPolicy) else None,
        policy_version=policy.full_version if policy else None,
        rules=[rule.name for rule in policy.rules] if policy else [],
        fault=source.fault or None,
    )


def _stored(room: Room) -> StoredPolicy:
    """Return the store as source of the policy; raises `RequestRefused` (409) that says what the source is instead."""
    source = room.policies.source if room.policies else None
    if isinstance(source, StoredPolicy):
        return source
    if source is None:
        message = "this server keeps no store, so no versions of the policy; serve with --store, or with --policy FILE"
    else:
        message = f"the policy of this server is the file {source.name}: edit it, and it is in use within a second"
    raise RequestRefused(message, code="policy_not_in_store", status=409)


def _version(stored: PolicyVersion) -> PolicyVersionReply:
    return PolicyVersionReply(
        version=stored.version,
        digest=stored.digest,
        author=stored.author,
        reason=stored.reason,
        created_at=stored.created_at,
    )
