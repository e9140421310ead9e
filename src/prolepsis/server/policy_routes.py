"""/admin/policy: what is in use, its versions, and another one in its place."""

import asyncio
from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from prolepsis.control.check import Known, check
from prolepsis.control.policy import Policy
from prolepsis.control.reading import InvalidPolicy
from prolepsis.core.errors import InvalidParameter
from prolepsis.server import policy_versions
from prolepsis.server.body_reader import read_body
from prolepsis.server.caller import caller_of
from prolepsis.server.errors import RequestRefused
from prolepsis.server.policies import Policies
from prolepsis.server.policy_replies import (
    PolicyBody,
    PolicyChangeBody,
    PolicyChangedReply,
    PolicyReply,
    PolicyRollbackBody,
    PolicyTextReply,
    PolicyVersionReply,
    PolicyVersionsReply,
)
from prolepsis.server.policy_versions import Change, Changed
from prolepsis.server.room import Room
from prolepsis.server.stored_policy import StoredPolicy
from prolepsis.store.plans import PlanVersion

_MOST_FINDINGS = 20


def policy_routes(room: Room) -> APIRouter:
    router = APIRouter()
    max_bytes = room.config.max_body_bytes

    @router.get("/admin/policy")
    async def policy() -> JSONResponse:
        return JSONResponse(_shown(room.policies).model_dump())

    @router.get("/admin/policy/versions")
    async def versions() -> JSONResponse:
        source = _stored(room)
        found = await asyncio.to_thread(policy_versions.newest, source.database)
        reply = PolicyVersionsReply(in_use=source.version, versions=[_version(one) for one in found])
        return JSONResponse(reply.model_dump())

    @router.get("/admin/policy/versions/{version}")
    async def version(version: str) -> JSONResponse:
        source = _stored(room)
        if not version.isdecimal() or len(version) > 9:
            message = f"version is {version[:64]!r}; allowed: a whole number"
            raise RequestRefused(message, code="unknown_version", param="version", status=404)
        try:
            found = await asyncio.to_thread(policy_versions.version_of, source.database, int(version))
        except InvalidParameter as error:
            raise RequestRefused(str(error), code="unknown_version", param="version", status=404) from None
        return JSONResponse(PolicyTextReply(**dict(_version(found)), text=found.text).model_dump())

    @router.put("/admin/policy")
    async def apply(request: Request) -> JSONResponse:
        body = await read_body(request, PolicyBody, max_bytes)
        source, change = _stored(room), _change(request, body)
        return await _changed(room, lambda: policy_versions.apply(source.database, body.text, change))

    @router.post("/admin/policy/rollback")
    async def roll_back(request: Request) -> JSONResponse:
        body = await read_body(request, PolicyRollbackBody, max_bytes)
        source, change = _stored(room), _change(request, body)
        return await _changed(room, lambda: policy_versions.roll_back(source.database, body.to, change))

    return router


def _change(request: Request, body: PolicyChangeBody) -> Change:
    return Change(caller_of(request).actor, body.reason, body.expect)


async def _changed(room: Room, work: Callable[[], Changed]) -> JSONResponse:
    """Change the policy and take it over; raises `RequestRefused` (400) with all that is wrong with it."""
    try:
        stored, policy = await asyncio.to_thread(work)
    except InvalidPolicy as error:
        raise RequestRefused(_findings(error), code="invalid_policy", param="text") from None
    assert room.policies is not None, "it has the source that was changed"
    await room.policies.look()
    warnings = _warnings(policy, room.policies.known)
    reply = PolicyChangedReply(**dict(_version(stored)), policy_version=policy.full_version, warnings=warnings)
    return JSONResponse(reply.model_dump())


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


def _version(stored: PlanVersion) -> PolicyVersionReply:
    return PolicyVersionReply(
        version=stored.version,
        digest=stored.digest,
        author=stored.author,
        reason=stored.note,
        created_at=stored.created_at,
    )
